"""The stream API: managing, appending, reading and consuming."""

from __future__ import annotations

import base64
import sys
from pathlib import Path

import pyarrow as pa
import pytest

import penstock
from tests.integration.conftest import Fresh
from tests.integration.serving import Client, Running
from tests.integration.streaming import ARROW, append, arrow, create, data_of, rows

NDJSON = "application/x-ndjson"


@pytest.fixture
def stream(client: Client, name: str) -> str:
    """The path of a new stream."""
    return create(client, name)


def test_a_stream_is_created_once_and_shown_with_all_its_options(client: Client, name: str) -> None:
    made = client.post("/streams", {"name": name, "retention_ms": 1000, "segment_bytes": 65_536})
    assert made.status == 201
    assert made.json["options"]["retention_ms"] == 1000
    assert client.post("/streams", {"name": name, "retention_ms": 1000, "segment_bytes": 65_536}).status == 200
    other = client.post("/streams", {"name": name})
    assert (other.status, other.json["code"]) == (409, "stream_exists")
    changed = client.ask("PATCH", f"/streams/{name}", {"retention_ms": None})
    assert (changed.status, changed.json["options"]["retention_ms"]) == (200, None)
    assert changed.json["options"]["segment_bytes"] == 65_536
    shown = client.get(f"/streams/{name}").json
    assert (shown["first"], shown["next"], shown["consumers"], len(shown["segments"])) == (0, 0, [], 1)


@pytest.mark.parametrize(
    ("body", "status", "field"),
    [
        ({"name": "a b"}, 422, "name"),
        ({"name": ".."}, 422, "name"),
        ({"name": "a/b"}, 422, "name"),
        ({"name": "s", "segment_bytes": 1}, 422, "segment_bytes"),
        ({"name": "s", "retention": 1}, 422, "retention"),
        ({"name": 1}, 400, "name"),
        ({}, 422, "name"),
    ],
)
def test_invalid_options_are_named(client: Client, body: dict[str, object], status: int, field: str) -> None:
    answer = client.post("/streams", body)
    assert (answer.status, answer.json["field"]) == (status, field)


def test_streams_are_listed_by_name_in_pages(client: Client, name: str) -> None:
    for letter in "cab":
        create(client, f"{name}-list-{letter}")
    first = client.get(f"/streams?prefix={name}-list-&limit=2").json
    assert [each["name"][-1] for each in first["streams"]] == ["a", "b"]
    rest = client.get(f"/streams?prefix={name}-list-&limit=2&after={first['next']}").json
    assert ([each["name"][-1] for each in rest["streams"]], rest["next"]) == (["c"], None)


def test_a_stream_name_can_be_a_path_and_never_leaves_its_folder(client: Client, server: Running) -> None:
    path = create(client, "ns/task/stream")
    append(client, path, "x")
    assert data_of(client, path) == ["x"]
    folder = Path(f"{server.path}.streams")
    assert (folder / "tree" / "ns" / "task" / "stream").is_dir()
    for bad in ("..%2F..%2Fetc", "%2Fetc", "a%2F..%2Fb", "%00", "a%5Cb"):
        assert client.get(f"/streams/{bad}").status == 422, bad


def test_dropping_a_stream_with_consumers_requires_force(client: Client, stream: str) -> None:
    client.post(f"{stream}/consumers", {"consumer": "billing"})
    refused = client.delete(stream)
    assert (refused.status, refused.json["code"]) == (409, "stream_in_use")
    assert client.delete(f"{stream}?force=true").json == {"dropped": stream.rpartition("/")[2]}
    gone = client.get(stream)
    assert (gone.status, gone.json["code"]) == (404, "unknown_stream")


# Appending


