"""The HTTP calls, from the OpenAPI document that a server with all faces gives out."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from tools.reference.server import Described
from tools.reference.text import code, schema_text, table

FACES = {
    "inbox": "The inbox face",
    "queues": "The queue face",
    "tree": "The tree face",
    "analytics": "Analytics",
    "streams": "The stream face",
    "journal": "The journal",
    "operations": "Operations",
}


def page(described: Described) -> str:
    document = _with_short_names(described.document)
    by_tag: dict[str, list[str]] = {}
    for path, calls in document["paths"].items():
        for method, call in calls.items():
            by_tag.setdefault(call["tags"][0], []).append(_call(method, path, call, described))
    parts = [
        "# HTTP\n\nThe same as `/docs` and `/openapi.json` of a running server. Every error has the shape of "
        "[Problem](#problem); [which error means what](errors.md). A token goes into `Authorization: Bearer <token>`.\n"
    ]
    for tag, entries in by_tag.items():
        parts.append(f"\n## {FACES.get(tag, tag.capitalize())}\n\n{''.join(entries)}")
    parts.append("\n## Shapes\n")
    for name, schema in sorted(document["components"]["schemas"].items()):
        parts.append(_shape(name, schema))
    return "".join(parts)


def _with_short_names(document: dict[str, Any]) -> dict[str, Any]:
    """Two faces have a PushBody; where that is so, the name is told with its module."""
    text = json.dumps(document)
    for name in document["components"]["schemas"]:
        module, _, last = name.rpartition(".")
        if module:
            face = module.rpartition(".")[2].removesuffix("_shapes").capitalize()
            text = text.replace(f'"{name}"', f'"{face}{last}"').replace(f'/{name}"', f'/{face}{last}"')
    found: dict[str, Any] = json.loads(text)
    return found


def _call(method: str, path: str, call: dict[str, Any], described: Described) -> str:
    head = f"### {method.upper()} {path}\n\n{call['summary']}."
    head += f" Right: {described.rights[method.upper(), path]}.\n\n"
    parameters = table(
        ("parameter", "in", "type", "default"),
        [
            (code(each["name"]), each["in"], schema_text(each["schema"]), _default(each["schema"]))
            for each in call.get("parameters", [])
        ],
    )
    parts = [head, parameters + "\n" if call.get("parameters") else ""]
    body = call.get("requestBody", {}).get("content", {})
    if body:
        parts.append(f"Body: {', '.join(_content(body))}\n\n")
    answers = [
        f"{status} {', '.join(_content(answer.get('content', {})))}".strip()
        for status, answer in call["responses"].items()
        if int(status) < 400
    ]
    parts.append(f"Answers: {'; '.join(answers)}\n\n")
    return "".join(parts)


def _default(schema: dict[str, Any]) -> str:
    return code(schema["default"]) if schema.get("default") is not None else ""


def _content(content: dict[str, Any]) -> Iterator[str]:
    for kind, shape in content.items():
        schema = shape.get("schema", {})
        text = _linked(schema_text(schema))
        yield text if kind == "application/json" else code(kind)


def _linked(text: str) -> str:
    return re.sub(r"\b([A-Z][A-Za-z]+)\b", lambda found: f"[{found[1]}](#{found[1].lower()})", text)


def _shape(name: str, schema: dict[str, Any]) -> str:
    required = set(schema.get("required", ()))
    rows = [
        (code(field), _linked(schema_text(kind)), "required" if field in required else _default(kind))
        for field, kind in schema.get("properties", {}).items()
    ]
    about = schema.get("description", "")
    shown = table(("field", "type", ""), rows) if rows else f"{schema_text(schema)}\n"
    return f"\n### {name}\n\n{about + chr(10) * 2 if about else ''}{shown}"
