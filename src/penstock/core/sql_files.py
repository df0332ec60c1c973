"""Loads SQL statements and schema migrations from .sql files.

Migrations are numbered. Each is applied once, in order, in the transaction that also records it as applied.
"""

from __future__ import annotations

import hashlib
import re
from importlib import resources
from typing import NamedTuple

from penstock.core.ids import ID_BITS, ID_MAX, QUEUE_ID_MAX, QUEUE_SHIFT

# Numbers that the statements refer to by name.
CONSTANTS = {"ID_BITS": ID_BITS, "ID_MAX": ID_MAX, "QUEUE_ID_MAX": QUEUE_ID_MAX, "QUEUE_SHIFT": QUEUE_SHIFT}


class Migration(NamedTuple):
    version: int
    name: str
    sql: str

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.sql.encode()).hexdigest()[:16]


def load_migrations(package: str) -> list[Migration]:
    """Return the migrations of a store, from `migrations/0001_name.sql` in its package."""
    found = []
    for file in resources.files(package).joinpath("migrations").iterdir():
        if file.name.endswith(".sql"):
            number, _, name = file.name.removesuffix(".sql").partition("_")
            found.append(Migration(int(number), name, file.read_text(encoding="utf-8")))
    return sorted(found)


def load_sql(package: str, verb: str, **constants: int) -> dict[str, str]:
    """Return the statements of `sql/<verb>.sql` by the name in the `-- :name` line above each.

    The names of CONSTANTS and of `constants` are replaced by their values.
    """
    text = resources.files(package).joinpath("sql", f"{verb}.sql").read_text(encoding="utf-8")
    constants |= CONSTANTS
    text = re.sub(rf"\b({'|'.join(constants)})\b", lambda match: str(constants[match[0]]), text)
    statements: dict[str, str] = {}
    for part in ("\n" + text).split("\n-- :")[1:]:
        name, _, sql = part.partition("\n")
        assert name.strip() not in statements, f"{verb}.sql has two statements named {name.strip()!r}"
        statements[name.strip()] = sql.strip()
    return statements
