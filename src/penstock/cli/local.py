"""The backend on a queue file, without a server. A running server may use the file at the same time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from penstock.broker._sync.broker import Broker
from penstock.cli.backend import Data, KeyOwner, Outgoing, Verb, without_lease
from penstock.core.commands import Settled, SettleItem
from penstock.core.model import Progress, PushItem, QueueOptions, State, system_clock
from penstock.errors import CannotOpen, Conflict, InvalidInput, NotFound, UnknownMessage, UnknownQueue
from penstock.log.files import make_folder
from penstock.ops.backup import Copied, back_up
from penstock.server.api.queues.import_lines import check_imported, imported
from penstock.server.api.workers import worker_view
from penstock.server.signatures import SIGNATURE_NAME, check_signature
from penstock.store.sqlite import SqliteStore
from penstock.store.sqlite.probe import check_penstock_database
from penstock.store.workers import cursor
from penstock.wire import payloads
from penstock.wire.queue_views import export_line, message_view, polled_message, queue_view, stats_view
from penstock.wire.queues import ImportedMessage, KeyView

PAGE = 1_000

_imported_message = msgspec.json.Decoder(ImportedMessage)


class LocalBackend:
    def __init__(self, path: Path, *, create: bool) -> None:
        if create:
            make_folder(path.parent)
        elif not path.is_file():
            raise CannotOpen(
                f"{path} does not exist", hint="create it with `penstock queue create` and the same option"
            )
        else:
            check_penstock_database(path)
        self._store = SqliteStore(path)
        self._broker = Broker(self._store)

    def list_queues(self, prefix: str) -> Iterator[Data]:
        after = None
        while True:
            found = self._broker.list_queues(prefix=prefix, after=after, limit=PAGE)
            yield from (_plain(queue_view(info)) for info in found)
            if len(found) < PAGE:
                return
            after = found[-1].name

    def create_queue(self, name: str, options: Mapping[str, Any]) -> tuple[Data, bool]:
        changes, secret = _split(options)
        configured = self._broker.configure(name, changes, create=QueueOptions(), exact=True)
        if configured.created:
            self._set_secret(name, secret)
        elif secret is not UNSET and self._broker.find_secret(name) != secret:
            raise Conflict(f"queue {name!r} exists with another secret", hint="change it with `penstock queue update`")
        return _plain(queue_view(configured.info)), configured.created

    def change_queue(self, name: str, options: Mapping[str, Any]) -> Data:
        changes, secret = _split(options)
        configured = self._broker.configure(name, changes)
        self._set_secret(name, secret)
        return _plain(queue_view(configured.info))

    def _set_secret(self, name: str, secret: str | UnsetType | None) -> None:
        if secret is not UNSET:
            self._broker.set_secret(name, secret)

    def show_queue(self, name: str) -> Data:
        info = self._broker.find_queue(name)
        if info is None:
            raise UnknownQueue(name)
        return _plain(queue_view(info))

    def drop_queue(self, name: str, *, force: bool) -> Data:
        return {"dropped": name, "messages": self._broker.drop(name, force=force)}

    def pause_queue(self, name: str, *, paused: bool) -> Data:
        return _plain(queue_view(self._broker.pause(name, paused=paused)))

    def compact(self, name: str) -> None:
        self.show_queue(name)
        self._broker.compact()

    def stats(self, name: str) -> Data:
        return _plain(stats_view(self._broker.stats(name)))

    def purge(self, name: str, *, dead: bool, dry_run: bool) -> Data:
        states = (State.DEAD,) if dead else (State.READY, State.SCHEDULED)
        if dry_run:
            info = self._broker.stats(name).info
            # The name of a dead-letter queue stands for the dead letters only.
            states = states if info.name == name else (State.DEAD,)
            return {"purged": sum(getattr(info, state) for state in states), "dry_run": True}
        return {"purged": self._broker.purge(name, states), "dry_run": False}

    def peek(self, name: str, *, state: str, limit: int) -> list[Data]:
        found: list[Data] = []
        after = None
        while len(found) < limit:
            size = min(limit - len(found), PAGE)
            page, after = self._broker.peek(name, state=State(state), limit=size, after=after)
            found += (_plain(message_view(message)) for message in page)
            if after is None or not page:
                break
        return found

    def requeue(self, name: str, *, where: Mapping[str, Any], rate_per_s: float | None, dry_run: bool) -> Data:
        older_than_ms = where.get("older_than_ms")
        redriven = self._broker.redrive(
            name,
            ids=where.get("ids"),
            error_contains=where.get("error_contains"),
            died_before=None if older_than_ms is None else system_clock() - older_than_ms,
            rate_per_s=rate_per_s,
            dry_run=dry_run,
        )
        return {"matched": redriven.matched, "moved": redriven.moved, "skipped": redriven.matched - redriven.moved}

    def push(self, queue: str, messages: Sequence[Outgoing]) -> Data:
        secret = self._broker.find_secret(queue)
        receipts = self._broker.push(queue, [_new_message(message, secret) for message in messages])
        return {
            "message_ids": [receipt.id for receipt in receipts],
            "duplicates": [position for position, receipt in enumerate(receipts) if receipt.duplicate],
        }

    def poll(
        self, queue: str, *, batch: int, wait_ms: int, visibility_ms: int | None, worker: str | None
    ) -> list[Data]:
        leased = self._broker.lease(queue, limit=batch, lease_ms=visibility_ms, worker=worker, wait_ms=wait_ms)
        return [_plain(polled_message(message)) for message in leased]

    def take(self, queue: str, *, batch: int, wait_ms: int) -> list[Data]:
        taken = self._broker.take(queue, limit=batch, wait_ms=wait_ms)
        return [without_lease(_plain(polled_message(message))) for message in taken]

    def settle(self, verb: Verb, queue: str, items: Sequence[Data], *, ms: int | None = None) -> Data:
        sent = [msgspec.convert({"token": None, **each}, SettleItem) for each in items]
        if verb == "ack":
            return {"results": _results(sent, self._broker.ack(queue, sent))}
        if verb == "nack":
            nacked = self._broker.nack(queue, sent)
            return {"results": _results(sent, nacked.results, nacked.states)}
        extended = self._broker.extend(queue, sent, lease_ms=ms)
        results = _results(sent, extended.results)
        if extended.leased_until is None:
            return {"results": results}
        return {"results": results, "lease_expires_at": extended.leased_until}

    def get(self, queue: str, message_id: int) -> Data:
        message = self._broker.get(queue, message_id)
        if message is None:
            raise UnknownMessage(queue, message_id)
        return _plain(message_view(message))

    def remove(self, queue: str, message_id: int) -> None:
        if not self._broker.remove(queue, [message_id]):
            raise UnknownMessage(queue, message_id)

    def export(self, queue: str) -> Iterator[bytes]:
        self.show_queue(queue)
        for message in self._broker.export(queue):
            yield export_line(message)

    def import_(self, queue: str, lines: Iterable[bytes]) -> Data:
        self.show_queue(queue)
        work = []
        skipped = 0
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                message = _imported_message.decode(line)
            except msgspec.DecodeError as error:
                raise InvalidInput(f"line {number} is not an exported message: {error}") from None
            if message.state == State.ARCHIVED:
                skipped += 1
            else:
                work.append(message)
        held = self._broker.held(queue, [message.uuid for message in work if message.uuid])
        new = [message for message in work if message.uuid not in held]
        messages = [imported(message) for message in new]
        check_imported(self._broker.find_secret(queue), messages)
        receipts = self._broker.push(queue, messages) if messages else []
        added = sum(not receipt.duplicate for receipt in receipts)
        return {"imported": added, "duplicates": len(work) - added, "skipped": skipped}

    def add_key(self, owner: KeyOwner, *, name: str, rights: Sequence[str]) -> Data:
        from penstock.server.auth import new_key

        key_id, secret, digest = new_key()
        if owner.queue is not None:
            key = self._broker.add_key(owner.queue, id=key_id, name=name, hash=digest, rights=rights)
        else:
            key = self._broker.add_stream_key(owner.name, id=key_id, name=name, hash=digest, rights=rights)
        return _plain(KeyView.of(key, secret))

    def list_keys(self, owner: KeyOwner) -> list[Data]:
        if owner.queue is not None:
            self.show_queue(owner.queue)
            keys = self._broker.list_keys(owner.queue)
        else:
            keys = self._broker.list_stream_keys(owner.name)
        return [_plain(KeyView.of(key)) for key in keys]

    def remove_key(self, owner: KeyOwner, key_id: str) -> None:
        if owner.queue is not None:
            removed = self._broker.remove_key(owner.queue, key_id)
        else:
            removed = self._broker.remove_stream_keys(owner.name, key_id)
        if not removed:
            raise NotFound(f"there is no such key on this {'queue' if owner.queue else 'stream'}")

    def workers(self) -> Iterator[Data]:
        after = None
        while page := self._broker.workers(after=after, limit=PAGE):
            yield from (_plain(worker_view(each)) for each in page)
            after = cursor(page[-1])

    def backup(self, target: Path, progress: Progress) -> Copied:
        return back_up(self._store, target, progress)

    def close(self) -> None:
        self._broker.close()


def _plain(view: Any) -> Data:
    """Return the view as a client gets it over HTTP."""
    data: Data = msgspec.json.decode(msgspec.json.encode(view))
    return data


def _split(options: Mapping[str, Any]) -> tuple[Data, str | UnsetType | None]:
    """Return the options of the broker, and the secret, which is stored apart from them."""
    changes = dict(options)
    secret = changes.pop("secret", UNSET)
    if "visibility_ms" in changes:
        changes["lease_ms"] = changes.pop("visibility_ms")
    return changes, secret


def _new_message(message: Outgoing, secret: str | None) -> PushItem:
    payload, content = payloads.read(message.payload, message.encoding)
    headers = message.headers
    if secret is not None:
        check_signature(secret, payload, message.signature)
    if message.signature is not None:
        headers = {**(headers or {}), SIGNATURE_NAME: message.signature}
    return PushItem(
        payload=payload,
        content=content,
        priority=message.priority,
        delay_ms=message.delay_ms,
        ttl_ms=message.ttl_ms,
        key=message.idempotency_key,
        headers=headers,
    )


def _results(
    items: Sequence[SettleItem], results: Sequence[Settled], states: Sequence[State | None] = ()
) -> list[Data]:
    shown: list[Data] = [{"id": item.id, "result": str(result)} for item, result in zip(items, results, strict=True)]
    for each, state in zip(shown, states, strict=False):
        if state is not None:
            each["state"] = str(state)
    return shown
