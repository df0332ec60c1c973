"""Generates the reference of the package's public names from their signatures and docstrings."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from types import FunctionType
from typing import Any

import penstock
from penstock.errors import PenstockError
from penstock.errors import __doc__ as error_tree
from penstock.server.error_responses import status_of
from tools.reference.text import code, table, unfolded

# The status of errors that only the client raises, after the server responded with it.
SENT: dict[type[PenstockError], int] = {penstock.Unauthorized: 401, penstock.Forbidden: 403}
ABOUT = """# Python API

`import penstock` provides all of these names. `penstock.aio` has `connect` and the same classes for `async` programs,
with `await` for every method that performs I/O. Durations are in seconds.
"""


def page() -> str:
    parts = [ABOUT]
    for name in sorted(penstock.__all__, key=lambda each: (each != "connect", each)):
        found = getattr(penstock, name)
        if isinstance(found, type) and issubclass(found, PenstockError):
            continue
        parts.append(_class(name, found) if isinstance(found, type) else _function(name, found, "##"))
    return "".join(parts)


def errors() -> str:
    rows = [
        (code(name), code(kind.code), _status(kind), code(kind.__bases__[0].__name__), _meaning(kind))
        for name in penstock.__all__
        if isinstance(kind := getattr(penstock, name), type) and issubclass(kind, PenstockError)
    ]
    head = ("class", "`code`", "over HTTP", "is a", "meaning")
    about = (
        "# Errors\n\nEvery error is a `PenstockError` with a stable `code` and often a `hint`. "
        'Over HTTP it is `{"error": …, "code": …, "hint": …, "field": …}`.\n\n'
    )
    return about + table(head, rows)


def _status(kind: type[PenstockError]) -> str:
    if kind in SENT:
        return str(SENT[kind])
    status = status_of(kind.__new__(kind))
    return "" if status == 500 and kind is not penstock.CorruptRecord else str(status)


def _meaning(kind: type) -> str:
    """Return the docstring of an error, or else its description in the error tree."""
    beside = re.search(rf"─ {kind.__name__} +(\S.*)$", error_tree or "", re.MULTILINE)
    return " ".join((kind.__dict__.get("__doc__") or (beside[1] if beside else "")).split())


def _class(name: str, kind: type) -> str:
    about = unfolded(kind.__dict__.get("__doc__"))
    text = f"\n## {name}\n" + (f"\n{about}\n" if about else "")
    fields = getattr(kind, "__struct_fields__", ())
    if fields:
        text += f"\nFields: {', '.join(map(code, fields))}.\n"
    elif "__init__" in kind.__dict__ and kind.__module__ == "penstock.lite":
        text += f"\n{code(_signature(name, vars(kind)['__init__']))}\n"
    for member, found in _members(kind):
        if isinstance(found, FunctionType):
            text += _function(member, found, "###", f"{name}.")
        else:
            text += f"\n### {name}.{member}\n" + (f"\n{unfolded(found.__doc__)}\n" if found.__doc__ else "")
    return text


def _members(kind: type) -> Iterator[tuple[str, Any]]:
    for name, found in kind.__dict__.items():
        if name.startswith("_"):
            continue
        if isinstance(found, property | FunctionType):
            yield name, found


def _function(name: str, found: Any, level: str, owner: str = "") -> str:
    about = unfolded(found.__doc__)
    return f"\n{level} {owner}{name}\n\n{code(_signature(name, found))}\n" + (f"\n{about}\n" if about else "")


def _signature(name: str, found: Any) -> str:
    signature = inspect.signature(found)
    kept = [each for each in signature.parameters.values() if each.name != "self"]
    signature = signature.replace(parameters=kept)
    if name[0].isupper():
        signature = signature.replace(return_annotation=inspect.Signature.empty)
    shown = re.sub(r"(: |-> )'([^']*)'", r"\1\2", f"{name}{signature}")
    return re.sub(r"<function (\w+) at 0x\w+>", r"\1", shown)
