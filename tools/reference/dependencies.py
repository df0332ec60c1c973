"""Generates the list of dependencies and their licences."""

from __future__ import annotations

from importlib.metadata import Distribution

from tools.locks import distributions
from tools.reference.text import table

LOCKS = {
    "serve.txt": "To serve on a file",
    "deploy.txt": "And on PostgreSQL",
    "spark.txt": "And Spark",
}
# Packages that are needed only to build and install Penstock.
BUILDERS = {"hatchling", "packaging", "pathspec", "pluggy", "tomlkit", "trove-classifiers"}


OWN = """
## Implemented here instead

Penstock implements these itself, for measured reasons:

- **HTTP/1.1** (server): with uvicorn's protocol, the server reached 1,612 instead of 3,119 single-message cycles per
  second with 64 clients, and could not detect disconnects precisely ([decision](../adr/0002-own-http-parser.md)).
- **HTTP/1.1** (client): per small request, aiohttp takes 1.4 to 3 times the CPU time, urllib3 3 to 4 times, httpx 8 to
  28 times ([details](../explanation/server.md#client-library)).
- **Strict JSON**: msgspec accepts repeated names. Checking and decoding a push of 200 bytes takes 3.1 µs of CPU time;
  the standard library with a hook that finds repeated names takes 8.6 µs, and blocks other threads on large bodies.
- **Log**: appends of 100 records of 1 KiB reach 74 to 81 % of a raw write and fsync, and a read by offset takes as long
  with fifty million records as with ten thousand ([details](../explanation/log.md)).
- **Migrations**: numbered SQL files with checksums. The runner has about 40 lines; a migration tool would be a
  dependency of every embedded queue.
"""


def page() -> str:
    parts = [
        "# Dependencies\n\n"
        "Penstock's licence is Apache-2.0. `pyproject.toml` gives a reason for each dependency; versions and hashes "
        "are pinned in `requirements/`. `make audit` looks up known vulnerabilities of all of them.\n"
    ]
    seen: set[str] = set()
    for lock, title in LOCKS.items():
        new = [each for each in distributions(lock) if each.name not in seen | BUILDERS]
        seen |= {each.name for each in new}
        rows = [(each.name, each.version, licence(each)) for each in new]
        parts.append(f"\n## {title}\n\n{table(('package', 'version', 'licence'), rows)}")
    return "".join(parts) + OWN


def licence(found: Distribution) -> str:
    """Return the licence expression, or else the classifiers, or else the first words of the licence field."""
    fields = found.metadata.json
    if fields.get("license_expression"):
        return str(fields["license_expression"])
    named = [
        each.rpartition(" :: ")[2]
        for each in fields.get("classifier", [])
        if each.startswith("License :: ") and each != "License :: OSI Approved"
    ]
    return ", ".join(named) or str(fields.get("license", "")).partition("\n")[0]
