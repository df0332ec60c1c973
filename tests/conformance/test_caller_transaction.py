"""A push in the caller's transaction behaves like any other push once the transaction commits."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from typing import Any

import msgspec
import psycopg
import pytest

from penstock.core.commands import Command, Configure, Drop, Pause, Push, SetSecret
from penstock.core.model import Content, PushItem, QueueOptions
from penstock.errors import InvalidInput, QueueFull, RateLimited, TryLater, UnknownQueue, WrongType
from penstock.store.postgres import transaction
from tests.conformance.postgres_support import PostgresUnderTest, events_of
from tests.conformance.support import StoreUnderTest, eventually, push_command, texts
from tests.postgres import cluster


def open_connection(store: StoreUnderTest) -> Any:
    if isinstance(store, PostgresUnderTest):
        return psycopg.connect(str(store.path))
    return sqlite3.connect(store.path)


@pytest.fixture
def connection(shared: StoreUnderTest) -> Iterator[Any]:
    """The caller's own connection."""
    connection = open_connection(shared)
    yield connection
    connection.close()


@pytest.fixture
def own(on_server: PostgresUnderTest) -> Iterator[psycopg.Connection]:
    with psycopg.connect(cluster().url) as connection:
        yield connection


def sql_push(store: PostgresUnderTest, connection: psycopg.Connection, *args: Any, **options: Any) -> int:
    values = [*args, *options.values()]
    marks = ["%s"] * len(args) + [f"{name} => %s" for name in options]
    row = connection.execute(f"SELECT {store.schema}.push({', '.join(marks)})".encode(), values).fetchone()
    assert row is not None
    return int(row[0])


def test_a_push_commits_and_rolls_back_with_the_transaction(shared: StoreUnderTest, connection: Any) -> None:
    shared.make()
    shared.push_on(connection, push_command("kept"))
    connection.execute("SAVEPOINT mine")
    shared.push_on(connection, push_command("undone"))
    connection.execute("ROLLBACK TO SAVEPOINT mine")
    assert shared.counts() == {}
    connection.commit()
    shared.push_on(connection, push_command("rolled back"))
    connection.rollback()
    assert shared.counts() == {"ready": 1}
    assert shared.drain() == ["kept"]


MESSAGES = [
    PushItem(payload=b"plain"),
    PushItem(payload=b'{"a":"\xc3\xa9"}', content=Content.JSON, headers={"trace": 'a "b"', "x": "\0\x7f"}),
    PushItem(payload=b"", content=Content.TEXT, priority=-(2**31) + 1),
    PushItem(payload=bytes(range(256)), priority=7, key="one"),
    PushItem(payload=b"twin", key="one"),
    PushItem(payload=b"later", delay_ms=60_000, ttl_ms=90_000, key="two", headers={}),
    PushItem(payload=b"mortal", ttl_ms=1),
    PushItem(payload=b"now", delay_ms=0),
]
OPTIONS = [
    {},
    {"delay_ms": 5_000, "ttl_ms": 10_000},
    {"journal": "meta", "dedupe_ms": 0},
    {"journal": "off"},
    {"max_size": 7, "push_rate": 3.5, "push_burst": 9},
]


@pytest.mark.parametrize("options", OPTIONS)
def test_a_push_is_stored_counted_and_journalled_like_any_other(
    shared: StoreUnderTest, connection: Any, options: dict[str, Any]
) -> None:
    for queue in ("n/t/theirs", "n/t/mine"):
        shared.make(queue, **options)
    receipts = [
        shared.do(Push(queue="n/t/theirs", messages=MESSAGES)).receipts,
        shared.push_on(connection, Push(queue="n/t/mine", messages=MESSAGES)),
    ]
    connection.commit()
    assert [[r.duplicate for r in each] for each in receipts] == [[n == 4 for n in range(len(MESSAGES))]] * 2
    assert all(each[4].id == each[3].id and each[4].uuid == each[3].uuid for each in receipts)
    shared.clock.advance(2_000)
    for look in (_stored, _counted, _journalled):
        theirs, own = (look(shared, queue) for queue in ("n/t/theirs", "n/t/mine"))
        assert theirs == own
    assert shared.try_lease(scope="n", limit=20).messages or "delay_ms" in options