def test_strings_json_and_bytes_are_returned_unchanged(client: Client, stream: str) -> None:
    encoded = {"data": base64.b64encode(b"\xff\x00").decode(), "encoding": "base64"}
    look_alike = {"data": 1, "encoding": "json"}
    appended = append(
        client, stream, "text", {"a": [1, None]}, 7, None, "", encoded, {"data": encoded, "encoding": "json"}
    )
    assert appended == {"first": 0, "last": 6, "records": 7}
    page = client.get(f"{stream}/records").json
    assert [record["offset"] for record in page["records"]] == list(range(7))
    assert page["next"] == 7
    shown = [(record["data"], record.get("encoding")) for record in page["records"]]
    assert shown[:5] == [("text", None), ({"a": [1, None]}, None), (7, None), (None, None), ("", None)]
    assert shown[5:] == [(encoded["data"], "base64"), (encoded, None)]
    assert append(client, stream, look_alike)["first"] == 7
    assert data_of(client, stream, "?from=7") == [1]
    times = [record["timestamp"] for record in page["records"]]
    assert times == sorted(times)


def test_any_other_body_is_one_record(client: Client, stream: str) -> None:
    assert client.post(f"{stream}/records", b"\xfe", content_type="application/octet-stream").status == 201
    assert client.post(f"{stream}/records", b"a=b", content_type="application/x-www-form-urlencoded").status == 201
    assert client.post(f"{stream}/records", "grüß".encode(), content_type="text/plain; charset=utf-8").status == 201
    bad = client.post(f"{stream}/records", b"\xfe", content_type="text/plain")
    assert (bad.status, bad.json["code"]) == (400, "malformed_text")
    page = client.get(f"{stream}/records").json["records"]
    assert [base64.b64decode(record["data"]) for record in page[:2]] == [b"\xfe", b"a=b"]
    assert page[2]["data"] == "grüß"


def test_lines_are_appended_in_order_and_an_error_reports_the_kept_ones(client: Client, stream: str) -> None:
    lines = b"".join(b'{"n": %d}\n' % number for number in range(2_500))
    answer = client.post(f"{stream}/records", lines, content_type=NDJSON)
    assert (answer.status, answer.json) == (201, {"first": 0, "last": 2_499, "records": 2_500})
    broken = client.post(f"{stream}/records", lines + b"{nonsense\n", content_type=NDJSON)
    assert (broken.status, broken.json["code"]) == (400, "malformed_json")
    assert broken.json["error"].startswith("line 2501")
    assert "2000 records before it were kept" in broken.json["hint"]
    assert client.get(stream).json["next"] == 4_500
    assert data_of(client, stream, "?from=2499&limit=2") == [{"n": 2_499}, {"n": 0}]
    assert client.post(f"{stream}/records", b"\n \n", content_type=NDJSON).status == 422


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"records": []}, 422),
        ({"records": "x"}, 400),
        ({"record": ["x"]}, 422),
        (b'{"records": [1', 400),
        (b'{"records": [NaN]}', 400),
        (b'{"records": [{"a": 1, "a": 2}]}', 400),
        ({"records": [{"data": "no base64!", "encoding": "base64"}]}, 422),
        ({"records": [0] * 10_001}, 422),
    ],
)
def test_an_invalid_record_fails_the_whole_append(client: Client, stream: str, body: object, status: int) -> None:
    assert client.post(f"{stream}/records", body).status == status
    assert client.get(stream).json["next"] == 0


def test_a_record_has_a_size_limit(client: Client, name: str) -> None:
    path = create(client, name, record_bytes=10)
    answer = client.post(f"{path}/records", {"records": ["short", "x" * 11]})
    assert (answer.status, answer.json["code"]) == (413, "payload_too_large")
    line = client.post(f"{path}/records", b'"' + b"x" * 10_000 + b'"\n', content_type=NDJSON)
    assert (line.status, line.json["code"]) == (413, "line_too_large")
    assert client.get(path).json["next"] == 0


def test_a_request_has_a_size_limit(serve: Fresh) -> None:
    with serve(request_bytes=1_000).client() as client:
        path = create(client, "s")
        assert client.post(f"{path}/records", b"x" * 1_001, content_type="application/octet-stream").status == 413


def test_an_append_to_a_missing_stream_is_refused(client: Client) -> None:
    for body, kind in ((b"x", "text/plain"), (b'"x"\n', NDJSON), (arrow(pa.table({"data": ["x"]})), ARROW)):
        answer = client.post("/streams/nowhere/records", body, content_type=kind)
        assert (answer.status, answer.json["code"]) == (404, "unknown_stream")


