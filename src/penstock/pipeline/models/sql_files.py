"""Reads SQL models: files with one query each, which names its inputs as dbt does.

    -- materialized: incremental, key: customer
    -- expect: not_null(customer) stop
    SELECT customer, sum(amount) AS total FROM {{ ref('orders') }}
    WHERE customer IN (SELECT customer FROM {{ new('orders') }}) GROUP BY customer

`ref('orders')` is a model, `source('silver', 'messages')` a table of the lake, and `new('orders')` the rows that were
added since this model last ran.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from msgspec import Struct

from penstock.errors import Conflict, InvalidInput, NotFound
from penstock.pipeline.lake.tables import BRONZE, SILVER, TABLES
from penstock.pipeline.models.expectations import Expectation, expectation

# Tables to which rows are only added, in the order of the journal's offsets.
GROWING = (BRONZE.name, SILVER.name)
_CALL = re.compile(r"\{\{\s*(?P<call>ref|source|new)\s*\((?P<arguments>[^)]*)\)\s*\}\}")
_QUOTED = re.compile(r"\s*(?:'([^'\"]*)'|\"([^'\"]*)\")\s*")
_HEADER = re.compile(r"\s*--\s*(?P<key>materialized|expect|description)\s*:(?P<value>.*)")
_MATERIALIZED = re.compile(r"(?P<how>table|incremental)(?:\s*,\s*key\s*:\s*(?P<keys>\w+(?:\s*,\s*\w+)*))?")


class Input(Struct, frozen=True):
    """A table that a query reads."""

    name: str
    new: bool
    """True if only rows since the last run are read."""

    @property
    def view(self) -> str:
        return f"penstock_{'new' if self.new else 'ref'}_{self.name.replace('.', '_')}"


class SqlModel(Struct, frozen=True, kw_only=True):
    name: str
    file: str
    text: str
    query: str
    """The text with the names of views instead of the calls, line for line."""
    inputs: frozenset[Input]
    incremental: bool = False
    keys: tuple[str, ...] = ()
    expectations: tuple[Expectation, ...] = ()
    about: str = ""


def read_folder(folder: Path) -> dict[str, str]:
    """Return the text of each model by its name."""
    if not folder.is_dir():
        raise NotFound(f"{folder} is not a folder", hint="name the folder of *.sql files with --models")
    found = {}
    for path in sorted(folder.rglob("*.sql")):
        if path.stem in found:
            raise Conflict(f"two files are named {path.name}", hint="the file's name is the model's name")
        try:
            found[path.stem] = path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise InvalidInput(f"{path} is not UTF-8") from error
    return found


def parse(name: str, text: str) -> SqlModel:
    file = f"{name}.sql"
    inputs: set[Input] = set()

    def view(call: re.Match[str]) -> str:
        found = _input(call, lambda what: _wrong(file, text, call.start(), what))
        inputs.add(found)
        # A call may span lines: keep them, so that Spark's line numbers are those of the file.
        return found.view + "\n" * call[0].count("\n")

    query = _CALL.sub(view, text)
    if (rest := re.search(r"\{\{|\{%|\}\}", query)) is not None:
        raise _wrong(file, query, rest.start(), "only ref(), source() and new() are supported", _USAGE)
    about, how, expectations = "", re.fullmatch(_MATERIALIZED, "table"), []
    for number, line in enumerate(text.splitlines(), 1):
        if (header := _HEADER.fullmatch(line)) is None:
            if line.strip() and not line.lstrip().startswith("--"):
                break
            continue
        value = header["value"].strip()
        if header["key"] == "description":
            about = value
        elif header["key"] == "expect":
            expectations.append(_expectation(file, number, value))
        elif (how := _MATERIALIZED.fullmatch(value)) is None or (how["how"] == "table" and how["keys"]):
            raise InvalidInput(
                f"{file}, line {number}: cannot read {value!r}", hint="write table, or incremental, key: column"
            )
    assert how is not None
    return SqlModel(
        name=name,
        file=file,
        text=text,
        query=query.rstrip("; \t\r\n"),
        inputs=frozenset(inputs),
        incremental=how["how"] == "incremental",
        keys=tuple(key.strip() for key in (how["keys"] or "").split(",") if key.strip()),
        expectations=tuple(expectations),
        about=about,
    )


_USAGE = "write {{ ref('model') }}, {{ source('silver', 'messages') }} or {{ new('model') }}"


def _input(call: re.Match[str], wrong: Callable[[str], InvalidInput]) -> Input:
    raw = call["arguments"].split(",")
    quoted = [_QUOTED.fullmatch(each) for each in raw]
    names = [each[1] or each[2] for each in quoted if each is not None]
    wanted = {"ref": (1,), "source": (2,), "new": (1, 2)}[call["call"]]
    if len(names) != len(raw) or len(names) not in wanted or not all(names):
        raise wrong(f"cannot read {call[0]!r}")
    name = ".".join(names)
    if len(names) == 2 and name not in TABLES:
        raise wrong(f"there is no table {name}; tables: {', '.join(TABLES)}")
    if call["call"] == "new" and len(names) == 2 and name not in GROWING:
        raise wrong(f"new() cannot read {name}, whose rows change; it reads {', '.join(GROWING)} and typed models")
    return Input(name, call["call"] == "new")


def _expectation(file: str, number: int, text: str) -> Expectation:
    try:
        found = expectation(text)
    except InvalidInput as error:
        raise InvalidInput(f"{file}, line {number}: {error.args[0]}", hint=error.hint) from None
    if found.action == "quarantine":
        raise InvalidInput(f"{file}, line {number}: a SQL model has no quarantine table", hint="use warn or stop")
    return found


def _wrong(file: str, text: str, at: int, what: str, hint: str | None = None) -> InvalidInput:
    return InvalidInput(f"{file}, line {text.count(chr(10), 0, at) + 1}: {what}", hint=hint)


def ordered(models: Mapping[str, SqlModel], kinds: Mapping[str, str]) -> list[SqlModel]:
    """Return the models so that each comes after those that it reads; `kinds` has all models of the lake."""
    graph: dict[str, set[str]] = {}
    for model in models.values():
        for each in model.inputs:
            if "." not in each.name and each.name not in kinds:
                known = ", ".join(kinds) or "none"
                raise NotFound(f"{model.file}: model {each.name!r} does not exist", hint=f"models: {known}")
            if each.new and kinds.get(each.name) == "sql":
                raise InvalidInput(
                    f"{model.file}: new() cannot read the SQL model {each.name!r}",
                    hint="it can read typed models, bronze.events and silver.messages; use ref()",
                )
        graph[model.name] = {each.name for each in model.inputs if each.name in models}
    try:
        return [models[name] for name in TopologicalSorter(graph).static_order()]
    except CycleError as error:
        raise Conflict(f"models depend on each other in a circle: {' -> '.join(error.args[1])}") from None
