"""The dashboard's files, and the limits of the read-only token."""

from __future__ import annotations

import gzip
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from penstock.config import load_settings
from penstock.errors import InvalidInput
from penstock.server.dashboard.static_files import load
from penstock.server.serve import check_exposure
from tests.integration.conftest import Fresh
from tests.integration.serving import Client

TRANSFER_BYTES_MAX = 200_000
ROOT = Path(__file__).parents[2]
BUILD = "import sys, hatchling.build; hatchling.build.build_wheel(sys.argv[1])"
ADMIN, READER = "the-admin-token", "the-reading-token"


def test_the_page_has_a_strict_content_security_policy_and_an_etag(client: Client) -> None:
    page = client.get("/")
    assert page.status == 200
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    again = client.get("/", if_none_match=page.headers["etag"])
    assert (again.status, again.body) == (304, b"")
    assert client.get("/").status == 200


def test_files_are_gzipped_for_clients_that_accept_it(client: Client) -> None:
    plain = client.get("/static/app.js")
    zipped = client.get("/static/app.js", accept_encoding="br, gzip")
    assert "content-encoding" not in plain.headers
    assert zipped.headers["content-encoding"] == "gzip"
    assert gzip.decompress(zipped.body) == plain.body
    assert len(zipped.body) < len(plain.body) / 2


def test_the_dashboard_is_small_and_loads_nothing_from_elsewhere() -> None:
    sizes = {path: len(file.zipped or file.plain) for path, file in load().items()}
    assert sum(sizes.values()) < TRANSFER_BYTES_MAX
    for path, file in load().items():
        if "vendor" not in path and not path.endswith(".svg"):
            assert not re.search(rb"https?://(?!www\.w3\.org/2000/svg)", file.plain), path


def test_a_wheel_holds_every_file_of_the_dashboard(tmp_path: Path) -> None:
    command = [sys.executable, "-c", BUILD, str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, env={**os.environ, "PENSTOCK_WITHOUT_JAR": "1"})
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        packed = set(wheel.namelist())
    served = {path.removeprefix("/static/") for path in load() if path != "/"}
    assert "client/penstock.js" in served
    assert {f"penstock/server/dashboard/static/{path}" for path in served} <= packed


def test_no_path_leads_out_of_the_folder(client: Client) -> None:
    for path in ("/static/../app.py", "/static/%2e%2e/app.py", "/static/", "/static/shapes.d.ts"):
        assert client.get(path).status == 404


def test_the_dashboard_can_be_turned_off(serve: Fresh) -> None:
    with serve(dashboard=False).client() as client:
        assert client.get("/").status == 404
        assert client.get("/server").status == 200


def test_the_read_only_token_reads_everything_and_changes_nothing(serve: Fresh) -> None:
    server = serve(auth_token=ADMIN, read_token=READER)
    with server.client() as admin, server.client(READER) as reader:
        queue = admin.queue("emails")
        assert admin.post(f"{queue}/messages", {"payload": 1}).status == 201
        assert reader.get("/server").json["role"] == "reader"
        assert admin.get("/server").json["role"] == "admin"
        for path in ("/queues", queue, f"{queue}/peek", f"{queue}/stats", "/streams", "/journal", "/metrics"):
            assert reader.get(path).status == 200, path
        refused = [
            ("POST", f"{queue}/messages", {"payload": 2}),
            ("POST", f"{queue}/poll?wait_ms=0", None),
            ("POST", f"{queue}/purge", None),
            ("PATCH", queue, {"max_attempts": 3}),
            ("DELETE", queue, None),
            ("GET", "/v1/messages", None),
            ("GET", "/api/v1/pop/ns/a?wait=false", None),
            ("POST", "/streams", {"name": "s"}),
            ("POST", "/queues", {"name": "another"}),
        ]
        for method, path, body in refused:
            assert reader.ask(method, path, body).status == 403, path
        assert admin.get(queue).json["ready"] == 1


def test_a_read_only_token_requires_an_admin_token() -> None:
    check_exposure(load_settings({}, {"AUTH_TOKEN": ADMIN, "READ_TOKEN": READER}))
    with pytest.raises(InvalidInput, match="has no effect"):
        check_exposure(load_settings({}, {"READ_TOKEN": READER}))