def _stored(store: StoreUnderTest, queue: str) -> list[Any]:
    found = [message for state in ("ready", "scheduled") for message in store.peek(queue, state=state, limit=20)[0]]
    return [msgspec.structs.replace(message, id=0, uuid="", queue="") for message in found]


def _counted(store: StoreUnderTest, queue: str) -> Any:
    return msgspec.structs.replace(store.info(queue), name="")


def _journalled(store: StoreUnderTest, queue: str) -> list[Any]:
    if not store._journal:
        return []
    events = [event for event in events_of(store) if event.queue == queue and event.kind == "pushed"]
    by_time = {event.pushed_at: event for event in events}
    assert all(event.uuid for event in by_time.values())
    return [
        msgspec.structs.replace(event, offset=0, number=0, id=0, uuid="", queue="", queue_id=0)
        for event in sorted(events, key=lambda event: event.id or 0)
    ]


def test_keys_are_shared_with_other_pushes(shared: StoreUnderTest, connection: Any) -> None:
    shared.make()
    first = shared.push("a", key="theirs")
    (again,) = shared.push_on(connection, push_command("b", key="theirs"))
    assert (again.id, again.duplicate) == (first[0], True)
    (fresh,) = shared.push_on(connection, push_command("c", key="mine"))
    connection.commit()
    assert shared.push("d", key="mine") == [fresh.id]
    assert shared.drain() == ["a", "c"]
    # A key is free once its window has passed and its message is gone.
    shared.clock.advance(2 * 86_400_000)
    (free,) = shared.push_on(connection, push_command("e", key="mine"))
    assert free.duplicate
    connection.rollback()
    for message in shared.lease(limit=9):
        shared.ack(message)
    (free,) = shared.push_on(connection, push_command("f", key="mine"))
    connection.commit()
    assert not free.duplicate
    assert shared.drain() == ["f"]


def test_a_refused_push_changes_nothing_and_leaves_the_transaction_usable(
    shared: StoreUnderTest, connection: Any
) -> None:
    shared.make(max_size=2)
    shared.make("slow", push_rate=1, push_burst=2)
    with pytest.raises(UnknownQueue):
        shared.push_on(connection, Push(queue="none", messages=[PushItem(payload=b"x")]))
    shared.push_on(connection, push_command("a", key="1"))
    with pytest.raises(QueueFull, match=r"is full \(1 of at most 2"):
        shared.push_on(connection, Push(queue="q", messages=[PushItem(payload=b"x", key=str(n)) for n in range(4)]))
    for key in ("2", "1"):
        shared.push_on(connection, push_command("b", key=key))
    shared.push_on(connection, Push(queue="slow", messages=[PushItem(payload=b"x")] * 2))
    with pytest.raises(RateLimited) as refused:
        shared.push_on(connection, push_command("y", queue="slow"))
    assert 0 < refused.value.retry_after_ms <= 1_001
    connection.commit()
    assert (shared.drain(), shared.drain("slow")) == (["a", "b"], ["x", "x"])
    with pytest.raises(RateLimited):
        shared.push("z", queue="slow")
    shared.clock.advance(1_000)
    shared.push("z", queue="slow")


def test_expired_messages_do_not_count_against_max_size(shared: StoreUnderTest, connection: Any) -> None:
    shared.make(max_size=2)
    shared.push("ready", ttl_ms=1_000)
    shared.push("scheduled", delay_ms=100, ttl_ms=1_000)
    with pytest.raises(QueueFull):
        shared.push_on(connection, push_command("early"))
    shared.clock.advance(1_000)
    shared.push_on(connection, push_command("fits"))
    connection.commit()
    assert shared.drain() == ["fits"]


def test_an_autocommit_connection_commits_each_push(shared: StoreUnderTest, connection: Any) -> None:
    shared.make()
    if isinstance(connection, sqlite3.Connection):
        connection.isolation_level = None
    else:
        connection.autocommit = True
    shared.push_on(connection, push_command("a"))
    assert shared.drain() == ["a"]


