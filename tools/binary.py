"""One file that holds the server and all it needs: `python -m tools.binary dist/penstock`.

It is a zip file that Python runs. Extension modules cannot be loaded out of one, so at its first start it unpacks
itself into a folder of its user's, and from then on starts from there.
"""

from __future__ import annotations

import hashlib
import os
import stat
import sys
import sysconfig
import zipfile
from pathlib import Path

from tools.locks import distributions

ROOT = Path(__file__).resolve().parents[1]
LOCK = "deploy.txt"
SKIPPED = {"__pycache__", "tests", "test"}
START = """\
import os, sys, tempfile
from pathlib import Path
from zipfile import ZipFile

NAME, PYTHON, PLATFORM = {name!r}, {python!r}, {platform!r}


def cache():
    if os.environ.get("XDG_CACHE_HOME") or os.environ.get("HOME"):
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "penstock"
    return Path(tempfile.gettempdir()) / f"penstock-{{os.getuid()}}"


def unpacked():
    folder = cache() / NAME
    folder.parent.mkdir(0o700, parents=True, exist_ok=True)
    owner = folder.parent.stat()
    if owner.st_uid != os.getuid() or owner.st_mode & 0o022:
        sys.exit(f"error: {{folder.parent}} can be written by others (set XDG_CACHE_HOME to a folder of your own)")
    if not folder.is_dir():
        with tempfile.TemporaryDirectory(dir=folder.parent) as beside:
            whole = Path(beside) / NAME
            with ZipFile(sys.path[0]) as archive:
                archive.extractall(whole)
            try:
                whole.rename(folder)
            except OSError:
                if not folder.is_dir():
                    raise
    return folder


if sys.version_info[:2] != PYTHON or sys.platform != PLATFORM:
    wanted = f"Python {{PYTHON[0]}}.{{PYTHON[1]}} on {{PLATFORM}}"
    sys.exit(f"error: this penstock was made for {{wanted}} (make binary PYTHON=... makes another)")
sys.path[0] = str(unpacked())
from penstock.__main__ import main
main()
"""


def build(target: Path) -> int:
    """How many bytes it has."""
    files = dict(sorted([*_package(), *_dependencies()]))
    digest = hashlib.sha256()
    for name, path in files.items():
        digest.update(name.encode() + hashlib.sha256(path.read_bytes()).digest())
    start = START.format(name=digest.hexdigest()[:16], python=sys.version_info[:2], platform=sys.platform)
    target.parent.mkdir(parents=True, exist_ok=True)
    beside = target.with_name(target.name + ".new")
    with beside.open("wb") as file:
        file.write(b"#!/usr/bin/env python3\n")
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("__main__.py", start)
            for name, path in files.items():
                archive.write(path, name)
    beside.chmod(0o755)
    beside.rename(target)
    return target.stat().st_size


def _package() -> list[tuple[str, Path]]:
    # Unlike rglob, this follows the dashboard's link to the JavaScript client.
    walked = os.walk(ROOT / "src" / "penstock", followlinks=True)
    found = [Path(folder, name) for folder, _, names in walked for name in names]
    return [(str(path.relative_to(ROOT / "src")), path) for path in found if not SKIPPED & set(path.parts)]


def _dependencies() -> list[tuple[str, Path]]:
    libraries = (Path(sysconfig.get_path("purelib")), Path(sysconfig.get_path("platlib")))
    found = []
    for distribution in distributions(LOCK):
        for file in distribution.files or ():
            path = Path(str(distribution.locate_file(file))).resolve()
            inside = any(path.is_relative_to(library.resolve()) for library in libraries)
            if inside and path.is_file() and not SKIPPED & set(file.parts):
                found.append((os.fspath(file), path))
    return found


def main() -> int:
    target = Path(sys.argv[1])
    size = build(target)
    assert target.stat().st_mode & stat.S_IXUSR
    print(f"{target}: {size / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
