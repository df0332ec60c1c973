"""All tables of a lake: those of every lake, and those of the user's models."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from penstock.pipeline.lake.data_files import NewFile
from penstock.pipeline.lake.lake import Lake, LakeTable
from penstock.pipeline.lake.tables import Table
from penstock.pipeline.models.definitions import DEFINITIONS, REJECTS, Definition, Definitions
from penstock.pipeline.models.results import EXPECTATIONS


class ModelTable(LakeTable):
    """A table whose position belongs to one generation of its model.

    A new generation has no position, so its rows start at the journal's beginning, and its first commit replaces those
    of the generation before. Until then readers find the old rows.
    """

    def __init__(self, lake: Lake, table: Table, generation: int) -> None:
        super().__init__(lake[table].folder, table)
        self.lake = lake
        self.generation = generation

    def position(self, app: str) -> int | None:
        return self.transaction(f"{app}:{self.generation}")

    def commit(self, files: Sequence[NewFile], app: str, position: int, *, replace: bool = False) -> None:
        """Add files, or replace all rows, as a new generation always does, and move the position."""
        add = self.replace if replace or self.position(app) is None else self.append
        add(files, f"{app}:{self.generation}", position)

    def merge(self, rows: pa.Table, app: str, position: int) -> None:
        """Replace the rows with the same keys, and move the position."""
        self.put(rows, f"{app}:{self.generation}", position)

    def clear(self) -> None:
        """Remove all rows and their files."""
        self.table = as_it_is(self).table
        self.replace([], f"removed:{self.generation}", 0)
        self.vacuum(0)


def tables_of(lake: Lake) -> list[LakeTable]:
    """Return every table of the lake that exists."""
    return [*lake.tables(), *model_tables(lake)]


def model_tables(lake: Lake) -> list[LakeTable]:
    """Return the tables of models, with the columns that they have now."""
    found: list[LakeTable] = []
    for definition in Definitions(lake).all().values():
        found += (as_it_is(table) for table in tables_of_model(lake, definition) if table.exists())
    found += (lake[table] for table in (DEFINITIONS, EXPECTATIONS) if lake[table].exists())
    return found


def removed_tables(lake: Lake) -> list[LakeTable]:
    """Return the tables that removed models have left, without rows."""
    present = {table.table.name for table in model_tables(lake)}
    names = [f"model.{name}{part}" for name in Definitions(lake).names() for part in ("", REJECTS)]
    tables = [lake[Table(name, pa.schema([]), (), (), "")] for name in names if name not in present]
    return [table for table in tables if table.exists()]


def tables_of_model(lake: Lake, definition: Definition) -> list[ModelTable]:
    return [ModelTable(lake, table, definition.generation) for table in definition.tables]


def as_it_is(table: ModelTable) -> ModelTable:
    """Return a table with the columns of its newest commit, which may be of the generation before."""
    found, schema = table.table, pa.schema(table.delta.schema().to_arrow())
    shown = Table(found.name, schema, found.keys, found.ranged, found.about, found.changes, found.note)
    there = ModelTable(table.lake, shown, table.generation)
    there.delta = table.delta
    return there
