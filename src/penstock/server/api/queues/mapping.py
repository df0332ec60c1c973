"""Maps requests of the queue API to broker commands, and their results to responses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from penstock.core.commands import SettleItem
from penstock.core.ids import DLQ_SUFFIX
from penstock.core.model import State
from penstock.server.http.messages import Request, Response, reply, reply_binary
from penstock.wire.binary_batches import BinarySettled
from penstock.wire.http_errors import HttpError
from penstock.wire.queues import SettledItems, SettledOne


def option_changes(body: Any) -> tuple[dict[str, Any], Any]:
    """Return the options that were sent, under their internal names, and the secret, which is no option."""
    changes = {key: value for key, value in msgspec.structs.asdict(body).items() if value is not msgspec.UNSET}
    changes.pop("name", None)
    secret = changes.pop("secret", msgspec.UNSET)
    if "visibility_ms" in changes:
        if "lease_ms" in changes:
            raise HttpError(
                422, "invalid_value", "visibility_ms is an alias of lease_ms; send one", field="visibility_ms"
            )
        changes["lease_ms"] = changes.pop("visibility_ms")
    return changes, secret


def check_dlq(request: Request, queue: str, dlq: Any) -> None:
    """Raise if dead letters would go to a queue that the caller may not push to."""
    if isinstance(dlq, str) and dlq.removesuffix(DLQ_SUFFIX) != queue and not request.principal.may("push", dlq):
        raise HttpError(403, "forbidden", f"permission denied for queue {dlq!r}", field="dlq")


def settle_item(sent: Any) -> SettleItem:
    """Convert an ack or extend, which only have id and token, or a nack."""
    if not hasattr(sent, "error"):
        return SettleItem(sent.id, sent.token)
    return SettleItem(sent.id, sent.token, sent.delay_ms, sent.error, sent.traceback, sent.dead, sent.discard)


def settle_items(request: Request, body: Any) -> list[SettleItem]:
    """Return the single item, or those under `items`."""
    if body.items is msgspec.UNSET:
        if body.id is msgspec.UNSET:
            raise HttpError(422, "invalid_value", "missing id or items", field="id")
        sent = [body]
    elif body.id is not msgspec.UNSET:
        raise HttpError(422, "invalid_value", "send id or items, not both", field="items")
    else:
        sent = body.items
    items = [settle_item(each) for each in sent]
    check_tokens(request, items)
    return items


def check_tokens(request: Request, items: Sequence[SettleItem]) -> None:
    """Require the admin right to settle without a token, because that may settle another worker's lease."""
    if any(item.token is None for item in items) and not request.principal.may("admin", request.params["queue"]):
        raise HttpError(403, "forbidden", "missing lease token", field="token", hint="only an admin may omit it")


def settled(
    body: Any,
    items: Sequence[SettleItem],
    results: Sequence[Any],
    *,
    states: Sequence[State | None] = (),
    leased_until: int | None = None,
    binary: bool = False,
) -> Response:
    """Return the results of `items`; raise the error of a single item that failed."""
    if body.items is msgspec.UNSET:
        if results[0] == "stale":
            raise HttpError(409, "lease_lost", f"the lease on message {items[0].id} is no longer yours")
        if results[0] == "unknown":
            raise HttpError(404, "unknown_message", f"message {items[0].id} does not exist")
    if binary:
        return reply_binary(BinarySettled(results), rows=len(results))
    shown = [
        SettledOne(item.id, result, states[number] if states else None)
        for number, (item, result) in enumerate(zip(items, results, strict=True))
    ]
    return reply(SettledItems(shown, leased_until), rows=len(shown))


def by_queue(request: Request, home: str, items: Sequence[Any]) -> Iterator[tuple[str, list[Any]]]:
    """Group items by queue; raise if the caller may not use one."""
    groups: dict[str, list[Any]] = {}
    for item in items:
        groups.setdefault(item.queue or home, []).append(item)
    for queue in groups:
        if not request.principal.may("read", queue):
            raise HttpError(403, "forbidden", f"permission denied for queue {queue!r}")
    yield from groups.items()


def message_id(request: Request) -> tuple[str, int]:
    text = request.params["id"]
    if not text.isascii() or not text.isdigit() or len(text) > 15:
        raise HttpError(422, "invalid_value", f"invalid message id {text[:32]!r}; expected a whole number", field="id")
    return request.params["queue"], int(text)