# Arrow


def test_arrow_can_be_appended_and_read(client: Client, stream: str) -> None:
    table = pa.table({"data": [b"\x00%d" % number for number in range(25_000)], "other": range(25_000)})
    sent = client.post(f"{stream}/records", arrow(table), content_type=ARROW)
    assert (sent.status, sent.json) == (201, {"first": 0, "last": 24_999, "records": 25_000})
    answer = client.get(f"{stream}/records?from=10&limit=20000", accept=ARROW)
    found = rows(answer)
    assert answer.headers["x-penstock-next"] == "20010"
    assert [row["offset"] for row in found] == list(range(10, 20_010))
    assert found[0]["data"] == b"\x0010"
    assert found[0]["timestamp"].tzinfo is not None
    again = client.post(f"{stream}/records", answer.body, content_type=ARROW)
    assert again.json["records"] == 20_000


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()])
def test_a_single_column_can_have_any_name(client: Client, stream: str, kind: pa.DataType) -> None:
    table = pa.table({"anything": pa.array(["one", "two"], pa.string()).cast(kind)})
    assert client.post(f"{stream}/records", arrow(table), content_type=ARROW).status == 201
    assert [row["data"] for row in rows(client.get(f"{stream}/records", accept=ARROW))] == [b"one", b"two"]
    shown = client.get(f"{stream}/records").json["records"][0]
    assert shown["data"] == ("one" if "string" in str(kind) else "b25l")


def test_invalid_arrow_is_refused(client: Client, stream: str) -> None:
    good = arrow(pa.table({"data": ["x"]}))
    for table, code in (
        (pa.table({"data": [1]}), "invalid_value"),
        (pa.table({"a": ["x"], "b": ["x"]}), "invalid_value"),
        (pa.table({"data": pa.array(["x", None])}), "invalid_value"),
        (pa.table({"data": pa.array(["x"]).dictionary_encode()}), "malformed_arrow"),
        (pa.table({"data": pa.array([], pa.string())}), "invalid_value"),
    ):
        answer = client.post(f"{stream}/records", arrow(table), content_type=ARROW)
        assert answer.json["code"] == code, table
    packed = arrow(pa.table({"data": ["x" * 1_000]}), options=pa.ipc.IpcWriteOptions(compression="zstd"))
    for body in (b"no arrow at all", good[:-20], packed, b"\xff" * 8, good[:8]):
        answer = client.post(f"{stream}/records", body, content_type=ARROW)
        assert (answer.status, answer.json["code"]) in ((400, "malformed_arrow"), (413, "body_too_large")), answer
    assert client.get(stream).json["next"] == 0


def test_no_flipped_bit_in_arrow_breaks_the_server(client: Client, stream: str) -> None:
    body = arrow(pa.table({"data": ["one", "two"]}))
    for place in range(0, len(body), 3):
        changed = bytearray(body)
        changed[place] ^= 1 << place % 8
        assert client.post(f"{stream}/records", bytes(changed), content_type=ARROW).status in (201, 400, 413, 422)


# Reading


def test_reading_starts_at_any_retained_offset_and_returns_the_next(client: Client, stream: str) -> None:
    append(client, stream, *range(10))
    assert data_of(client, stream) == list(range(10))
    page = client.get(f"{stream}/records?from=4&limit=3").json
    assert ([record["data"] for record in page["records"]], page["next"]) == ([4, 5, 6], 7)
    end = client.get(f"{stream}/records?from=10").json
    assert end == {"records": [], "next": 10}
    beyond = client.get(f"{stream}/records?from=11")
    assert (beyond.status, beyond.json["code"]) == (422, "offset_beyond_end")
    for query in ("from=-1", "limit=0", "from=x", "wait_ms=-1", "since=1"):
        assert client.get(f"{stream}/records?{query}").status == 422, query


def test_a_page_is_bounded_in_bytes(client: Client, stream: str) -> None:
    for _ in range(5):
        append(client, stream, *["x" * 200_000] * 6)
    page = client.get(f"{stream}/records").json
    assert 0 < len(page["records"]) < 30
    assert page["next"] == len(page["records"])


