"""Messages for a typed model, good and bad, and what its tables should hold of them."""

from __future__ import annotations

import json
import random
from contextlib import closing
from pathlib import Path
from typing import Any

from penstock.core.commands import PushItem
from penstock.pipeline.lake.lake import Lake, app_of
from penstock.pipeline.models import manage
from penstock.pipeline.models.catalog import tables_of_model
from penstock.pipeline.models.definitions import Definition, Definitions
from penstock.pipeline.run import Pipeline
from penstock.pipeline.source.log_sources import FolderLocation
from tests.spark.support import Work

ORDERS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "id": {"type": "integer", "description": "the shop's number"},
        "customer": {"type": "string"},
        "amount": {"type": "number"},
        "paid": {"type": "boolean"},
        "address": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["id", "customer"],
}
_BAD = (b"", b"{", b"[1]", b"null", b'{"id":1}', b'{"id":1.5,"customer":"a"}', b'\xff{"id":1,"customer":"a"}')


def bodies(count: int, seed: int) -> list[bytes]:
    chance = random.Random(seed)
    return [_body(chance) for _ in range(count)]


def _body(chance: random.Random) -> bytes:
    if chance.random() < 0.1:
        return chance.choice(_BAD)
    value: dict[str, Any] = {"id": chance.randint(-(2**63), 2**63 - 1), "customer": f"c{chance.randint(0, 9)} ü"}
    anything: tuple[Any, ...] = (None, True, 7, -0.5, "x", "2026-01-31T12:00:00Z", [], ["a"], [1], {}, {"city": "B"})
    for name in ("amount", "paid", "address", "tags", "extra"):
        if chance.random() < 0.6:
            value[name] = chance.choice(_GOOD[name]) if chance.random() < 0.95 else chance.choice(anything)
    return json.dumps(value, ensure_ascii=chance.random() < 0.5).encode()


_GOOD: dict[str, tuple[Any, ...]] = {
    "amount": (0, 1.25, -3, 1e300),
    "paid": (True, False),
    "address": ({"city": "Bern"}, {"city": "Rom", "zip": 5}, None),
    "tags": ([], ["a", "b"], None),
    "extra": (1, {"deep": [1]}),
}


def fits(body: bytes) -> dict[str, Any] | None:
    """Return the columns of a body, by the rules of ORDERS; None if it does not fit."""
    try:
        value = json.loads(body.decode())
    except ValueError:
        return None
    if not isinstance(value, dict):
        return None
    if type(value.get("id")) is not int or not isinstance(value.get("customer"), str):
        return None
    amount, paid, address, tags = (value.get(name) for name in ("amount", "paid", "address", "tags"))
    good = (
        (amount is None or type(amount) in (int, float))
        and (paid is None or type(paid) is bool)
        and (address is None or (isinstance(address, dict) and isinstance(address.get("city"), str)))
        and (tags is None or (isinstance(tags, list) and all(isinstance(tag, str) for tag in tags)))
    )
    if not good:
        return None
    return {
        "payload_id": value["id"],
        "customer": value["customer"],
        "amount": None if amount is None else float(amount),
        "paid": paid,
        "address": None if address is None else {"city": address["city"]},
        "tags": tags,
    }


def push(work: Work, *payloads: bytes, queue: str = "orders") -> None:
    for at in range(0, len(payloads), 7):
        work.send(*(PushItem(payload=payload) for payload in payloads[at : at + 7]), queue=queue)


def run(spark: Any, work: Work, lake: Lake, **how: Any) -> int:
    with Pipeline(spark, work.drained(), lake, **how) as pipeline:
        return sum(1 for _ in pipeline.steps())


def add(work: Work, lake: Lake, schema: dict[str, Any] = ORDERS, name: str = "orders") -> Definition:
    with closing(FolderLocation(str(work.journal)).open()) as log:
        return manage.add(lake, app_of(log.uid), name, "orders", schema)


def rows(lake: Lake, name: str, part: int = 0) -> list[dict[str, Any]]:
    """The rows of a model, or of its quarantine table, as delta-rs reads them."""
    table = tables_of_model(lake, Definitions(lake).get(name))[part]
    found: list[dict[str, Any]] = table.delta.to_pyarrow_table().to_pylist()
    return sorted(found, key=lambda row: (row.get("offset", 0), row.get("number", 0), repr(list(row.values()))))


def write(folder: Path, **models: str) -> Path:
    folder.mkdir(exist_ok=True)
    for name, text in models.items():
        (folder / f"{name}.sql").write_text(text)
    return folder
