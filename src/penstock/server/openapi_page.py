"""Renders the OpenAPI document as one HTML page without scripts or external resources."""

from __future__ import annotations

from html import escape
from typing import Any

STYLE = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif }
body { max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
h2 { margin-top: 2.5rem; text-transform: capitalize }
details { border-top: 1px solid #8884; padding: .4rem 0 }
summary { cursor: pointer } code, pre { font: 14px/1.45 ui-monospace, monospace }
pre { background: #8881; padding: .6rem; overflow-x: auto } b { display: inline-block; min-width: 4.5rem }
th, td { text-align: left; padding: .1rem 1rem .1rem 0; vertical-align: top } .q { opacity: .7 }
"""


def docs_page(document: dict[str, Any]) -> str:
    """Return the page: one section per API, one collapsible entry per call."""
    by_tag: dict[str, list[str]] = {}
    for path, calls in document["paths"].items():
        for method, call in calls.items():
            by_tag.setdefault(call["tags"][0], []).append(_call(method, path, call, document))
    sections = "".join(f"<h2>{escape(tag)}</h2>{''.join(calls)}" for tag, calls in by_tag.items())
    title = escape(f"{document['info']['title']} {document['info']['version']}")
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{title}</title><style>{STYLE}</style><h1>{title}</h1>"
        f"<p>{escape(document['info']['description'])}</p>{sections}</html>"
    )


def _call(method: str, path: str, call: dict[str, Any], document: dict[str, Any]) -> str:
    parts = []
    rows = "".join(
        f"<tr><td><code>{escape(each['name'])}</code><td class=q>{each['in']}<td>{escape(_type(each['schema']))}"
        for each in call.get("parameters", [])
    )
    if rows:
        parts.append(f"<table>{rows}</table>")
    for content_type, body in call.get("requestBody", {}).get("content", {}).items():
        parts.append(f"<p>Body, {escape(content_type)}:</p>{_fields(body.get('schema', {}), document)}")
    answers = ", ".join(f"{status} {escape(answer['description'])}" for status, answer in call["responses"].items())
    parts.append(f"<p class=q>Responses: {answers}</p>")
    head = f"<b>{method.upper()}</b> <code>{escape(path)}</code> {escape(call['summary'])}"
    return f"<details><summary>{head}</summary>{''.join(parts)}</details>"


def _fields(schema: dict[str, Any], document: dict[str, Any]) -> str:
    name = schema.get("$ref", "").rpartition("/")[2]
    found = document["components"]["schemas"].get(name, schema)
    required = set(found.get("required", ()))
    rows = "".join(
        f"<tr><td><code>{escape(field)}</code>{'*' if field in required else ''}<td>{escape(_type(kind))}"
        for field, kind in found.get("properties", {}).items()
    )
    return f"<table>{rows}</table>" if rows else ""


def _type(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "anyOf" in schema:
        return " or ".join(_type(each) for each in schema["anyOf"])
    if "enum" in schema:
        return " | ".join(map(str, schema["enum"]))
    text = str(schema.get("type", "any"))
    if text == "array":
        return f"list of {_type(schema.get('items', {}))}"
    bounds = [f"{word} {schema[key]}" for key, word in (("minimum", "from"), ("maximum", "to")) if key in schema]
    default = [f"default {schema['default']}"] if schema.get("default") is not None else []
    return " ".join([text, *bounds, *default])
