"""The lake: a folder of Delta tables. Spark tasks write the files; the driver commits them here, without a JVM.

Each table stores its position in the journal in the same commit as its rows (a Delta application transaction). So after
a crash, reading resumes where the table ends, without duplicates or gaps.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from functools import cached_property, reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction
from msgspec import Struct

from penstock.core.paths import local_path
from penstock.errors import CannotOpen, Conflict
from penstock.log.files import DISK, FolderLock, sync_path
from penstock.pipeline.lake.tables import BRONZE, TABLES, Table

if TYPE_CHECKING:
    import pyarrow.dataset as ds
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

LOCK = "lock"
# Spark must not treat brackets in a folder name as a glob pattern.
NO_GLOBS = "__globPaths__"
CHECKPOINT_COMMITS = 50
# Replacing rows rewrites whole files; with small ones, old rows soon have files of their own.
PUT_FILE_BYTES = 1 << 20
TIDY = (1_000, 24)
# Commits between compactions, and hours until replaced files are removed.
TIDY_CHANGING = (100, 1)
_STATISTICS = "delta.dataSkippingStatsColumns"
_LOG_RETENTION = "delta.logRetentionDuration"
_CONFIGURATION = {
    "delta.checkpointInterval": str(CHECKPOINT_COMMITS),
    _LOG_RETENTION: "interval 2 days",
}
_PUT_CONFIGURATION = _CONFIGURATION | {"delta.targetFileSize": str(PUT_FILE_BYTES)}
# More queues than this are looked for by their first and last name.
QUEUES_MAX = 100


class NewFile(Struct, frozen=True):
    """A Parquet file that a task has written but no table has committed."""

    path: str
    """Path within the table's folder."""
    bytes: int
    rows: int
    least: dict[str, Any]
    greatest: dict[str, Any]
    nulls: dict[str, int] = {}

    def action(self, *, changes_data: bool = True) -> AddAction:
        stats = {
            "numRecords": self.rows,
            "minValues": _as_json(self.least),
            "maxValues": _as_json(self.greatest),
            "nullCount": self.nulls,
        }
        return AddAction(self.path, self.bytes, {}, _now_ms(), changes_data, msgspec.json.encode(stats).decode())


class Size(Struct, frozen=True, kw_only=True):
    table: str
    rows: int
    files: int
    bytes: int
    version: int
    position: int | None
    """Journal offset up to which the table is complete."""