def test_reading_trimmed_records_fails(client: Client, name: str) -> None:
    path = create(client, name, segment_bytes=65_536)
    for _ in range(4):
        append(client, path, *["x" * 10_000] * 6)
    trimmed = client.post(f"{path}/trim", {"before": 12}).json
    assert (trimmed["first"], trimmed["removed_segments"]) == (12, 2)
    for accept in ("application/json", ARROW):
        gone = client.get(f"{path}/records?from=0", accept=accept)
        assert (gone.status, gone.json["code"]) == (410, "offset_trimmed")
        assert "12" in gone.json["hint"]
    assert client.get(f"{path}/records?limit=1").json["records"][0]["offset"] == 12
    assert rows(client.get(f"{path}/records?limit=1", accept=ARROW))[0]["offset"] == 12
    assert client.get(f"{path}/next?consumer=new&limit=1").json["records"][0]["offset"] == 12


def test_records_a_consumer_needs_are_kept_unless_forced(client: Client, name: str) -> None:
    path = create(client, name, segment_bytes=65_536)
    for _ in range(3):
        append(client, path, *["x" * 10_000] * 6)
    client.ask("PUT", f"{path}/consumers/slow", {"offset": 7})
    held = client.post(f"{path}/trim", {"before": 18}).json
    assert (held["first"], held["held_by"]) == (6, "slow")
    assert client.post(f"{path}/trim", {"before": 18, "force": True}).json["first"] == 12
    assert client.get(f"{path}/next?consumer=slow").status == 410


def test_a_damaged_record_is_reported_with_its_position_and_never_served(
    client: Client, server: Running, name: str
) -> None:
    path = create(client, name)
    append(client, path, "before", "secret", "after")
    [log] = Path(f"{server.path}.streams", "flat", name).glob("*.log")
    content = bytearray(log.read_bytes())
    content[content.index(b"secret")] ^= 1
    log.write_bytes(content)
    for accept in ("application/json", ARROW):
        answer = client.get(f"{path}/records?from=1", accept=accept)
        assert (answer.status, answer.json["code"]) == (500, "corrupt_record")
        assert answer.json["place"] == {"offset": 1, "segment": log.name, "position": 94}
        assert b"ecret" not in answer.body
        assert client.get(f"{path}/records?from=2", accept=accept).status == 200
    assert data_of(client, path) == ["before"]
    assert len(rows(client.get(f"{path}/records", accept=ARROW))) == 1
    found = client.post(f"{path}/check").json
    assert (found["ok"], [each["trouble"] for each in found["findings"]]) == (False, ["corrupt"])
    assert client.post(f"{path}/repair").json["ok"]
    page = client.get(f"{path}/records").json
    assert ([record["data"] for record in page["records"]], page["lost"]) == (["before", "after"], 1)
    assert append(client, path, "goes on")["first"] == 3


# Consumers


def test_a_consumer_continues_after_its_last_committed_record(client: Client, stream: str) -> None:
    append(client, stream, *range(5))
    assert [r["data"] for r in client.get(f"{stream}/next?consumer=c&limit=2").json["records"]] == [0, 1]
    assert [r["data"] for r in client.get(f"{stream}/next?consumer=c&limit=2").json["records"]] == [0, 1]
    committed = client.ask("PUT", f"{stream}/consumers/c", {"offset": 1})
    assert (committed.status, committed.json["offset"], committed.json["lag"]) == (200, 1, 3)
    assert [row["data"] for row in rows(client.get(f"{stream}/next?consumer=c", accept=ARROW))] == [b"2", b"3", b"4"]
    back = client.ask("PUT", f"{stream}/consumers/c", {"offset": 0})
    assert (back.status, back.json["code"]) == (409, "position_moves_back")
    assert client.ask("PUT", f"{stream}/consumers/c", {"offset": 0, "force": True}).json["lag"] == 4
    assert client.ask("PUT", f"{stream}/consumers/c", {"offset": 5}).status == 422
    assert client.get(f"{stream}/consumers/c").json["offset"] == 0
    assert [each["consumer"] for each in client.get(f"{stream}/consumers").json["consumers"]] == ["c"]
    assert client.delete(f"{stream}/consumers/c").status == 200
    assert client.get(f"{stream}/consumers/c").json["code"] == "unknown_consumer"
    assert client.delete(f"{stream}/consumers/c").status == 404


