"""Serves the dashboard's files at `/`, gzipped once, with an ETag from their content.

The page uses only relative paths, so it also works below a path prefix that a proxy strips.
"""

from __future__ import annotations

import gzip
import hashlib
from functools import cache, partial
from importlib.resources import files
from importlib.resources.abc import Traversable

from msgspec import Struct

from penstock.server.http.messages import Request, Response
from penstock.server.routing import Route

GZIP_BYTES_MIN = 512
TYPES = {
    "css": b"text/css; charset=utf-8",
    "html": b"text/html; charset=utf-8",
    "js": b"text/javascript; charset=utf-8",
    "svg": b"image/svg+xml",
    "txt": b"text/plain; charset=utf-8",
}
POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
)


class StaticFile(Struct, frozen=True):
    content_type: bytes
    plain: bytes
    zipped: bytes | None
    etag: bytes


@cache
def load() -> dict[str, StaticFile]:
    """Return all files by URL path."""
    return dict(_walk(files("penstock.server.dashboard") / "static", ""))


def _walk(folder: Traversable, path: str) -> list[tuple[str, StaticFile]]:
    found: list[tuple[str, StaticFile]] = []
    for entry in folder.iterdir():
        here = f"{path}/{entry.name}"
        if entry.is_dir():
            found += _walk(entry, here)
        elif content_type := TYPES.get(entry.name.rpartition(".")[2]):
            found.append(("/" if here == "/index.html" else f"/static{here}", _file(content_type, entry.read_bytes())))
    return found


def _file(content_type: bytes, plain: bytes) -> StaticFile:
    zipped = gzip.compress(plain, 9, mtime=0) if len(plain) >= GZIP_BYTES_MIN else None
    return StaticFile(content_type, plain, zipped, b'"%s"' % hashlib.sha256(plain).hexdigest()[:20].encode())


class StaticFiles:
    def routes(self) -> list[Route]:
        return [
            Route(
                "GET",
                path,
                partial(self.send, file),
                "A file of the dashboard",
                "public",
                query=dict[str, str],
                answers={200: file.content_type.decode(), 304: None},
                tag="dashboard",
            )
            for path, file in load().items()
        ]

    async def send(self, file: StaticFile, request: Request) -> Response:
        headers = [
            (b"etag", file.etag),
            (b"cache-control", b"no-cache"),
            (b"vary", b"accept-encoding"),
            (b"x-content-type-options", b"nosniff"),
            (b"referrer-policy", b"no-referrer"),
            (b"content-security-policy", POLICY),
        ]
        if file.etag in (request.header(b"if-none-match") or b""):
            return Response(304, headers=headers)
        body = file.plain
        if file.zipped is not None and b"gzip" in (request.header(b"accept-encoding") or b""):
            body = file.zipped
            headers.append((b"content-encoding", b"gzip"))
        return Response(200, body, content_type=file.content_type, headers=headers)