class LakeTable:
    """One table, at the version of its last refresh."""

    def __init__(self, folder: Path, table: Table) -> None:
        self.folder = folder
        self.table = table

    @cached_property
    def delta(self) -> DeltaTable:
        try:
            return DeltaTable(self.folder)
        except TableNotFoundError as error:
            raise CannotOpen(
                f"table {self.table.name} does not exist in {self.folder.parent.parent}",
                hint="run `penstock pipeline run`",
            ) from error

    def create(self) -> None:
        """Create the table if it does not exist, and add columns that are new in this release."""
        self.folder.mkdir(parents=True, exist_ok=True)
        configuration = dict(_PUT_CONFIGURATION if self.table.changes else _CONFIGURATION)
        if self.table.ranged:
            # Others would only fill the log, with pieces of bodies and error texts.
            configuration[_STATISTICS] = ",".join(self.table.ranged + self.table.emptied)
        if not DeltaTable.is_deltatable(str(self.folder)):
            DeltaTable.create(
                self.folder,
                self.table.schema,
                mode="ignore",
                name=self.table.name,
                description=self.table.about,
                configuration=configuration,
            )
        elif not configuration.items() <= self.delta.metadata().configuration.items():
            self.delta.alter.set_table_properties(configuration)
        there = {field.name for field in self.delta.schema().fields}
        missing = [field for field in self.table.schema if field.name not in there]
        if missing:
            from deltalake import Schema

            self.delta.alter.add_columns(list(Schema.from_arrow(pa.schema(missing)).fields))

    def refresh(self) -> LakeTable:
        self.delta.update_incremental()
        return self

    def position(self, app: str) -> int | None:
        return self.delta.transaction_version(app)

    def entries(self, queues: Collection[str] = (), /, **least: Any) -> pa.Table:
        """Return a row per file, with its statistics, of those that may hold such values."""
        found = pa.table(self.delta.get_add_actions(flatten=True))
        if queues and "min.queue" in found.column_names:
            names = sorted(queues)
            ranges = zip(names, names, strict=True) if len(names) <= QUEUES_MAX else [(names[0], names[-1])]
            wanted = [
                pc.and_(pc.less_equal(found["min.queue"], last), pc.greater_equal(found["max.queue"], first))
                for first, last in ranges
            ]
            found = found.filter(pc.fill_null(reduce(pc.or_, wanted), True))
        for column, value in least.items():
            name = f"max.{column}"
            if found.num_rows and name in found.column_names:
                greatest = found[name]
                wanted = pc.greater_equal(greatest, pa.scalar(value, greatest.type))
                found = found.filter(pc.fill_null(wanted, True))
        return found

    def files(self, queues: Collection[str] = (), /, **least: Any) -> list[str]:
        """Return the table's files that may hold rows of these queues, with values of at least `least` in a column.

        Raise if one is missing, because results without it would be wrong.
        """
        return self._present(self.entries(queues, **least)["path"].to_pylist())

    def _present(self, paths: Sequence[str]) -> list[str]:
        files = [str(self.folder / path) for path in paths]
        missing = next((file for file in files if not Path(file).exists()), None)
        if missing is not None:
            raise self._missing_file(missing)
        return files

    def _missing_file(self, file: str) -> CannotOpen:
        return CannotOpen(
            f"{self.table.name} is missing the file {file}",
            hint="if `penstock pipeline compact` has just removed it, try again; otherwise restore the file, or rebuild"
            " the lake with `penstock pipeline run` and a new --lake",
        )

    def least_of(self, column: str, **least: Any) -> Any:
        """Return the minimum of a column over those files; None if there is none."""
        found = self.entries(**least)
        return pc.min(found[f"min.{column}"]).as_py() if found.num_rows else None

    def greatest_of(self, column: str | None) -> Any:
        """Return the maximum of a column from the files' statistics."""
        found = self.entries()
        name = f"max.{column}"
        return pc.max(found[name]).as_py() if found.num_rows and name in found.column_names else None

    def read(self, spark: SparkSession, queues: Collection[str] = (), /, **least: Any) -> DataFrame:
        """Read the table with Spark; `queues` and `least` skip files, not rows."""
        return read_files(spark, self.table.schema, self.files(queues, **least))

    def dataset(self, **least: Any) -> ds.Dataset:
        """Read the table with Arrow alone: threads of delta-rs call Python, perhaps during interpreter shutdown."""
        import pyarrow.dataset as ds  # Imported here, because it loads pandas, which takes a second.

        # Pass the whole schema, so that columns missing in older files are null.
        try:
            return ds.dataset(self.files(**least), schema=self.table.schema, format="parquet")
        except FileNotFoundError as error:
            raise self._missing_file(str(error)) from error

    def append(self, files: Sequence[NewFile], app: str, position: int) -> None:
        """Add files and move the position in one commit."""
        self.delta.create_write_transaction(
            [file.action() for file in files],
            mode="append",
            schema=self.delta.schema(),
            commit_properties=_position_commit(app, position),
        )
        self._sync()

    def replace(
        self,
        removed: Sequence[str],
        added: Sequence[NewFile],
        *,
        changes_data: bool = True,
        at: tuple[str, int] | None = None,
    ) -> None:
        """Replace files by others in one commit, which moves the position `at` an app, if given."""
        now_ms = _now_ms()
        actions: list[AddAction | RemoveAction] = [RemoveAction(path, changes_data, now_ms) for path in removed]
        actions += [file.action(changes_data=changes_data) for file in added]
        if not actions:
            return
        self.delta.create_write_transaction(
            actions,
            mode="append",
            schema=self.delta.schema(),
            commit_properties=None if at is None else _position_commit(*at),
        )
        self._sync()

    def properties(self) -> dict[str, str]:
        """Return the table's properties."""
        found: dict[str, str] = self.delta.metadata().configuration
        return found

    def set_property(self, name: str, value: str) -> None:
        self.delta.alter.set_table_properties({name: value}, raise_if_not_exists=False)
        self._sync()

    def put(self, rows: pa.Table, app: str, position: int, **least: Any) -> None:
        """Replace the rows with the same keys. `least` avoids reading older files."""
        if rows.num_rows == 0:
            self.append([], app, position)
            return
        # Files are split in row order; if sorted, later merges can skip older files.
        rows = rows.cast(self.table.schema).sort_by(
            [(key, "ascending") for key in self.table.ranged or self.table.keys]
        )
        same = [f"t.{key} = s.{key}" for key in self.table.keys]
        newer = [f"t.{column} >= {_literal(value)}" for column, value in least.items()]
        (
            self.delta.merge(
                rows,
                " AND ".join(same + newer),
                source_alias="s",
                target_alias="t",
                commit_properties=_position_commit(app, position),
            )
            .when_matched_update_all()
            .when_not_matched_insert_all()
            .execute()
        )
        self._sync()

    def _sync(self) -> None:
        """Fsync the files of the newest commit before its position is reported."""
        self.delta.update_incremental()
        log = self.folder / "_delta_log"
        newest = log / f"{self.delta.version():020}.json"
        for line in newest.read_bytes().splitlines():
            if line.startswith(b'{"add"'):
                sync_path(self.folder / msgspec.json.decode(line)["add"]["path"])
        sync_path(newest)
        DISK.sync_folder(self.folder)
        DISK.sync_folder(log)

    def compact(self) -> dict[str, int]:
        """Replace many small files by few large ones, with the same rows."""
        if self.table.clustered:
            from penstock.pipeline.lake.compaction import compact

            return compact(self)
        found = self.delta.optimize.compact()
        self._sync()
        return {"removed": found["numFilesRemoved"], "added": found["numFilesAdded"]}

    def vacuum(self, hours: int) -> int:
        """Remove files that no version of the last hours needs, and leftovers of killed tasks."""
        removed = self.delta.vacuum(hours, dry_run=False, enforce_retention_duration=False, full=True)
        self.refresh()
        return len(removed)

    def purge(self) -> None:
        """Remove every file that the current version does not need, and the log of all versions before it.

        What is left of removed files in the log, such as statistics, goes too. Readers of older versions fail.
        """
        self.vacuum(0)
        properties = self.properties()
        self.set_property(_LOG_RETENTION, "interval 0 seconds")
        self.delta.create_checkpoint()
        self.delta.cleanup_metadata()
        self.set_property(_LOG_RETENTION, properties[_LOG_RETENTION])

    def tidy(self) -> None:
        """Compact and vacuum at intervals, between steps: a step must not lose the files that it reads."""
        commits, hours = TIDY_CHANGING if self.table.changes else TIDY
        if self.delta.version() % commits == 0:
            self.compact()
            self.vacuum(hours)

    def size(self, app: str | None) -> Size:
        found = self.entries()
        self._present(found["path"].to_pylist())
        return Size(
            table=self.table.name,
            rows=pc.sum(found["num_records"]).as_py() or 0,
            files=found.num_rows,
            bytes=pc.sum(found["size_bytes"]).as_py() or 0,
            version=self.delta.version(),
            position=None if app is None else self.position(app),
        )


