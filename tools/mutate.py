"""Breaks the code behind each promise, one small change at a time, and checks that the promise's test fails.

python tools/mutate.py               # all mutations, in a copy of the tree
python tools/mutate.py --only order  # those whose promise, file or test contains this text

A mutation survives if the test still passes. Then the promise is not tested, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MUTATIONS = Path(__file__).with_name("mutations.toml")
TEST_SECONDS_MAX = 400


@dataclass(frozen=True)
class Mutation:
    promise: str
    """The number of the promise in docs/explanation/promises.md."""
    file: str
    old: str
    new: str
    test: str
    """The arguments for pytest."""


def load() -> list[Mutation]:
    return [Mutation(**each) for each in tomllib.loads(MUTATIONS.read_text(encoding="utf-8"))["mutation"]]


def copy_tree(target: Path) -> None:
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)
    (target / ".venv").symlink_to(ROOT / ".venv")


def failing_tests(tree: Path, mutation: Mutation) -> str:
    """Return the names of the tests that fail with the mutation, or an empty string if it survives."""
    path = tree / mutation.file
    before = path.read_text(encoding="utf-8")
    if before.count(mutation.old) != 1:
        raise SystemExit(f"{mutation.file} contains {before.count(mutation.old)} times, not once: {mutation.old!r}")
    path.write_text(before.replace(mutation.old, mutation.new), encoding="utf-8")
    try:
        return run_test(tree, mutation.test)
    finally:
        path.write_text(before, encoding="utf-8")


def run_test(tree: Path, test: str) -> str:
    """Run the test in the changed tree and return the names of the tests that failed."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *shlex.split(test)]
    env = os.environ | {"PYTHONPATH": f"{tree / 'src'}{os.pathsep}{tree}", "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            command, cwd=tree, env=env, capture_output=True, text=True, timeout=TEST_SECONDS_MAX, check=False
        )
    except subprocess.TimeoutExpired:
        return "timed out"
    if done.returncode == 0:
        return ""
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    if done.returncode != 1 or not failed:
        raise SystemExit(f"pytest could not run {test}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return ", ".join(name.rpartition("::")[2] for name in failed)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="part of a promise's number, a file or a test")
    chosen = parser.parse_args()
    mutations = [each for each in load() if chosen.only in f"{each.promise} {each.file} {each.test}"]
    survived = 0
    with tempfile.TemporaryDirectory(prefix="penstock-mutate-") as folder:
        tree = Path(folder)
        tree.chmod(0o755)
        copy_tree(tree)
        for each in mutations:
            begun = time.monotonic()
            failed = failing_tests(tree, each)
            survived += not failed
            change = " ".join(each.new.split()) or "nothing"
            print(f"{each.promise:>3}  {'killed  ' if failed else 'SURVIVED'} {each.file}: {change[:70]}")
            print(f"     {time.monotonic() - begun:.0f} s  {failed or each.test}", flush=True)
    print(f"{len(mutations) - survived} of {len(mutations)} mutations were killed")
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
