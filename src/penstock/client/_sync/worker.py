# Made by tools/unasync.py from the asynchronous twin: change that.
"""A worker: runs a function on each message of a queue, several at a time, until stopped."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING

from penstock.client._sync.acknowledger import Acknowledger
from penstock.client._sync.message import LeasedMessage
from penstock.client._sync.prefetcher import Prefetcher
from penstock.client._concurrency_threads import (
    CAN_CANCEL,
    HANDLES_SIGNALS,
    BackgroundTasks,
    ThreadsafeEvent,
    sleep,
    within,
)
from penstock.client.handler_pace import AHEAD_MAX
from penstock.client.signals import on_signals
from penstock.client.stop import StopSignal
from penstock.client.types import Seconds, milliseconds
from penstock.core.limits import check_range
from penstock.core.model import BATCH_MAX
from penstock.errors import (
    DeadLetter,
    Discard,
    InvalidInput,
    PenstockError,
    ServerFault,
    StoreError,
    TryLater,
    Unreachable,
)

if TYPE_CHECKING:
    from penstock.client._sync.client import Client
    from penstock.client._sync.queue import Queue

log = logging.getLogger("penstock.worker")
LEASE_WAIT_SECONDS = 60.0
TROUBLE_SECONDS = 1.0
RELEASE_SECONDS = 1.0
# A signal that arrives just before a wait does not end it, so waits are split into steps.
SIGNAL_SECONDS = 1.0
KEEP_SECONDS_MAX = 86_400.0
CONCURRENCY_MAX = 10_000


class Worker:
    """A worker, created by `queue.worker`. Calling it calls the function itself, for tests.

    `time_limit`: a message that takes longer is nacked; an async function is cancelled, a thread goes on, but its
    result is ignored. `grace`: how long a stop waits for messages in progress before it releases them. `prefetch`: how
    many messages may be leased ahead; a slow handler gets fewer, and messages that were not started are released.
    """

    def __init__(
        self,
        queue: Queue,
        client: Client,
        handler: Callable[[LeasedMessage], object],
        *,
        concurrency: int,
        lease: Seconds | None,
        time_limit: Seconds | None,
        grace: Seconds,
        prefetch: int = AHEAD_MAX,
    ) -> None:
        if type(concurrency) is not int or not 1 <= concurrency <= CONCURRENCY_MAX:
            raise InvalidInput(
                f"concurrency must be an int from 1 to {CONCURRENCY_MAX}, got {concurrency!r}", field="concurrency"
            )
        check_range("prefetch", prefetch, 0, BATCH_MAX)
        self._prefetch = prefetch
        self.queue = queue
        self.handler = handler
        self._client = client
        self._concurrency = concurrency
        self._lease = lease
        self._time_limit = None if time_limit is None else milliseconds("time_limit", time_limit, 1) / 1000
        self._grace = milliseconds("grace", grace) / 1000
        self._lease_ms = 0
        self._in_progress: set[LeasedMessage] = set()
        self._stop = StopSignal()
        self._wake = ThreadsafeEvent()
        self._stopping = False
        self._is_forced = False
        self._has_ended = False
        self._error: BaseException | None = None

    def __call__(self, message: LeasedMessage) -> object:
        return self.handler(message)

    def stop(self) -> None:
        """Stop leasing, finish messages in progress, and let `run` return. Safe from any thread and signal handler."""
        self._stopping = True
        self._wake.set()

    def run(self, *, handle_signals: bool = HANDLES_SIGNALS) -> None:
        """Process messages until stopped.

        With `handle_signals`, in the main thread, SIGTERM or SIGINT stops the worker as `stop` does; a second signal
        releases messages in progress without waiting. The previous handlers are restored at the end. A sync worker
        handles signals by default; an async worker leaves them to its application.
        """
        if self._has_ended:
            # A stop() since the last run was not meant for this one; a stop() before the first run is.
            self._wake = ThreadsafeEvent()
            self._stopping = self._is_forced = self._has_ended = False
        try:
            self._lease_ms = self.queue.lease_ms(self._lease)
            with on_signals(self._on_signal) if handle_signals else nullcontext():
                self._run(SIGNAL_SECONDS if handle_signals else None)
        finally:
            self._has_ended = True

    def _on_signal(self, is_second: bool) -> None:
        self._is_forced = is_second
        self.stop()

    def _run(self, step_seconds: float | None) -> None:
        stop = self._stop = StopSignal()
        wake = self._wake
        self._error = None
        at_work = set(range(self._concurrency))
        prefetcher = Prefetcher(
            lambda limit, wait: self._lease_messages(limit, LEASE_WAIT_SECONDS if wait else 0, stop),
            self._release_all,
            lanes=self._concurrency,
            lease_ms=self._lease_ms,
            prefetch=self._prefetch,
        )
        acknowledger = Acknowledger(self._client)

        def work(number: int) -> None:
            try:
                self._guarded(stop, lambda: self._lane(prefetcher, acknowledger))
            finally:
                at_work.discard(number)
                wake.set()

        name = f"penstock-{self.queue.name}"
        fetching = BackgroundTasks(lambda: self._guarded(stop, lambda: prefetcher.run(stop)), f"{name}-prefetcher")
        acking = BackgroundTasks(lambda: self._guarded(stop, acknowledger.run), f"{name}-acknowledger")
        lanes = [BackgroundTasks(partial(work, number), f"{name}-{number}") for number in range(self._concurrency)]
        try:
            while not self._stopping:
                wake.wait(step_seconds)
        finally:
            stop.set()
            self._finish(lanes, at_work, wake)
            acknowledger.close()
            for task in (fetching, acking):
                task.join(RELEASE_SECONDS if self._is_forced else self._grace + RELEASE_SECONDS)
        if self._error is not None:
            raise self._error

    def _finish(self, lanes: list[BackgroundTasks], at_work: set[int], wake: ThreadsafeEvent) -> None:
        deadline = time.monotonic() + self._grace
        if self._in_progress:
            log.info(
                "finishing %d messages of %r; a second signal releases them",
                len(self._in_progress),
                self.queue.name,
            )
        while at_work and not self._is_forced and (left := deadline - time.monotonic()) > 0:
            wake.wait(min(left, SIGNAL_SECONDS))
        late = [lanes[number] for number in sorted(at_work)]
        if not late:
            return
        if self._in_progress:
            log.warning("releasing %d unfinished messages of %r", len(self._in_progress), self.queue.name)
        self._release_all([message for message in self._in_progress if not message.settled])
        for lane in late:
            lane.cancel()
        if CAN_CANCEL:
            for lane in late:
                lane.join(1 + (0 if self._is_forced else self._grace))

    def _guarded(self, stop: StopSignal, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            # Cancellation after a stop is expected; any other end of this task must end the whole worker.
            if stop is self._stop and (isinstance(error, Exception) or not stop.is_set):
                self._error = error
                self.stop()

    def _lane(self, prefetcher: Prefetcher, acknowledger: Acknowledger) -> None:
        while (message := prefetcher.take()) is not None:
            began = time.monotonic()
            self._work(message, acknowledger)
            prefetcher.finished(message, time.monotonic() - began)

    def _lease_messages(self, limit: int, wait: float, stop: StopSignal) -> list[LeasedMessage]:
        try:
            leases = self._client.transport.lease(
                self.queue.name, limit, self._lease_ms, wait, stop, self._client.worker_name
            )
        except (Unreachable, TryLater, StoreError, ServerFault) as error:
            if self._client.closed and not stop.is_set:
                raise
            log.warning("cannot lease messages of %r, retrying: %s", self.queue.name, error)
            sleep(TROUBLE_SECONDS)
            return []
        return [LeasedMessage(self._client, lease) for lease in leases]

    def _work(self, message: LeasedMessage, acknowledger: Acknowledger) -> None:
        self._in_progress.add(message)
        is_ack_pending = False
        limit = self._time_limit
        timeout_error = None if CAN_CANCEL or limit is None else f"TimeoutError: took longer than {limit:g} s"
        self._client.lease_renewer.keep(
            message, self._lease_ms, KEEP_SECONDS_MAX if timeout_error is None else limit or 0, timeout_error
        )
        try:
            within(limit, lambda: self.handler(message))
        except (DeadLetter, Discard) as error:
            log.warning("message %d of %r failed permanently: %s", message.id, self.queue.name, error)
            self._settle(message, error)
        except Exception as error:
            log.exception("message %d of %r failed", message.id, self.queue.name)
            self._settle(message, error)
        except BaseException:
            self._release(message)
            raise
        else:
            # The renewer keeps the lease until the ack is answered.
            is_ack_pending = not message.settled and acknowledger.add(message)
            if not is_ack_pending:
                self._settle(message, None)
        finally:
            if not is_ack_pending:
                self._client.lease_renewer.forget(message)
            self._in_progress.discard(message)

    def _settle(self, message: LeasedMessage, error: Exception | None) -> None:
        if message.settled:
            return
        try:
            if error is None:
                message.ack()
            else:
                message.nack(error)
        except PenstockError as trouble:
            log.warning("cannot settle message %d of %r: %s", message.id, message.queue, trouble)

    def _release_all(self, messages: list[LeasedMessage]) -> None:
        """Release messages in one call, so that an unreachable server delays the stop only once."""
        if not messages:
            return
        items = [message.item() for message in messages]
        try:
            results = self._client.transport.settle(
                "release", messages[0].queue, items, retry_for=RELEASE_SECONDS
            )
            for message, result in zip(messages, results, strict=True):
                message._end(result)
        except PenstockError as trouble:
            log.warning("cannot release %d messages of %r: %s", len(items), self.queue.name, trouble)

    def _release(self, message: LeasedMessage) -> None:
        if message.settled:
            return
        try:
            message.release()
        except PenstockError as trouble:
            log.warning("cannot release message %d of %r: %s", message.id, message.queue, trouble)
