"""Brings every model up to date at the end of a step: typed models first, then SQL models in their order."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from penstock.errors import PenstockError
from penstock.pipeline.lake.lake import Lake
from penstock.pipeline.models.definitions import Definition, Definitions
from penstock.pipeline.models.sql_files import ordered, parse, read_folder
from penstock.pipeline.models.sql_models import SqlRunner
from penstock.pipeline.models.typed import Events, TypedModel

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class ModelRunner:
    """Runs the models of a lake. SQL models are those in the lake, updated from a folder if one is given."""

    def __init__(self, spark: SparkSession, lake: Lake, app: str, folder: Path | None = None) -> None:
        self._spark = spark
        self._lake = lake
        self._app = app
        self._folder = folder
        self._definitions = Definitions(lake)
        self._found: dict[str, Definition] = {}
        self._typed: dict[str, TypedModel] = {}
        self._sql: dict[str, SqlRunner] = {}

    def refresh(self) -> None:
        """Read definitions that were changed since the last step."""
        found = self._definitions.all()
        if self._folder is not None:
            found = self._from_folder(self._folder, found)
        for name in self._typed.keys() - found.keys() | self._sql.keys() - found.keys():
            self._typed.pop(name, None)
            self._sql.pop(name, None)
        for definition in found.values():
            if self._found.get(definition.name) != definition:
                self._load(definition)
        self._found = dict(found)

    def _from_folder(self, folder: Path, found: dict[str, Definition]) -> dict[str, Definition]:
        changed = False
        for name, text in read_folder(folder).items():
            known = found.get(name)
            if known is not None and known.kind == "sql" and known.sql == text:
                continue
            parse(name, text)
            self._definitions.check_name(name, "sql")
            generation = self._definitions.next_generation(name)
            self._definitions.put(Definition(name=name, kind="sql", sql=text, generation=generation))
            changed = True
        return self._definitions.all() if changed else found

    def _load(self, definition: Definition) -> None:
        if definition.kind == "typed":
            self._typed[definition.name] = TypedModel(self._spark, self._lake, definition, self._app)
            self._typed[definition.name].create()
        else:
            self._sql[definition.name] = SqlRunner(self._spark, self._lake, definition, self._app)

    def are_behind(self, position: int) -> bool:
        models: list[TypedModel | SqlRunner] = [*self._typed.values(), *self._sql.values()]
        return any(model.is_behind(position) for model in models)

    def run(self, events: Events, end: int, small: bool, doing: Callable[[str], None]) -> None:
        """Bring all models up to an offset. Raise the first error after all models that it does not concern."""
        errors: dict[str, PenstockError] = {}

        def attempt(name: str, run: Callable[[], None]) -> None:
            doing(f"model {name}")
            try:
                run()
            except PenstockError as error:
                errors[name] = error

        for name, typed in self._typed.items():
            if typed.is_behind(end):
                attempt(name, lambda typed=typed: typed.fill(events, end, small))  # type: ignore[misc]
        models = {name: runner.model for name, runner in self._sql.items()}
        for model in ordered(models, {name: each.kind for name, each in self._found.items()}):
            if any(each.name in errors for each in model.inputs):
                errors[model.name] = errors[next(each.name for each in model.inputs if each.name in errors)]
            else:
                attempt(model.name, lambda name=model.name: self._run_sql(name, end))  # type: ignore[misc]
        for error in errors.values():
            raise error

    def _run_sql(self, name: str, end: int) -> None:
        definition = self._sql[name].definition
        inputs = {
            each.name: self._found[each.name].generation
            for each in sorted(self._sql[name].model.inputs, key=lambda each: each.name)
            if each.name in self._found
        }
        if definition.inputs != inputs:
            # Rows of an input were computed anew, so those computed from it are, too.
            generation = definition.generation + bool(definition.inputs)
            self._change(replace(definition, inputs=inputs, generation=generation))
        if self._sql[name].is_behind(end):
            again = self._sql[name].run(self._found, end)
            if again is not None:
                self._change(again)
                self._sql[name].run(self._found, end)

    def _change(self, definition: Definition) -> None:
        self._definitions.put(definition)
        self._found[definition.name] = definition
        self._load(definition)

    def tidy(self) -> None:
        for typed in self._typed.values():
            typed.table.tidy()
            typed.rejects.tidy()
        for runner in self._sql.values():
            runner.table.tidy()
