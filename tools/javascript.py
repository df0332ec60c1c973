"""Checks the types of the JavaScript client and the dashboard, and that the client's declarations are up to date.

`--write` regenerates the declarations from the comments. TypeScript is installed from clients/js/package-lock.json only
for this check. Without Node it prints a warning and skips the check; with CI=true it fails.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

CLIENT = Path(__file__).resolve().parent.parent / "clients" / "js"
PUBLISHED = CLIENT / "types"
MODULES = CLIENT / "node_modules"
STAMP = MODULES / ".installed"


def main() -> int:
    missing = [name for name in ("node", "npm") if shutil.which(name) is None]
    if missing:
        print(f"{' and '.join(missing)} not found: skipping the type check of clients/js", file=sys.stderr)
        return 1 if os.environ.get("CI") == "true" else 0
    if not install():
        return 1
    if "--write" in sys.argv[1:]:
        shutil.rmtree(PUBLISHED, ignore_errors=True)
        return declare(PUBLISHED)
    return compile_("-p", "tsconfig.json") or compile_("-p", "tsconfig.dashboard.json") or compare()


def install() -> bool:
    """Install TypeScript unless this lock file is installed already."""
    lock = hashlib.sha256((CLIENT / "package-lock.json").read_bytes()).hexdigest()
    if STAMP.exists() and STAMP.read_text() == lock:
        return True
    print("installing clients/js/package-lock.json")
    if subprocess.run(["npm", "ci", "--silent", "--ignore-scripts"], cwd=CLIENT).returncode != 0:
        return False
    STAMP.write_text(lock)
    return True


def compare() -> int:
    with tempfile.TemporaryDirectory() as name:
        made = Path(name)
        if status := declare(made):
            return status
        if contents(made) == contents(PUBLISHED):
            return 0
    print("stale: clients/js/types; run `make js-types`", file=sys.stderr)
    return 1


def declare(folder: Path) -> int:
    return compile_("-p", "tsconfig.types.json", "--outDir", str(folder))


def compile_(*options: str) -> int:
    program = MODULES / "typescript" / "bin" / "tsc"
    return subprocess.run(["node", str(program), *options], cwd=CLIENT).returncode


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("*.d.ts")}


if __name__ == "__main__":
    sys.exit(main())
