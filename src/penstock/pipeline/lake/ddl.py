"""Statements that register the lake's tables in a catalog of Spark, or as views in DuckDB.

Spark reads the columns and their comments from the Delta tables themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from penstock.pipeline.lake.lake import LakeTable


def spark_statements(tables: Sequence[LakeTable]) -> Iterator[str]:
    for schema in _schemas(tables):
        yield f"CREATE SCHEMA IF NOT EXISTS `{schema}`;"
    for table in tables:
        name = ".".join(f"`{part}`" for part in table.table.name.split("."))
        place, about = _text(str(table.folder), "\\'"), _text(table.table.about, "\\'")
        yield f"CREATE TABLE IF NOT EXISTS {name} USING delta COMMENT {about} LOCATION {place};"


def duckdb_statements(tables: Sequence[LakeTable]) -> Iterator[str]:
    yield "INSTALL delta; LOAD delta;"
    for schema in _schemas(tables):
        yield f'CREATE SCHEMA IF NOT EXISTS "{schema}";'
    for table in tables:
        name = ".".join(f'"{part}"' for part in table.table.name.split("."))
        yield f"CREATE OR REPLACE VIEW {name} AS SELECT * FROM delta_scan({_text(str(table.folder))});"
        yield f"COMMENT ON VIEW {name} IS {_text(table.table.about)};"
        for field in table.table.schema:
            if comment := (field.metadata or {}).get(b"comment", b"").decode():
                yield f'COMMENT ON COLUMN {name}."{field.name}" IS {_text(comment)};'


def _schemas(tables: Sequence[LakeTable]) -> list[str]:
    return list(dict.fromkeys(table.table.name.partition(".")[0] for table in tables))


def _text(value: str, quote: str = "''") -> str:
    if quote != "''":
        value = value.replace("\\", "\\\\")
    return "'" + value.replace("'", quote) + "'"
