"""Generates the HTTP reference from the OpenAPI document of a server with every API."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from tools.reference.server import Described
from tools.reference.text import code, schema_text, table

TITLES = {
    "inbox": "Inbox API",
    "queues": "Queue API",
    "tree": "Tree API",
    "analytics": "Analytics",
    "streams": "Stream API",
    "journal": "Journal",
    "operations": "Operations",
}


def page(described: Described) -> str:
    document = _with_short_names(described.document)
    by_tag: dict[str, list[str]] = {}
    for path, calls in document["paths"].items():
        for method, call in calls.items():
            by_tag.setdefault(call["tags"][0], []).append(_call(method, path, call, described))
    parts = [
        "# HTTP API\n\nA running server serves the same at `/docs` and `/openapi.json`. Every error has the schema "
        "[Problem](#problem); see the [list of errors](errors.md). Send a token as `Authorization: Bearer <token>`.\n"
    ]
    for tag, entries in by_tag.items():
        parts.append(f"\n## {TITLES.get(tag, tag.capitalize())}\n\n{''.join(entries)}")
    parts.append("\n## Schemas\n")
    for name, schema in sorted(document["components"]["schemas"].items()):
        parts.append(_shape(name, schema))
    return "".join(parts)


def _with_short_names(document: dict[str, Any]) -> dict[str, Any]:
    """Prefix a schema name with its API if two APIs use the same name, such as PushBody."""
    text = json.dumps(document)
    for name in document["components"]["schemas"]:
        module, _, last = name.rpartition(".")
        if module:
            api = module.rpartition(".")[2].removesuffix("_shapes").capitalize()
            text = text.replace(f'"{name}"', f'"{api}{last}"').replace(f'/{name}"', f'/{api}{last}"')
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
    parts.append(f"Responses: {'; '.join(answers)}\n\n")
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
