"""Adds, changes and removes models."""

from __future__ import annotations

from contextlib import closing
from typing import Any

from msgspec.structs import replace

from penstock.errors import Conflict, InvalidInput
from penstock.pipeline.lake.lake import Lake
from penstock.pipeline.models.catalog import tables_of_model
from penstock.pipeline.models.definitions import Definition, Definitions, checked, extended
from penstock.pipeline.models.sql_files import parse


def add(lake: Lake, app: str, name: str, queue: str, schema: Any) -> Definition:
    """Add a typed model, or extend the schema of an existing one for messages from now on."""
    definitions = Definitions(lake)
    definitions.check_name(name, "typed")
    known = definitions.all().get(name)
    if known is None:
        version = checked(schema)
        found = Definition(
            name=name,
            kind="typed",
            queue=queue,
            versions=(version,),
            generation=definitions.next_generation(name),
        )
        definitions.put(found)
        return found
    if known.queue != queue:
        raise Conflict(
            f"model {name!r} reads queue {known.queue!r}", hint="remove it first, or choose another name for this one"
        )
    checked(schema)
    with closing(lake.lock()):  # A step that runs would still use the old schema.
        positions = [table.position(app) or 0 for table in tables_of_model(lake, known) if table.exists()]
        found = extended(known, checked(schema, max(positions, default=0)))
        if found != known:
            definitions.put(found)
    return found


def new_generation(lake: Lake, name: str, schema: Any = None) -> Definition:
    """Have the next step compute all rows anew, with a new schema if one is given. Needs the lake's lock."""
    definitions = Definitions(lake)
    known = definitions.get(name)
    found = replace(known, generation=known.generation + 1)
    if known.kind == "typed":
        found = replace(found, versions=(checked(known.newest.schema if schema is None else schema),))
    elif schema is not None:
        raise InvalidInput(f"model {name!r} is a query, which has no schema")
    definitions.put(found)
    return found


def remove(lake: Lake, name: str) -> None:
    """Remove a model and the rows of its tables."""
    definitions = Definitions(lake)
    found = definitions.get(name)
    with closing(lake.lock()):
        for other in definitions.all().values():
            if other.kind == "sql" and any(each.name == name for each in parse(other.name, other.sql).inputs):
                raise Conflict(f"model {other.name!r} reads {name!r}", hint="remove that one first")
        definitions.put(replace(found, removed=True))
        for table in tables_of_model(lake, found):
            if table.exists():
                table.clear()
