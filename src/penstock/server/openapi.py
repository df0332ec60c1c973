"""Generates the OpenAPI document from the routes and the types that validate requests."""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

import msgspec

from penstock import __version__
from penstock.core.ids import NAME_PATTERN, PART_PATTERN
from penstock.log.consumers import NAME_PATTERN as CONSUMER_PATTERN
from penstock.server.routing import Route
from penstock.wire.http_errors import Problem

# Statuses that any call may return, because of authentication, limits or the store.
ALWAYS = (400, 401, 403, 404, 405, 413, 415, 422, 429, 431, 500, 503)
REFS = "#/components/schemas/{name}"
PATH_SCHEMAS: dict[str, dict[str, Any]] = {
    "queue": {"type": "string", "pattern": f"^{NAME_PATTERN}$"},
    "ns": {"type": "string", "pattern": f"^{PART_PATTERN}$"},
    "task": {"type": "string", "pattern": f"^{PART_PATTERN}$"},
    "name": {"type": "string", "pattern": f"^{PART_PATTERN}$"},
    "id": {"type": "integer", "minimum": 1, "maximum": 10**15 - 1},
    "key": {"type": "string", "minLength": 1},
    "stream": {"type": "string", "pattern": f"^{NAME_PATTERN}$"},
    "consumer": {"type": "string", "pattern": f"^{CONSUMER_PATTERN}$"},
}


def describe(routes: Sequence[Route], *, guarded: bool) -> dict[str, Any]:
    """Return the OpenAPI document; `guarded` if the server requires a token."""
    types = _types(routes)
    schemas, components = msgspec.json.schema_components(types, ref_template=REFS)
    of_type = dict(zip(map(_key, types), schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, of_type, components)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Penstock",
            "version": __version__,
            "description": "A message queue. Every error has the shape of Problem.",
        },
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}] if guarded else [],
    }


def _types(routes: Sequence[Route]) -> list[Any]:
    found: dict[Any, Any] = {_key(Problem): Problem}
    for route in routes:
        for kinds in (route.query, route.body, *route.answers.values()):
            for kind in kinds if isinstance(kinds, tuple) else (kinds,):
                if kind is not None and not isinstance(kind, str):
                    found.setdefault(_key(kind), kind)
    return list(found.values())


def _key(kind: Any) -> str:
    return repr(kind)


def _operation(route: Route, of_type: dict[str, Any], components: dict[str, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": route.handler.__qualname__.replace(".", "_").lower(),
        "summary": route.summary,
        "tags": [route.tag],
        "responses": _responses(route, of_type),
    }
    if route.right == "public":
        operation["security"] = []
    parameters = [
        {"name": part[1:-1], "in": "path", "required": True, "schema": PATH_SCHEMAS[part[1:-1]]}
        for part in route.path.split("/")
        if part.startswith("{")
    ]
    if route.query is not None:
        parameters += _query_parameters(of_type[_key(route.query)], components)
    parameters += [
        {"name": name, "in": "header", "required": False, "schema": {"type": "string"}} for name in route.headers
    ]
    if parameters:
        operation["parameters"] = parameters
    if route.body is not None:
        schema = of_type[_key(route.body)]
        operation["requestBody"] = {
            "required": route.body_required,
            "content": {
                kind: {"schema": schema if kind == "application/json" else {"type": "string"}}
                for kind in route.body_types
            },
        }
    return operation


def _query_parameters(schema: dict[str, Any], components: dict[str, Any]) -> list[dict[str, Any]]:
    struct = components[schema["$ref"].rpartition("/")[2]]
    required = set(struct.get("required", ()))
    return [
        {"name": name, "in": "query", "required": name in required, "schema": kind}
        for name, kind in struct["properties"].items()
    ]


def _responses(route: Route, of_type: dict[str, Any]) -> dict[str, Any]:
    responses: dict[str, Any] = {}
    for status, kind in route.answers.items():
        answer: dict[str, Any] = {"description": HTTPStatus(status).phrase}
        kinds = kind if isinstance(kind, tuple) else () if kind is None else (kind,)
        shapes = [of_type[_key(each)] for each in kinds if not isinstance(each, str)]
        content: dict[str, Any] = {each: {"schema": {"type": "string"}} for each in kinds if isinstance(each, str)}
        if shapes:
            content["application/json"] = {"schema": shapes[0] if len(shapes) == 1 else {"anyOf": shapes}}
        if content:
            answer["content"] = content
        responses[str(status)] = answer
    problem = {"application/json": {"schema": of_type[_key(Problem)]}}
    for status in sorted({*ALWAYS, *route.errors}):
        responses.setdefault(str(status), {"description": HTTPStatus(status).phrase, "content": problem})
    return responses
