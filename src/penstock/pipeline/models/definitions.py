"""The models of a lake, stored in the Delta table `model.definitions`, so that they work wherever the lake does.

A typed model has one version of its schema for each range of journal offsets: a schema that was extended applies to the
messages from then on, so that the table is a function of the journal and the definition alone.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
import pyarrow as pa
from msgspec import Struct
from msgspec.structs import replace

from penstock.errors import Conflict, InvalidInput, InvalidName, NotFound
from penstock.journal.arrow import TIME, columns
from penstock.pipeline.lake.lake import Lake
from penstock.pipeline.lake.storage import read_table
from penstock.pipeline.lake.tables import Table
from penstock.pipeline.models.decode import QUARANTINE, RESERVED, schema_of
from penstock.pipeline.models.expectations import Expectation, check_columns, check_distinct, expectation
from penstock.pipeline.models.fields import Field, fields_of, widened
from penstock.pipeline.models.sql_files import parse

DEFINITIONS = Table(
    "model.definitions",
    columns(
        ("name", pa.string()),
        ("definition", pa.string(), "JSON"),
        ("changed_at", TIME),
    ),
    ("name",),
    (),
    "one row per model of your own",
    changes=True,
)
_APP = "penstock:models"
_NAME = re.compile(r"[a-z][a-z0-9_]{0,62}")
_TAKEN = ("definitions", "expectations")
REJECTS = "_quarantine"


class Version(Struct, frozen=True):
    since: int
    """First offset of the journal to which the schema applies."""
    schema: dict[str, Any]
    """The JSON Schema, with `expectations`."""

    @property
    def root(self) -> Field:
        fields = {name: value for name, value in self.schema.items() if name != "expectations"}
        return fields_of(fields, reserved=RESERVED)

    @property
    def expectations(self) -> list[Expectation]:
        return [expectation(text) for text in self.schema.get("expectations", [])]


class Definition(Struct, frozen=True, kw_only=True):
    name: str
    kind: str
    """`typed` or `sql`."""
    queue: str = ""
    versions: tuple[Version, ...] = ()
    sql: str = ""
    """The text of a SQL model's file."""
    inputs: dict[str, int] = {}
    """Generation of each model that a SQL model reads."""
    generation: int = 1
    """Increases when all rows are computed anew."""
    removed: bool = False

    @property
    def newest(self) -> Version:
        return self.versions[-1]

    @property
    def tables(self) -> tuple[Table, ...]:
        """The model's table and, if typed, its quarantine table."""
        name = f"model.{self.name}"
        if self.kind == "sql":
            model = parse(self.name, self.sql)
            about = model.about or "the result of a query of your own"
            return (Table(name, pa.schema([]), model.keys, (), about, bool(model.keys)),)
        keys, ranged = ("offset", "number"), ("offset", "pushed_at")
        about = f"one row per message of queue {self.queue} whose body "
        return (
            Table(name, schema_of(self.newest.root), keys, ranged, about + "fits the schema"),
            Table(name + REJECTS, QUARANTINE, keys, ranged, about + f"does not fit the schema of model {self.name}"),
        )

    @property
    def expectations(self) -> Sequence[Expectation]:
        return self.newest.expectations if self.kind == "typed" else parse(self.name, self.sql).expectations


class Definitions:
    """Reads and writes the models of a lake."""

    def __init__(self, lake: Lake) -> None:
        self._table = lake[DEFINITIONS]
        self._found: dict[str, Definition] = {}
        self._version = -1

    def all(self) -> dict[str, Definition]:
        """Return the present models by name."""
        return {name: found for name, found in self._every().items() if not found.removed}

    def names(self) -> list[str]:
        """Return the names of all models, also of removed ones."""
        return list(self._every())

    def _every(self) -> dict[str, Definition]:
        if not self._table.exists():
            return {}
        version = self._table.refresh().delta.version()
        if version != self._version:
            rows = read_table(self._table.dataset(), ["definition"])["definition"].to_pylist()
            found = [msgspec.json.decode(row, type=Definition) for row in rows]
            self._found = {each.name: each for each in sorted(found, key=lambda each: each.name)}
            self._version = version
        return self._found

    def get(self, name: str) -> Definition:
        found = self.all()
        if name not in found:
            known = ", ".join(found) or "none"
            raise NotFound(f"model {name!r} does not exist", hint=f"models: {known}")
        return found[name]

    def put(self, definition: Definition) -> None:
        self._table.create()
        row = {
            "name": definition.name,
            "definition": msgspec.json.encode(definition).decode(),
            "changed_at": datetime.now(UTC),
        }
        rows = pa.Table.from_pylist([row], schema=DEFINITIONS.schema)
        self._table.put(rows, _APP, (self._table.refresh().position(_APP) or 0) + 1)

    def next_generation(self, name: str) -> int:
        """Return the generation of a model that is computed anew, after those of removed models of that name."""
        before = self._every().get(name)
        return 1 if before is None else before.generation + 1

    def check_name(self, name: str, kind: str) -> None:
        """Raise unless a model can have this name."""
        if not _NAME.fullmatch(name) or name in _TAKEN or name.endswith(REJECTS):
            raise InvalidName(
                f"{name!r} cannot be the name of a model",
                hint="use lower-case letters, digits and underscores, but not definitions, expectations, …_quarantine",
            )
        other = self.all().get(name)
        if other is not None and other.kind != kind:
            raise Conflict(f"{name!r} is already a {other.kind} model", hint="choose another name, or remove that one")


def checked(schema: Any, since: int = 0) -> Version:
    """Return the version of a schema that a user gave; raise if it cannot be a table."""
    if not isinstance(schema, dict):
        raise InvalidInput("the schema must be a JSON object")
    texts = schema.get("expectations", [])
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise InvalidInput("schema: expectations must be a list of strings")
    version = Version(since, schema)
    columns = {field.name: field.type for field in schema_of(version.root)}
    check_distinct(version.expectations)
    for each in version.expectations:
        check_columns(each, columns)
    return version


def extended(definition: Definition, version: Version) -> Definition:
    """Return the definition with a schema that applies from an offset on; raise if it does not extend the newest."""
    old = definition.newest
    if old.schema == version.schema:
        return definition
    widened(old.root, version.root)
    # A version that no message was decoded with is replaced.
    kept = [each for each in definition.versions if each.since < version.since]
    first = replace(version, since=0) if not kept else version
    return replace(definition, versions=(*kept, first))
