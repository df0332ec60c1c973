"""The inbox API, `/v1`: POST adds text; GET takes and archives it, at most once, or claims it until an ack."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from penstock.broker.broker import Broker
from penstock.config import Settings
from penstock.core.commands import Settled, SettleItem
from penstock.core.ids import ID_MAX, NAME_PATTERN
from penstock.core.model import Content, Delivery, PushItem, QueueOptions
from penstock.errors import InvalidName, UnknownQueue
from penstock.server.api.polling import poll, take
from penstock.server.background import CANARY_QUEUE
from penstock.server.http.messages import Request, Response, reply
from penstock.server.routing import Route
from penstock.server.signatures import SIGNATURE_HEADER, Signatures
from penstock.wire import payloads
from penstock.wire.http_errors import HttpError
from penstock.wire.signatures import SIGNATURE_NAME, check_signature

DEFAULT_TOPIC = "default"
Topic = Annotated[str, Meta(pattern=f"^{NAME_PATTERN}$")]
SETTLED_WORDS = {Settled.OK: "archived", Settled.STALE: "stale", Settled.UNKNOWN: "unknown"}


class NewText(Struct, forbid_unknown_fields=True):
    body: str
    topic: Topic = DEFAULT_TOPIC
    dedupe_key: Annotated[str, Meta(min_length=1, max_length=512)] | None = None


class Text(Struct, omit_defaults=True):
    id: int
    timestamp: str
    body: str
    encoding: str | None = None
    topic: str | None = None
    token: str | None = None
    claimed_until: str | None = None


class GetQuery(Struct, forbid_unknown_fields=True):
    limit: Annotated[int, Meta(ge=1)] | None = None
    topic: Topic = DEFAULT_TOPIC
    wait: Annotated[float, Meta(ge=0, le=60)] = 0
    """Seconds to wait for the first message."""
    mode: Literal["take", "claim"] = "take"
    visibility_timeout: Annotated[int, Meta(ge=1, le=86_400)] = 30


class AckOne(Struct, forbid_unknown_fields=True):
    id: Annotated[int, Meta(ge=1, le=ID_MAX)]
    token: str


class Acks(Struct, forbid_unknown_fields=True):
    acks: Annotated[list[AckOne], Meta(min_length=1, max_length=1000)]


class AckResult(Struct):
    id: int
    status: Literal["archived", "stale", "unknown"]


class AckResults(Struct):
    results: list[AckResult]


class TopicStats(Struct):
    topic: str
    new: int
    claimed: int
    archived: int
    dead: int


class StatsQuery(Struct, forbid_unknown_fields=True):
    limit: Annotated[int, Meta(ge=1, le=1_000)] = 1_000
    after: str | None = None


class InboxStats(Struct):
    topics: list[TopicStats]
    next: str | None = None


class Health(Struct):
    status: Literal["ok"]


new_text = msgspec.json.Decoder(NewText)
acks_decoder = msgspec.json.Decoder(Acks)


class Inbox:
    def __init__(self, broker: Broker, settings: Settings, signatures: Signatures) -> None:
        self._broker = broker
        self._settings = settings
        self._signatures = signatures
        self._options = QueueOptions(archive_ms=settings.retention_ms)

    def routes(self) -> list[Route]:
        call = partial(Route, tag="inbox")
        return [
            call(
                "POST",
                "/v1/messages",
                self.post,
                "Push a message",
                body=NewText,
                answers={201: Text, 200: Text},
                errors=(409,),
                headers=("X-Penstock-Signature", "traceparent"),
            ),
            call(
                "GET",
                "/v1/messages",
                self.get,
                "Take and archive messages, oldest first; or claim them",
                query=GetQuery,
                answers={200: list[Text]},
                errors=(409,),
                safe=False,
            ),
            call("POST", "/v1/acks", self.ack, "Archive claimed messages", body=Acks, answers={200: AckResults}),
            call(
                "GET",
                "/v1/stats",
                self.stats,
                "Counts per topic and state",
                query=StatsQuery,
                answers={200: InboxStats},
            ),
            call("GET", "/health", self.health, "Check that the store responds", answers={200: Health}),
        ]

    async def post(self, request: Request) -> Response:
        text = await request.json(new_text)
        request.named_queue = text.topic
        message = await self._new_message(request, text)
        [receipt] = await self._broker.push(text.topic, [message], create=self._options)
        body, encoding = text.body, None
        if receipt.duplicate:
            first = await self._broker.get(text.topic, receipt.id)
            if first is not None:
                body, encoding = _text_of(first.payload)
        answer = Text(receipt.id, payloads.rfc3339(receipt.created_at), body, encoding, _shown(text.topic))
        return reply(answer, 200 if receipt.duplicate else 201, rows=1)

    async def _new_message(self, request: Request, text: NewText) -> PushItem:
        payload = text.body.encode()
        headers: dict[str, str] = {}
        secret = await self._signatures.secret(text.topic)
        given = request.header(SIGNATURE_HEADER)
        if given is not None:
            headers[SIGNATURE_NAME] = given.decode("latin-1")
        if secret is not None:
            check_signature(secret, payload, headers.get(SIGNATURE_NAME))
        if request.traceparent is not None:
            headers["traceparent"] = request.traceparent
        return PushItem(payload=payload, content=Content.TEXT, key=text.dedupe_key, headers=headers or None)

    async def get(self, request: Request) -> Response:
        query = request.query(GetQuery)
        request.named_queue = query.topic
        limit = query.limit or self._settings.get_limit_default
        if limit > self._settings.get_limit_max:
            raise HttpError(
                422,
                "invalid_value",
                f"limit {limit} is too large",
                field="limit",
                hint=f"at most {self._settings.get_limit_max}",
            )
        if query.wait != query.wait:
            raise HttpError(422, "invalid_value", "wait must be a number of seconds", field="wait")
        wait_ms = int(query.wait * 1000)
        arguments = (self._broker, self._settings, request, query.topic)
        try:
            if query.mode == "claim":
                lease_ms = query.visibility_timeout * 1000
                claimed = await poll(*arguments, limit=limit, lease_ms=lease_ms, wait_ms=wait_ms, await_queue=True)
                shown = [_claimed(message) for message in claimed]
            else:
                taken = await take(*arguments, limit=limit, wait_ms=wait_ms, await_queue=True)
                shown = [_taken(message) for message in taken]
        except UnknownQueue:
            shown = []
        return reply(shown, rows=len(shown))

    async def ack(self, request: Request) -> Response:
        acks = (await request.json(acks_decoder)).acks
        by_topic: dict[str, list[tuple[int, SettleItem]]] = {}
        results = [AckResult(item.id, "unknown") for item in acks]
        for number, item in enumerate(acks):
            topic, _, token = item.token.rpartition(":")
            if topic:
                by_topic.setdefault(topic, []).append((number, SettleItem(item.id, token)))
        for topic, items in by_topic.items():
            try:
                settled = await self._broker.ack(topic, [item for _, item in items])
            except (UnknownQueue, InvalidName):
                continue
            for (number, _), result in zip(items, settled, strict=True):
                results[number].status = SETTLED_WORDS[result]  # type: ignore[assignment]
        return reply(AckResults(results), rows=len(results))

    async def stats(self, request: Request) -> Response:
        query = request.query(StatsQuery)
        found = await self._broker.list_queues(after=query.after, limit=query.limit)
        topics = [
            TopicStats(info.name, info.ready + info.scheduled, info.leased, info.archived, info.dead)
            for info in found
            if info.name != CANARY_QUEUE
        ]
        more = found[-1].name if len(found) == query.limit else None
        return reply(InboxStats(topics, more), rows=len(topics))

    async def health(self, request: Request) -> Response:
        await self._broker.list_queues(limit=1)
        return reply(Health("ok"))


def _text_of(payload: bytes) -> tuple[str, str | None]:
    """Return the body as a string, whichever API pushed it."""
    shown, encoding = payloads.show(payload, Content.TEXT)
    return shown, encoding


def _shown(topic: str) -> str | None:
    return None if topic == DEFAULT_TOPIC else topic


def _taken(message: Delivery) -> Text:
    body, encoding = _text_of(message.payload)
    return Text(message.id, payloads.rfc3339(message.created_at), body, encoding, _shown(message.queue))


def _claimed(message: Delivery) -> Text:
    text = _taken(message)
    # Acks do not name a topic, so the token contains it.
    text.token = f"{message.queue}:{message.token}"
    text.claimed_until = payloads.rfc3339(message.leased_until)
    return text
