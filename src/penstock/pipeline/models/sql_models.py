"""Runs SQL models on Spark, after the tables that they read."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pyarrow as pa
from msgspec.structs import replace

from penstock.errors import Conflict, InvalidInput
from penstock.pipeline.lake.data_files import NewFile
from penstock.pipeline.lake.files import write_batches, write_files
from penstock.pipeline.lake.lake import Lake, LakeTable
from penstock.pipeline.lake.tables import TABLES, Table
from penstock.pipeline.models.catalog import ModelTable, as_it_is, tables_of_model
from penstock.pipeline.models.checks import Rows, check
from penstock.pipeline.models.definitions import Definition
from penstock.pipeline.models.expectations import check_columns, check_distinct
from penstock.pipeline.models.sql_files import Input, SqlModel, parse

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_LINE = re.compile(r"line (\d+)")


class SqlRunner:
    """Runs one SQL model."""

    def __init__(self, spark: SparkSession, lake: Lake, definition: Definition, app: str) -> None:
        self.definition = definition
        self.model = parse(definition.name, definition.sql)
        [self.table] = tables_of_model(lake, definition)
        self._spark = spark
        self._lake = lake
        self._app = app

    def is_behind(self, position: int) -> bool:
        return not self.table.exists() or self.table.position(self._app) != position

    def run(self, others: Mapping[str, Definition], end: int) -> Definition | None:
        """Bring the table up to an offset.

        Return the definition of a new generation if the columns changed, for which it must run again.
        """
        start = self.table.position(self._app) if self.table.exists() else None
        with frame_of(self._spark, self._lake, self.model, others, start or 0, end) as frame:
            table = self.table = self._shaped(frame)
            if start is None or not self.model.incremental:
                if not table.exists():
                    table.create()
                files = write_files(frame, table.folder, table.table)
                self._check(table, {}, files, end)
                table.commit(files, self._app, end, replace=True)
            elif not table.table.schema.equals(as_it_is(self.table).table.schema):
                return replace(self.definition, generation=self.definition.generation + 1)
            elif self.model.keys:
                self._merge(table, frame, end)
            else:
                files = write_files(frame, table.folder, table.table)
                self._check(table, table.sizes(), files, end)
                table.commit(files, self._app, end)
        return None

    def _shaped(self, frame: DataFrame) -> ModelTable:
        """Return the table with the columns of the query."""
        found, schema = self.table.table, columns_of(frame, self.model)
        table = Table(found.name, schema, self.model.keys, (), self.model.about or found.about, found.changes)
        return ModelTable(self._lake, table, self.table.generation)

    def _merge(self, table: ModelTable, frame: DataFrame, end: int) -> None:
        rows = frame.toArrow().cast(table.table.schema)
        keys = rows.select(list(self.model.keys))
        if any(column.null_count for column in keys.columns):
            raise Conflict(f"{self.model.file}: a key is null", hint="leave such rows out")
        if keys.group_by(list(self.model.keys)).aggregate([]).num_rows < rows.num_rows:
            raise Conflict(f"{self.model.file}: two rows have the same key", hint="group by the key")
        # These files are only for the checks; the merge writes its own.
        files = list(write_batches(rows.to_batches(), table.folder, table.table)) if self.model.expectations else []
        self._check(table, table.sizes(), files, end, self.model.keys)
        table.merge(rows, self._app, end)

    def _check(
        self, table: LakeTable, kept: dict[str, int], files: list[NewFile], end: int, keys: tuple[str, ...] = ()
    ) -> None:
        rows = Rows(table, kept, files, keys=keys)
        check(self._spark, self._lake, self.model.name, self.model.expectations, rows, self._app, end)


@contextmanager
def frame_of(
    spark: SparkSession, lake: Lake, model: SqlModel, others: Mapping[str, Definition], start: int, end: int
) -> Iterator[DataFrame]:
    """Yield the result of a model's query, in which new rows are those between two offsets."""
    from pyspark.errors import PySparkException

    views = sorted(each.view for each in model.inputs)
    try:
        for each in model.inputs:
            _input(spark, lake, each, others, start, end).createOrReplaceTempView(each.view)
        try:
            spark._jsparkSession.sessionState().sqlParser().parseQuery(model.query)
            yield spark.sql(model.query)
        except PySparkException as error:
            raise _wrong(model, str(error)) from None
    finally:
        for view in views:
            spark.catalog.dropTempView(view)


def _input(
    spark: SparkSession, lake: Lake, each: Input, others: Mapping[str, Definition], start: int, end: int
) -> DataFrame:
    if each.name in TABLES:
        table: LakeTable = lake[TABLES[each.name]].refresh()
    else:
        table = as_it_is(tables_of_model(lake, others[each.name])[0])
    if not each.new:
        return table.read(spark)
    found = table.read(spark, offset=start)
    # Another pipeline on the same object store may have added more already.
    return found.where((found["offset"] >= start) & (found["offset"] < end))


def columns_of(frame: DataFrame, model: SqlModel) -> pa.Schema:
    """Return the columns of a query; raise if a Delta table, or the model's header, cannot have them."""
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import to_arrow_schema

    try:
        schema = to_arrow_schema(frame.schema, timezone="UTC")
    except PySparkException as error:
        raise InvalidInput(f"{model.file}: {str(error).partition(chr(10))[0]}") from error
    for field in schema:
        if _is_unsupported(field.type):
            raise InvalidInput(
                f"{model.file}: column {field.name!r} has the type {field.type}, which Delta tables do not have",
                hint="cast it, for example to STRING or TIMESTAMP",
            )
    names = [name.lower() for name in schema.names]
    if repeated := [name for name in names if names.count(name) > 1]:
        raise InvalidInput(f"{model.file}: two columns are named {repeated[0]!r}", hint="name them with AS")
    if unknown := [key for key in model.keys if key not in schema.names]:
        raise InvalidInput(f"{model.file}: the key {unknown[0]!r} is not a column of the query")
    check_distinct(model.expectations)
    for each in model.expectations:
        check_columns(each, {field.name: field.type for field in schema})
    return pa.schema([field.with_nullable(True) for field in schema])


def _is_unsupported(kind: pa.DataType) -> bool:
    types = pa.types
    if types.is_nested(kind):
        return any(_is_unsupported(kind.field(number).type) for number in range(kind.num_fields))
    # Delta has timestamps without a time zone only as a feature that few readers know.
    without_zone = types.is_timestamp(kind) and kind.tz is None
    return without_zone or types.is_null(kind) or types.is_duration(kind) or types.is_interval(kind)


def _wrong(model: SqlModel, text: str) -> InvalidInput:
    reason = text.partition(" SQLSTATE:")[0].strip().partition("\n")[0]
    line = _LINE.search(text)
    place = f"{model.file}, line {line[1]}" if line else model.file
    return InvalidInput(f"{place}: {reason}", hint="a model reads tables with {{ ref('model') }} or source()")
