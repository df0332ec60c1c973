"""Formats Markdown, and extracts documentation from the source: field docstrings."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import msgspec


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(_cell(each) for each in line)} |\n" for line in lines)


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def code(value: object) -> str:
    return f"`{value}`"


def number(value: object) -> str:
    """Format a number for readers."""
    if value is None or value == []:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int | float) and abs(value) >= 10_000 else str(value)


def field_notes(kind: type) -> dict[str, str]:
    """Return the docstring of each field of a class."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(tree, ast.ClassDef)
    notes: dict[str, str] = {}
    for before, after in pairwise(tree.body):
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            targets = before.targets if isinstance(before, ast.Assign) else [getattr(before, "target", None)]
            for target in targets:
                if isinstance(target, ast.Name):
                    notes[target.id] = str(after.value.value)
    return notes


def schema_text(schema: dict[str, Any]) -> str:
    """Describe a JSON schema in a few words."""
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "anyOf" in schema:
        return " or ".join(schema_text(each) for each in schema["anyOf"])
    if "enum" in schema:
        return ", ".join(code(each) for each in schema["enum"])
    kind = schema.get("type", "any")
    if kind == "array":
        return f"list of {schema_text(schema.get('items', {}))}"
    bounds = (
        ("minimum", "from"), ("exclusiveMinimum", "above"), ("maximum", "to"), ("minLength", "length from"),
        ("maxLength", "length to"), ("maxItems", "at most"),
    )  # fmt: skip
    words = [f"{word} {number(schema[key])}" for key, word in bounds if key in schema]
    return " ".join([str(kind), *words])


def struct_rows(kind: type[msgspec.Struct]) -> list[tuple[str, str, str, str]]:
    """Return the name, the type with its bounds, the default and the description of each field."""
    components = msgspec.json.schema_components([kind], ref_template="#/{name}")[1]
    properties = components[kind.__name__]["properties"]
    notes = field_notes(kind)
    rows = []
    for field in msgspec.structs.fields(kind):
        default = "" if field.default is msgspec.NODEFAULT else shown_default(field.default)
        if field.default_factory is list:
            default = shown_default([])
        schema = properties[field.encode_name]
        note = schema.get("description") or notes.get(field.name, "")
        rows.append((field.encode_name, schema_text(schema), default, note))
    return rows


def shown_default(value: object) -> str:
    if isinstance(value, str):
        return code(value)
    return number(value)


def unfolded(docstring: str | None) -> str:
    """Convert a docstring to Markdown; text after `::` becomes a code block."""
    text = inspect.cleandoc(docstring or "")
    head, mark, rest = text.partition("::\n\n")
    if not mark:
        return text
    block = inspect.cleandoc("\n" + rest)
    return f"{head}:\n\n```python\n{block}\n```"