def test_a_connection_to_another_database_is_refused(shared: StoreUnderTest, tmp_path: Any) -> None:
    shared.make()
    with pytest.raises(WrongType):
        shared.push_on(object(), push_command("a"))
    if isinstance(shared, PostgresUnderTest):
        other: Any = psycopg.connect(cluster().url.replace("/postgres?", "/template1?"))
    else:
        other = sqlite3.connect(tmp_path / "other.db")
    with pytest.raises(InvalidInput, match="conn is"):
        shared.push_on(other, push_command("a"))
    other.close()


# Tests that need a database server, because several transactions are open at once.


@pytest.mark.parametrize("queue", ["q", "n/t/x", "slow"])
def test_an_open_transaction_does_not_block_others(
    on_server: PostgresUnderTest, own: psycopg.Connection, queue: str
) -> None:
    on_server.make(queue, **({"push_rate": 1_000.0} if queue == "slow" else {}))
    on_server.push_on(own, push_command("late", queue))
    # If this push waited for the lock of the open transaction, it would fail.
    for wire in on_server._pool._idle:
        wire.connection.execute("SET lock_timeout = '5s'")
    on_server.push("early", queue=queue)
    assert on_server.drain(queue) == ["early"]
    own.commit()
    assert on_server.drain(queue) == ["late"]


def test_two_transactions_with_one_key_add_one_message(on_server: PostgresUnderTest, own: psycopg.Connection) -> None:
    on_server.make()
    on_server.push_on(own, push_command("rolled back", key="k"))
    receipts: list[Any] = []

    def push_too() -> None:
        with psycopg.connect(cluster().url) as other:
            receipts.extend(on_server.push_on(other, push_command("second", key="k")))

    second = threading.Thread(target=push_too)
    second.start()
    waits = b"SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%push_messages%'"
    with psycopg.connect(cluster().url, autocommit=True) as watcher:
        eventually(lambda: watcher.execute(waits).fetchone() is not None)
    own.rollback()
    second.join()
    assert not receipts[0].duplicate
    assert on_server.push_on(own, push_command("third", key="k"))[0].id == receipts[0].id
    assert on_server.drain() == ["second"]


