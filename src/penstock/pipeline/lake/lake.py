"""The lake: a folder of Delta tables. Spark tasks write the files; the driver commits them here, without a JVM.

Each table stores its position in the journal in the same commit as its rows (a Delta application transaction). So after
a crash, reading resumes where the table ends, without duplicates or gaps.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction
from msgspec import Struct

from penstock.errors import CannotOpen, Conflict
from penstock.log.files import DISK, sync_path
from penstock.pipeline.lake.data_files import NewFile, literal, now_ms, of_queues
from penstock.pipeline.lake.frames import read_files
from penstock.pipeline.lake.storage import (
    Folder,
    Lock,
    RemoteFolder,
    folder_at,
    lock_of,
    make,
    missing_file,
    read_object,
    store_errors,
)
from penstock.pipeline.lake.tables import BRONZE, TABLES, Table

if TYPE_CHECKING:
    import pyarrow.dataset as ds
    from deltalake import Schema as DeltaSchema
    from pyspark.sql import DataFrame, SparkSession

CHECKPOINT_COMMITS = 50
# Every commit and every open read the log since the last checkpoint, on an object store with a request for each commit.
REMOTE_CHECKPOINT_COMMITS = 10
# Replacing rows rewrites whole files; with small ones, old rows soon have files of their own.
PUT_FILE_BYTES = 1 << 20
TIDY = (1_000, 24)
# Commits between compactions, and hours until replaced files are removed.
TIDY_CHANGING = (100, 1)
# On an object store no lock keeps a second pipeline away, whose uncommitted files a full vacuum must not remove.
FULL_VACUUM_HOURS = 24
# A compaction by another process makes a commit fail, too, but can be repeated on the new files.
COMMIT_TRIES = 5
COMMIT_MARK = "penstock.commit"
# Delta application of the commits that replace files.
FILES = "penstock:files"
_STATISTICS = "delta.dataSkippingStatsColumns"
_CONFIGURATION = {
    "delta.checkpointInterval": str(CHECKPOINT_COMMITS),
    "delta.logRetentionDuration": "interval 2 days",
}
_CHANGING = {"delta.targetFileSize": str(PUT_FILE_BYTES)}
_REMOTE = {"delta.checkpointInterval": str(REMOTE_CHECKPOINT_COMMITS)}


Done = TypeVar("Done")


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

    def __init__(self, folder: Folder, table: Table) -> None:
        self.folder = folder
        self.table = table

    @property
    def _is_remote(self) -> bool:
        return isinstance(self.folder, RemoteFolder)

    @contextmanager
    def _errors(self, doing: str) -> Iterator[None]:
        """Convert errors of an object store to typed ones."""
        if self._is_remote:
            with store_errors(f"{doing} {self.table.name} in {self.folder.parent.parent}"):
                yield
        else:
            yield

    @cached_property
    def delta(self) -> DeltaTable:
        try:
            with self._errors("opening"):
                return DeltaTable(str(self.folder))
        except TableNotFoundError as error:
            raise CannotOpen(
                f"table {self.table.name} does not exist in {self.folder.parent.parent}",
                hint="run `penstock pipeline run`",
            ) from error

    def exists(self) -> bool:
        if isinstance(self.folder, Path):
            return DeltaTable.is_deltatable(str(self.folder))
        # `is_deltatable` would hold the interpreter's lock while it waits, and with it the whole server.
        try:
            return self.delta is not None
        except CannotOpen:
            return False

    def create(self) -> None:
        """Create the table if it does not exist, and add columns that are new in this release."""
        try:
            with self._errors("creating"):
                self._create()
        except CommitFailedError:
            raise self._overtaken() from None

    def _create(self) -> None:
        make(self.folder)
        configuration = _CONFIGURATION | (_REMOTE if self._is_remote else {})
        if self.table.changes:
            configuration |= _CHANGING
        if self.table.ranged:
            # Others would only fill the log, with pieces of bodies and error texts.
            configuration[_STATISTICS] = ",".join(self.table.ranged + self.table.emptied)
        if not self.exists():
            DeltaTable.create(
                str(self.folder),
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
        with self._errors("reading"):
            self.delta.update_incremental()
        return self

    def position(self, app: str) -> int | None:
        return self.transaction(app)

    def transaction(self, app: str) -> int | None:
        """Return the version of an application transaction."""
        with self._errors("reading"):
            return self.delta.transaction_version(app)

    def entries(self, queues: Collection[str] = (), /, **least: Any) -> pa.Table:
        """Return a row per file, with its statistics, of those that may hold such values."""
        with self._errors("reading"):
            found = pa.table(self.delta.get_add_actions(flatten=True))
        found = of_queues(found, queues)
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
        if self._is_remote:
            return files  # A request for each file would cost more than it finds: reading reports a missing one.
        missing = next((file for file in files if not Path(file).exists()), None)
        if missing is not None:
            raise missing_file(self.table.name, missing)
        return files

    def least_of(self, column: str, **least: Any) -> Any:
        """Return the minimum of a column over those files; None if there is none."""
        found = self.entries(**least)
        return pc.min(found[f"min.{column}"]).as_py() if found.num_rows else None

    def greatest_of(self, column: str | None) -> Any:
        """Return the maximum of a column from the files' statistics."""
        found = self.entries()
        name = f"max.{column}"
        return pc.max(found[name]).as_py() if found.num_rows and name in found.column_names else None

    def sizes(self, queues: Collection[str] = (), /, **least: Any) -> dict[str, int]:
        """Return the bytes of the files that `files` returns, by their paths within the table's folder."""
        found = self.entries(queues, **least)
        return dict(zip(found["path"].to_pylist(), found["size_bytes"].to_pylist(), strict=True))

    def read(
        self,
        spark: SparkSession,
        columns: Sequence[str] | None = None,
        queues: Collection[str] = (),
        /,
        **least: Any,
    ) -> DataFrame:
        """Read the table, or some columns, with Spark; `queues` and `least` skip files, not rows."""
        wanted = self.table.schema.names if columns is None else columns
        return self.frame_of(spark, wanted, self.sizes(queues, **least))

    def values(self, column: str, **least: Any) -> set[Any]:
        """Return the distinct values of a column in those files, read by this process."""
        batches = self.batches_of(self.sizes(**least), [column])
        return {value for batch in batches for value in batch[column].unique().to_pylist()}

    def batches_of(self, sizes: Mapping[str, int], columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Read these files, committed or not, in this process; columns that are missing in older ones are null."""
        from penstock.pipeline.lake.remote_files import FileGroup

        schema = self.table.schema
        wanted = schema if columns is None else pa.schema([schema.field(name) for name in columns])
        return FileGroup(self.folder, dict(sizes)).batches(wanted)

    def frame_of(self, spark: SparkSession, columns: Sequence[str], sizes: Mapping[str, int]) -> DataFrame:
        """Read some columns of these files, committed or not, with Spark."""
        schema = pa.schema([self.table.schema.field(name) for name in columns])
        if isinstance(self.folder, RemoteFolder):
            from penstock.pipeline.lake.remote_files import read_remote

            return read_remote(spark, schema, self.folder, sizes)
        return read_files(spark, schema, self._present(list(sizes)))

    def dataset(self, **least: Any) -> ds.Dataset:
        """Read the table with Arrow alone: threads of delta-rs call Python, perhaps during interpreter shutdown."""
        return self.dataset_of(self.sizes(**least))

    def dataset_of(self, sizes: Mapping[str, int]) -> ds.Dataset:
        """Read these files, committed or not, with Arrow."""
        import pyarrow.dataset as ds  # Imported here, because it loads pandas, which takes a second.

        if isinstance(self.folder, RemoteFolder):
            from penstock.pipeline.lake.remote_files import dataset_of

            return dataset_of(self.folder, sizes, self.table.schema)
        # Pass the whole schema, so that columns missing in older files are null.
        try:
            return ds.dataset(self._present(list(sizes)), schema=self.table.schema, format="parquet")
        except FileNotFoundError as error:
            raise missing_file(self.table.name, str(error)) from error

    def append(self, files: Sequence[NewFile], app: str, position: int) -> None:
        """Add files and move the position in one commit."""
        self._commit(app, position, self._writing(files, "append", self.delta.schema()))

    def replace(self, files: Sequence[NewFile], app: str, position: int) -> None:
        """Replace all rows, and the columns by those of `table`, in one commit."""
        from deltalake import Schema

        write = self._writing(files, "overwrite", Schema.from_arrow(self.table.schema))
        self._commit(app, position, write, self._files_transaction())

    def _writing(
        self, files: Sequence[NewFile], mode: Literal["append", "overwrite"], schema: DeltaSchema
    ) -> Callable[[CommitProperties], object]:
        return lambda properties: self.delta.create_write_transaction(
            [file.action() for file in files],
            mode=mode,
            schema=schema,
            commit_properties=properties,
        )

    def replace_files(
        self,
        removed: Collection[str],
        added: Sequence[NewFile],
        *,
        changes_data: bool = True,
        at: tuple[str, int] | None = None,
    ) -> None:
        """Replace files by others in one commit, which moves the position `at` an app, if given."""
        time_ms = now_ms()
        actions: list[AddAction | RemoveAction] = [RemoveAction(path, changes_data, time_ms) for path in removed]
        actions += [file.action(changes_data=changes_data) for file in added]
        if not actions and at is None:
            return

        def write(properties: CommitProperties) -> None:
            self.delta.create_write_transaction(
                actions, mode="append", schema=self.delta.schema(), commit_properties=properties
            )

        if at is not None:
            self._commit(*at, write, self._files_transaction(), removed)
            return
        mark = uuid.uuid4().hex
        properties = CommitProperties({COMMIT_MARK: mark}, app_transactions=[self._files_transaction()])
        self._repeat_after_compaction(lambda: write(properties), mark, lambda: self._has_all(removed))

    def _files_transaction(self) -> Transaction:
        """Return what makes two commits that replace files conflict: delta-rs does not notice if both remove a file
        and the first one, a compaction, has changed no data. Its own compaction ignores this, so it is not used."""
        return Transaction(FILES, (self.transaction(FILES) or 0) + 1)

    def _has_all(self, paths: Collection[str]) -> bool:
        return not paths or set(paths) <= set(self.entries()["path"].to_pylist())

    def properties(self) -> dict[str, str]:
        """Return the table's properties."""
        with self._errors("reading"):
            found: dict[str, str] = self.delta.metadata().configuration
        return found

    def set_property(self, name: str, value: str) -> None:
        self._repeat_after_compaction(
            lambda: self.delta.alter.set_table_properties({name: value}, raise_if_not_exists=False)
        )

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
        newer = [f"t.{column} >= {literal(value)}" for column, value in least.items()]
        self._commit(
            app,
            position,
            lambda properties: (
                self.delta.merge(
                    rows,
                    " AND ".join(same + newer),
                    source_alias="s",
                    target_alias="t",
                    commit_properties=properties,
                )
                .when_matched_update_all()
                .when_not_matched_insert_all()
                .execute()
            ),
        )

    def _commit(
        self,
        app: str,
        position: int,
        write: Callable[[CommitProperties], object],
        other: Transaction | None = None,
        removed: Collection[str] = (),
    ) -> None:
        """Commit rows and the position. Of two pipelines that start at the same position only one succeeds, because
        Delta lets no commit pass that did not see the other's position."""
        before, mark = self.transaction(app), uuid.uuid4().hex
        if before is not None and before > position:
            raise self._overtaken()  # A refresh has shown the other's position, so Delta would accept this one.
        properties = CommitProperties(
            {COMMIT_MARK: mark}, app_transactions=[Transaction(app, position), *([other] if other else [])]
        )

        def may_repeat() -> bool:
            return self.transaction(app) == before and self._has_all(removed)

        self._repeat_after_compaction(lambda: write(properties), mark, may_repeat)

    def _repeat_after_compaction(
        self, write: Callable[[], Done], mark: str = "", may_repeat: Callable[[], bool] = lambda: True
    ) -> Done | None:
        for _ in range(COMMIT_TRIES):
            version = self.delta.version()
            try:
                with self._errors("writing"):
                    done = write()
                self._sync()
                return done
            except CommitFailedError:
                self.refresh()
                if mark and self._has_committed(mark, version):
                    return None
                if not may_repeat():
                    break
        raise self._overtaken()

    def _overtaken(self) -> Conflict:
        return Conflict(
            f"another process has written to {self.table.name} of {self.folder.parent.parent} meanwhile; this commit"
            " was not made",
            hint="run one pipeline for each lake; the next run continues where the tables end",
        )

    def _has_committed(self, mark: str, version: int) -> bool:
        """Return True if a commit that failed was made: its answer was lost, and its repetition found it."""
        newer = range(version + 1, self.delta.version() + 1)
        return any(mark.encode() in self._logged(each) for each in newer)

    def _logged(self, version: int) -> bytes:
        log, name = self.folder / "_delta_log", f"{version:020}.json"
        return (log / name).read_bytes() if isinstance(log, Path) else read_object(log, name) or b""

    def _sync(self) -> None:
        """Fsync the files of the newest commit before its position is reported; objects are durable already."""
        with self._errors("reading"):
            self.delta.update_incremental()
        if not isinstance(self.folder, Path):
            return
        log = self.folder / "_delta_log"
        version = self.delta.version()
        for line in self._logged(version).splitlines():
            if line.startswith(b'{"add"'):
                sync_path(self.folder / msgspec.json.decode(line)["add"]["path"])
        sync_path(log / f"{version:020}.json")
        DISK.sync_folder(self.folder)
        DISK.sync_folder(log)

    def compact(self) -> dict[str, int]:
        """Replace many small files by few large ones, with the same rows."""
        from penstock.pipeline.lake.compaction import compact

        return compact(self)

    def vacuum(self, hours: int) -> int:
        """Remove files that no version of the last hours needs, and leftovers of killed tasks."""
        full = not self._is_remote or hours >= FULL_VACUUM_HOURS
        with self._errors("vacuuming"):
            removed = self.delta.vacuum(hours, dry_run=False, enforce_retention_duration=False, full=full)
        self.refresh()
        return len(removed)

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
    def __init__(self, folder: Folder | str) -> None:
        self.folder = folder_at(folder)
        self._tables: dict[str, LakeTable] = {}

    def __getitem__(self, table: Table) -> LakeTable:
        found = self._tables.get(table.name)
        if found is None:
            found = self._tables[table.name] = LakeTable(self.folder.joinpath(*table.name.split(".")), table)
        return found

    def tables(self) -> list[LakeTable]:
        return [self[table] for table in TABLES.values()]

    def exists(self) -> bool:
        return self[BRONZE].exists()

    def create(self) -> None:
        for table in self.tables():
            table.create()

    def lock(self) -> Lock:
        """Take the lake's lock: one pipeline at a time. Object stores have none: there, the commits keep order."""
        return lock_of(self.folder)

    def check_belongs(self, app: str) -> None:
        """Raise if the lake was filled from another journal, whose offsets have other meanings."""
        bronze = self[BRONZE]
        # Read last: another pipeline may have moved on since bronze was opened.
        bronze_position = bronze.refresh().position(app) or 0
        for table in self.tables():
            if (table.position(app) or 0) > bronze_position:
                raise Conflict(
                    f"{table.table.name} is ahead of {BRONZE.name}, from which it is computed: files were removed",
                    hint="use another folder with --lake, or restore the files",
                )
        if bronze.position(app) is None and bronze.entries().num_rows:
            raise Conflict(
                f"the lake in {self.folder} was filled from another journal",
                hint="use another folder with --lake",
            )


def app_of(uid: str) -> str:
    """Return the application id under which tables store their position in a journal."""
    return f"penstock:{uid}"