class Lake:
    def __init__(self, folder: Path | str) -> None:
        self.folder = local_path(folder, "lake")
        self._tables: dict[str, LakeTable] = {}

    def __getitem__(self, table: Table) -> LakeTable:
        found = self._tables.get(table.name)
        if found is None:
            found = self._tables[table.name] = LakeTable(self.folder.joinpath(*table.name.split(".")), table)
        return found

    def tables(self) -> list[LakeTable]:
        return [self[table] for table in TABLES.values()]

    def exists(self) -> bool:
        return DeltaTable.is_deltatable(str(self[BRONZE].folder))

    def create(self) -> None:
        for table in self.tables():
            table.create()

    def lock(self) -> FolderLock:
        """Take the lake's lock: one pipeline at a time."""
        self.folder.mkdir(parents=True, exist_ok=True)
        return FolderLock(self.folder / LOCK)

    def check_belongs(self, app: str) -> None:
        """Raise if the lake was filled from another journal, whose offsets have other meanings."""
        bronze = self[BRONZE]
        bronze_position = bronze.position(app) or 0
        for table in self.tables():
            if (table.position(app) or 0) > bronze_position:
                raise Conflict(
                    f"{table.table.name} is ahead of {BRONZE.name}, from which it is computed: files were removed",
                    hint="use another folder with --lake, or restore the files",
                )
        if bronze.position(app) is None and bronze.delta.get_add_actions().num_rows:
            raise Conflict(
                f"the lake in {self.folder} was filled from another journal",
                hint="use another folder with --lake",
            )


def app_of(uid: str) -> str:
    """Return the application id under which tables store their position in a journal."""
    return f"penstock:{uid}"


def read_files(spark: SparkSession, schema: pa.Schema, files: Sequence[str]) -> DataFrame:
    """Read Parquet files with the whole schema, so that columns missing in older files are null."""
    from pyspark.sql.pandas.types import from_arrow_schema

    shape = from_arrow_schema(schema)
    if not files:
        return _empty(spark, shape)
    return spark.read.schema(shape).option(NO_GLOBS, "false").parquet(*files)


def _empty(spark: SparkSession, shape: StructType) -> DataFrame:
    """Return an empty frame as a plan that Spark recognizes as empty, so that it skips all further work."""
    columns = [f"CAST(NULL AS {field.dataType.simpleString()}) AS `{field.name}`" for field in shape]
    return spark.range(1).where("false").selectExpr(columns)


def _position_commit(app: str, position: int) -> CommitProperties:
    return CommitProperties(app_transactions=[Transaction(app, position)])


def _now_ms() -> int:
    return int(datetime.now(UTC).timestamp() * 1000)


def _as_json(values: dict[str, Any]) -> dict[str, Any]:
    """Return the values with times as Delta writes them."""
    return {name: _time(value) if isinstance(value, datetime) else value for name, value in values.items()}


def _time(value: datetime) -> str:
    return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"


def _literal(value: Any) -> str:
    if isinstance(value, datetime):
        return f"arrow_cast('{_time(value)}', 'Timestamp(Microsecond, Some(\"UTC\"))')"
    return str(value)
