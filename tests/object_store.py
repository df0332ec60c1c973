"""The tests' own S3 server, SeaweedFS from a wheel."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import ExitStack
from pathlib import Path

import pyarrow.fs

BUCKET = "lake"
START_SECONDS_MAX = 60.0
_PROGRAM = Path(sys.executable).with_name("weed")
_PORTS = ("master.port", "volume.port", "filer.port", "s3.port")


class ObjectStore:
    """An S3 server with one bucket, at ports that stay the same when it is killed and started again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        names = [*_PORTS, *(f"{name}.grpc" for name in _PORTS)]
        self._ports = dict(zip(names, free_ports(len(names)), strict=True))
        self.environment = environment(self._ports["s3.port"])
        self.process = self.start()
        files = pyarrow.fs.S3FileSystem(
            access_key=self.environment["AWS_ACCESS_KEY_ID"],
            secret_key=self.environment["AWS_SECRET_ACCESS_KEY"],
            endpoint_override=self.environment["AWS_ENDPOINT_URL"],
            region=self.environment["AWS_REGION"],
            allow_bucket_creation=True,
        )
        files.create_dir(BUCKET)

    @property
    def port(self) -> int:
        return self._ports["s3.port"]

    def start(self) -> subprocess.Popen[bytes]:
        flags = [f"-{name}={port}" for name, port in self._ports.items()]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [
                    *(_PROGRAM, "server", f"-dir={self.folder}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1"),
                    *("-filer", "-s3", "-s3.port.iceberg=0", "-s3.port.lance=0", "-master.telemetry=false"),
                    *("-volume.max=50", "-master.volumeSizeLimitMB=256", *flags),
                ],
                stdout=log,
                stderr=log,
                env=os.environ | self.environment,
            )
        self._wait_until_up()
        return self.process

    def _wait_until_up(self) -> None:
        deadline = time.monotonic() + START_SECONDS_MAX
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/healthz", timeout=5).close()
                return
            except (OSError, urllib.error.URLError):
                if self.process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError((self.folder / "log").read_text()[-4000:]) from None
                time.sleep(0.05)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


def environment(port: int) -> dict[str, str]:
    """What finds an S3 server on this machine, by the clouds' usual names."""
    return {
        "AWS_ACCESS_KEY_ID": "penstock",
        "AWS_SECRET_ACCESS_KEY": "penstock-very-secret",
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ALLOW_HTTP": "true",
        "AWS_EC2_METADATA_DISABLED": "true",
    }


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
