"""Prometheus metrics of streams: appends on this server, sizes, and consumer lag."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from penstock.errors import PenstockError
from penstock.server.stream_service import StreamService
from penstock.server.telemetry import LATENCY_BUCKETS, PlainHistogram

STREAMS_SHOWN_MAX = 1_000


class StreamCollector(Collector):
    def __init__(self, streams: StreamService) -> None:
        self._service = streams
        self._appended: dict[str, tuple[int, int]] = {}
        self._latency = PlainHistogram(LATENCY_BUCKETS)
        streams.appended = self._count

    def _count(self, stream: str, records: int, size: int, seconds: float) -> None:
        before = self._appended.get(stream, (0, 0))
        if before != (0, 0) or len(self._appended) < STREAMS_SHOWN_MAX:
            self._appended[stream] = (before[0] + records, before[1] + size)
        self._latency.observe(seconds)

    def collect(self) -> Iterable[Metric]:
        records = CounterMetricFamily(
            "penstock_stream_appended_records", "Records appended by this server.", labels=("stream",)
        )
        size = CounterMetricFamily(
            "penstock_stream_appended_bytes", "Bytes of records appended by this server.", labels=("stream",)
        )
        latency = HistogramMetricFamily("penstock_stream_append_seconds", "Time until an append is on disk.", labels=())
        # The event loop keeps counting on its own thread meanwhile.
        for stream, (count, in_bytes) in list(self._appended.items()):
            records.add_metric((stream,), count)
            size.add_metric((stream,), in_bytes)
        self._latency.add_to(latency)
        waiting = GaugeMetricFamily(
            "penstock_stream_reads_waiting", "Reads waiting for a record.", self._service.log_waiters.waiting
        )
        yield from (records, size, latency, waiting, *self._gauges())

    def _gauges(self) -> Iterable[Metric]:
        kept = GaugeMetricFamily("penstock_stream_records", "Records in the stream.", labels=("stream",))
        size = GaugeMetricFamily("penstock_stream_bytes", "Bytes of a stream's segments.", labels=("stream",))
        segments = GaugeMetricFamily("penstock_stream_segments", "Segments of a stream.", labels=("stream",))
        lag = GaugeMetricFamily(
            "penstock_stream_lag_records", "Consumer lag: records after its position.", labels=("stream", "consumer")
        )
        for info in self._service.streams.list_streams(limit=STREAMS_SHOWN_MAX):
            kept.add_metric((info.name,), info.next - info.first)
            size.add_metric((info.name,), info.bytes)
            segments.add_metric((info.name,), info.segments)
            try:
                consumers = self._service.streams.consumers(info.name) if info.consumers else ()
            except PenstockError:
                continue  # Deleted meanwhile, or damaged, which its own calls report.
            for consumer in consumers:
                lag.add_metric((info.name, consumer.name), consumer.lag)
        yield from (kept, size, segments, lag)
