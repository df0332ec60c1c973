"""What is installed with Penstock, and under which licences."""

from __future__ import annotations

from importlib.metadata import Distribution

from tools.locks import distributions
from tools.reference.text import table

LOCKS = {
    "serve.txt": "To serve on a file",
    "deploy.txt": "And on PostgreSQL",
    "spark.txt": "And Spark",
}
BUILDERS = {"hatchling", "packaging", "pathspec", "pluggy", "tomlkit", "trove-classifiers"}
"""Only needed to install Penstock itself."""


def page() -> str:
    parts = [
        "# Dependencies and their licences\n\n"
        "Penstock itself: Apache-2.0. Each dependency is named in `pyproject.toml` with the reason why it is there; "
        "versions and hashes are pinned in `requirements/`. `make audit` looks up known vulnerabilities of all.\n"
    ]
    seen: set[str] = set()
    for lock, title in LOCKS.items():
        new = [each for each in distributions(lock) if each.name not in seen | BUILDERS]
        seen |= {each.name for each in new}
        rows = [(each.name, each.version, licence(each)) for each in new]
        parts.append(f"\n## {title}\n\n{table(('package', 'version', 'licence'), rows)}")
    return "".join(parts)


def licence(found: Distribution) -> str:
    """The expression if there is one, else the classifiers, else the first words of the field."""
    fields = found.metadata.json
    if fields.get("license_expression"):
        return str(fields["license_expression"])
    named = [
        each.rpartition(" :: ")[2]
        for each in fields.get("classifier", [])
        if each.startswith("License :: ") and each != "License :: OSI Approved"
    ]
    return ", ".join(named) or str(fields.get("license", "")).partition("\n")[0]