def test_ids_of_consumers_are_unique(client: Client, stream: str) -> None:
    made = [client.post(f"{stream}/consumers") for _ in range(3)]
    assert {answer.status for answer in made} == {201}
    assert len({answer.json["consumer"] for answer in made}) == 3
    assert made[0].json["offset"] is None
    for bad in ("a%2Fb", "a%20b", "%C3%BC"):
        assert client.ask("PUT", f"{stream}/consumers/{bad}", {"offset": -1}).status == 422
        assert client.get(f"{stream}/next?consumer={bad}").status == 422


def test_positions_and_records_survive_a_restart(serve: Fresh) -> None:
    first = serve()
    with first.client() as client:
        path = create(client, "s")
        append(client, path, "a", "b", "c")
        client.ask("PUT", f"{path}/consumers/c", {"offset": 1})
    first.stop()
    with serve().client() as client:
        assert [r["data"] for r in client.get(f"{path}/next?consumer=c").json["records"]] == ["c"]
        assert append(client, path, "d")["first"] == 3


# Access, metrics and retention


def test_streams_require_the_admin_token(serve: Fresh) -> None:
    server = serve(auth_token="secret-token")
    with server.client() as admin:
        path = create(admin, "s")
        key = admin.post(f"{admin.queue('q')}/keys", {"rights": ["push", "consume", "admin"]}).json["key"]
    for token, status in (("wrong", 401), (key, 403)):
        with server.client(token) as client:
            assert client.get(path).status == status
            assert client.post(f"{path}/records", {"records": ["x"]}).status == status


def test_metrics_include_streams(client: Client, stream: str) -> None:
    name = stream.rpartition("/")[2]
    append(client, stream, "four", "five!")
    client.ask("PUT", f"{stream}/consumers/c", {"offset": 0})
    text = client.get("/metrics").body.decode()
    for line in (
        f'penstock_stream_appended_records_total{{stream="{name}"}} 2.0',
        f'penstock_stream_appended_bytes_total{{stream="{name}"}} 9.0',
        f'penstock_stream_records{{stream="{name}"}} 2.0',
        f'penstock_stream_segments{{stream="{name}"}} 1.0',
        f'penstock_stream_lag_records{{consumer="c",stream="{name}"}} 1.0',
        "penstock_stream_reads_waiting 0.0",
    ):
        assert line in text
    assert "penstock_stream_append_seconds_count" in text


def test_the_server_trims_streams_automatically(serve: Fresh) -> None:
    with serve(trim_ms=10).client() as client:
        path = create(client, "s", segment_bytes=65_536, retention_bytes=70_000)
        for _ in range(6):
            append(client, path, *["x" * 10_000] * 6)
        while client.get(path).json["first"] < 18:
            pass
        assert client.get(path).json["next"] == 36


def test_json_stays_exact(client: Client, stream: str) -> None:
    body = b'{"records": [{"n": 12345678901234567890, "f": 1.0}]}'
    assert client.post(f"{stream}/records", body).status == 201
    assert b'{"n": 12345678901234567890, "f": 1.0}' in client.get(f"{stream}/records").body


def test_without_pyarrow_an_arrow_request_is_refused_with_the_missing_extra(
    client: Client, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = arrow(pa.table({"data": ["x"]}))
    with penstock.connect(f"http://127.0.0.1:{client.port}") as sdk:
        monkeypatch.setitem(sys.modules, "pyarrow", None)
        sent = client.post(f"{stream}/records", body, content_type=ARROW)
        read = client.get(f"{stream}/records", accept=ARROW)
        assert (sent.status, read.status) == (415, 406)
        for answer in (sent, read):
            assert answer.json["code"] == "missing_extra"
            assert "pip install 'penstock-mq[arrow]'" in answer.json["hint"]
        with pytest.raises(penstock.MissingExtra):
            list(sdk.stream(stream.rpartition("/")[2]).read_arrow())