CHANGES: list[Command[Any]] = [
    Configure(queue="q", changes={"max_attempts": 9}),
    Pause(queue="q", paused=True),
    Drop(queue="q", force=True),
    SetSecret(queue="q", secret="s" * 32),
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: type(change).__name__)
def test_changing_a_queue_times_out_while_a_transaction_is_open(
    on_server: PostgresUnderTest, own: psycopg.Connection, change: Command[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction, "CHANGE_WAIT_MS", 100)
    on_server.make()
    sql_push(on_server, own, "q", '{"a": 1}')
    # The other command in the same batch still succeeds.
    refused, made = on_server.store.apply([change, Configure(queue="other", changes={}, create=QueueOptions())])
    assert isinstance(refused, TryLater)
    assert made.created
    with pytest.raises(TryLater, match="open transaction"):
        on_server.do(change)
    assert on_server.push("not held up")
    own.commit()
    on_server.do(change)


def test_a_push_with_a_key_of_an_open_transaction_fails_alone(
    on_server: PostgresUnderTest, own: psycopg.Connection
) -> None:
    on_server.make()
    on_server.push_on(own, push_command("first", key="k"))
    refused, kept = on_server.store.apply([push_command("again", key="k"), push_command("other", key="l")])
    assert isinstance(refused, TryLater)
    assert not kept.receipts[0].duplicate
    assert on_server.drain() == ["other"]
    own.commit()
    (again,) = on_server.do(push_command("again", key="k")).receipts
    assert again.duplicate
    assert on_server.drain() == ["first"]


def test_a_transaction_with_an_old_snapshot_can_push(on_server: PostgresUnderTest, own: psycopg.Connection) -> None:
    on_server.make()
    own.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    own.execute("SELECT 1")
    on_server.push("a")
    on_server.push_on(own, push_command("b"))
    own.commit()
    assert on_server.drain() == ["a", "b"]


def test_the_callers_row_factory_does_no_harm(on_server: PostgresUnderTest, own: psycopg.Connection) -> None:
    on_server.make()
    own.row_factory = psycopg.rows.dict_row  # type: ignore[assignment]
    with own.pipeline():
        on_server.push_on(own, push_command("a"))
    own.commit()
    assert on_server.drain() == ["a"]


# SQL functions


def test_sql_pushes_json(on_server: PostgresUnderTest, own: psycopg.Connection) -> None:
    on_server.make()
    first = sql_push(on_server, own, "q", '{"a": 1}')
    again = sql_push(on_server, own, "q", "1", key="k", headers='{"trace": "x"}', priority=3)
    assert sql_push(on_server, own, "q", "2", key="k") == again
    sql_push(on_server, own, "q", "3", delay_ms=1_000, ttl_ms=5_000)
    assert on_server.counts() == {}
    own.commit()
    assert on_server.counts() == {"ready": 2, "scheduled": 1}
    urgent, plain = on_server.lease(limit=9)
    assert (urgent.id, urgent.payload, urgent.content, urgent.headers) == (again, b"1", Content.JSON, {"trace": "x"})
    assert (plain.id, plain.payload) == (first, b'{"a": 1}')


def test_sql_cannot_forge_the_origin_of_a_dead_letter(on_server: PostgresUnderTest, own: psycopg.Connection) -> None:
    on_server.make()
    forged = {"penstock-origin": "q", "penstock-origin-error": "x"}
    for headers in (forged, forged | {"trace": "x"}):
        sql_push(on_server, own, "q", "1", headers=msgspec.json.encode(headers).decode())
    own.commit()
    assert [message.headers for message in on_server.lease(limit=9)] == [None, {"trace": "x"}]


def test_a_trigger_pushes_inserted_rows(on_server: PostgresUnderTest, own: psycopg.Connection) -> None:
    on_server.make("orders")
    own.execute(
        f"""
        CREATE TEMPORARY TABLE orders (id int);
        CREATE FUNCTION pg_temp.tell() RETURNS trigger LANGUAGE plpgsql AS $$
          BEGIN PERFORM {on_server.schema}.push('orders', to_jsonb(NEW)); RETURN NULL; END $$;
        CREATE TRIGGER tell AFTER INSERT ON orders FOR EACH ROW EXECUTE FUNCTION pg_temp.tell();
        """.encode()
    )
    own.execute("INSERT INTO orders SELECT generate_series(1, 3)")
    own.commit()
    assert texts(on_server.lease("orders", limit=9)) == ['{"id": 1}', '{"id": 2}', '{"id": 3}']


REFUSED: list[tuple[str | None, dict[str, Any], str]] = [
    ("1", {"key": ""}, "22023"),
    ("1", {"key": "a\nb"}, "22023"),
    ("1", {"delay_ms": -1}, "22023"),
    ("1", {"ttl_ms": 0}, "22023"),
    ("1", {"headers": '["x"]'}, "22023"),
    ("1", {"headers": '{"x": 1}'}, "22023"),
    ("1", {"headers": f'{{"x": "{"y" * 16_384}"}}'}, "22023"),
    (f'"{"x" * 524_287}"', {}, "22023"),
    (None, {}, "22004"),
    ("{", {}, "22P02"),
]


def test_sql_refuses_the_same_input_as_other_pushes(on_server: PostgresUnderTest, own: psycopg.Connection) -> None:
    on_server.make()
    for payload, options, state in REFUSED:
        with pytest.raises(psycopg.Error) as refused, own.transaction():
            sql_push(on_server, own, "q", payload, **options)
        assert refused.value.sqlstate == state
    own.commit()
    assert on_server.counts() == {}


def test_an_sql_error_names_the_missing_or_full_queue(on_server: PostgresUnderTest, own: psycopg.Connection) -> None:
    on_server.make(max_size=1)
    with pytest.raises(psycopg.errors.UndefinedObject, match='queue "none" does not exist'):
        sql_push(on_server, own, "none", "1")
    own.rollback()
    sql_push(on_server, own, "q", "1")
    with pytest.raises(psycopg.errors.ConfigurationLimitExceeded, match='queue "q" holds 1 of at most 1'):
        sql_push(on_server, own, "q", "1")


def test_sql_defaults_equal_the_model(on_server: PostgresUnderTest) -> None:
    """The SQL function repeats these defaults for queues that do not set the options."""
    defaults = QueueOptions()
    assert (defaults.delay_ms, defaults.ttl_ms, defaults.dedupe_ms) == (0, None, 86_400_000)
    assert (defaults.max_size, defaults.push_rate, defaults.push_burst, defaults.journal) == (None, None, None, "full")
