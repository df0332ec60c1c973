"""Routes as data: the router matches requests to them, and the OpenAPI document is generated from them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal
from urllib.parse import unquote

from msgspec import Struct

from penstock.server.http.messages import Request, Response
from penstock.wire.http_errors import HttpError

CACHED_BYTES_MAX = 256
# `authenticated`: any valid credential; the handler checks further rights, because the body names the queues.
Right = Literal["public", "authenticated", "push", "consume", "read", "admin"]
Handler = Callable[[Request], Awaitable[Response]]


class _Call(Struct):
    method: str
    path: str
    """Path template as in OpenAPI: `/queues/{queue}/messages`."""
    handler: Handler
    summary: str
    right: Right = "admin"


class Route(_Call, kw_only=True):
    """A call of an API. What every call has is given by position, the rest by name."""

    least_right: Right | None = None
    """With `authenticated`: the right needed on at least one queue, checked before the body is read."""
    query: Any = None
    """Type of the query; with None, the application rejects every parameter."""
    body: Any = None
    body_types: Sequence[str] = ("application/json",)
    answers: dict[int, Any]
    """Response bodies by status: a type for JSON, None for an empty body, a str for another media type, or a tuple."""
    errors: Sequence[int] = ()
    tag: str = ""
    headers: Sequence[str] = ()
    """Request headers that this call reads."""
    body_required: bool = True
    safe: bool = True
    """True for a GET that changes nothing, which therefore also accepts HEAD."""
    hands_out: bool = False
    """True for a call other than GET that leases or takes messages."""


class Router:
    """A tree of path segments. Segments are matched before decoding, so an encoded slash stays part of a name."""

    def __init__(self, routes: Sequence[Route]) -> None:
        self.routes = list(routes)
        self._root: dict[Any, Any] = {}
        for route in routes:
            node = self._root
            for segment in route.path.removeprefix("/").split("/"):
                key = None if segment.startswith("{") else segment.encode()
                node = node.setdefault(key, {})
            node.setdefault("routes", {})[route.method] = route
            names = [part[1:-1] for part in route.path.split("/") if part.startswith("{")]
            node.setdefault("names", names)

        self._cached = lru_cache(maxsize=4_096)(self._find)

    def find(self, method: str, raw_path: bytes) -> tuple[Route, Mapping[str, str]]:
        """Return the route and its path parameters; short paths are cached, because most clients use a few."""
        find = self._cached if len(raw_path) <= CACHED_BYTES_MAX else self._find
        return find(method, raw_path)

    def _find(self, method: str, raw_path: bytes) -> tuple[Route, Mapping[str, str]]:
        node, values = self._node(raw_path)
        routes: dict[str, Route] = node["routes"]
        route = routes.get(method)
        if route is None and method == "HEAD":
            route = routes.get("GET")
            if route is not None and not route.safe:
                route = None
        if route is None:
            allowed = ", ".join(_methods(routes))
            raise HttpError(
                405, "method_not_allowed", f"{method} is not allowed for this path", headers={"allow": allowed}
            )
        if not values:
            return route, {}
        return route, dict(zip(node["names"], map(_decode, values), strict=True))

    def methods(self, raw_path: bytes) -> list[str]:
        """Return the methods that this path accepts."""
        return _methods(self._node(raw_path)[0]["routes"])

    def _node(self, raw_path: bytes) -> tuple[dict[Any, Any], list[bytes]]:
        node = self._root
        values: list[bytes] = []
        for segment in raw_path.removeprefix(b"/").split(b"/"):
            found = node.get(segment)
            if found is None:
                found = node.get(None) if segment else None
                if found is None:
                    raise HttpError(404, "no_such_path", "there is nothing at this path", hint="see /docs")
                values.append(segment)
            node = found
        if "routes" not in node:
            raise HttpError(404, "no_such_path", "there is nothing at this path", hint="see /docs")
        return node, values


def _methods(routes: dict[str, Route]) -> list[str]:
    methods = {*routes, "OPTIONS"}
    if "GET" in routes and routes["GET"].safe:
        methods.add("HEAD")
    return sorted(methods)


def _decode(segment: bytes) -> str:
    try:
        text = segment.decode("ascii")
        return unquote(text, errors="strict") if "%" in text else text
    except UnicodeDecodeError:
        raise HttpError(400, "malformed_path", "the path is not UTF-8") from None
