"""Run the examples that need other tools on a lake of sample orders: dbt, and Spark Declarative Pipelines.

Each tool is installed from PyPI into a virtual environment that is removed afterwards.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import venv
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"
PENSTOCK = (sys.executable, "-m", "penstock")
# Later releases of dbt-core download a part of themselves while they are installed.
DBT = ("dbt-duckdb", "dbt-core<1.12", "deltalake", "pyarrow")
ORDERS = [
    {"id": 1, "customer": "ada", "amount": 25},
    {"id": 2, "customer": "bob", "amount": 9.5},
    {"id": 3, "customer": "bob", "amount": 0.5},
    {"id": "4", "customer": "bob"},
]
SCHEMA = {
    "type": "object",
    "properties": {"id": {"type": "integer"}, "customer": {"type": "string"}, "amount": {"type": "number"}},
    "required": ["id", "customer"],
}
TOTALS = [("ada", 1, 25.0), ("bob", 2, 10.0)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tools", nargs="*", default=sorted(TOOLS), help=", ".join(sorted(TOOLS)))
    wanted = parser.parse_args().tools
    with tempfile.TemporaryDirectory(prefix="penstock-interop-") as folder:
        data = _data(Path(folder))
        for name in wanted:
            print(f"{name}: installing and running", flush=True)
            place = Path(folder, name)
            place.mkdir()
            TOOLS[name](place, data)
            print(f"{name}: passed", flush=True)
    return 0


def _run(*command: str | Path, cwd: Path, env: dict[str, str] | None = None, text: str | None = None) -> str:
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=os.environ | (env or {}),
        input=text,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout[-4_000:]}\n{done.stderr[-4_000:]}")
    return done.stdout


def _data(folder: Path) -> Path:
    """Make a data folder with orders, and its lake with a typed model."""
    data, schema = folder / "data", folder / "orders.json"
    data.mkdir()
    schema.write_text(json.dumps(SCHEMA))
    where = ("--data", str(data))
    push = "from penstock import connect; import json, sys\nwith connect(sys.argv[1]) as queues:\n"
    push += " queues.create_queue('orders')\n for order in json.loads(sys.argv[2]): queues.queue('orders').push(order)"
    _run(sys.executable, "-c", push, f"sqlite:///{data / 'penstock.db'}", json.dumps(ORDERS), cwd=folder)
    _run(*PENSTOCK, "pipeline", "run", *where, cwd=folder)
    _run(*PENSTOCK, "pipeline", "model", "add", "orders", "--queue", "orders", "--schema", schema, *where, cwd=folder)
    _run(*PENSTOCK, "pipeline", "run", *where, cwd=folder)
    return data


def _environment(folder: Path, *packages: str) -> Path:
    """Create a virtual environment with these packages, and return its folder of programs."""
    venv.create(folder / "venv", with_pip=True)
    programs = folder / "venv" / "bin"
    _run(programs / "python", "-m", "pip", "install", "-q", *packages, cwd=folder)
    return programs


def _dbt(folder: Path, data: Path) -> None:
    programs = _environment(folder, *DBT)
    project = EXAMPLES / "dbt"
    env = {
        "LAKE": str(data / "lake"),
        "DBT_DUCKDB": str(folder / "orders.duckdb"),
        "DBT_TARGET_PATH": str(folder / "target"),
        "DBT_LOG_PATH": str(folder / "logs"),
        "DBT_SEND_ANONYMOUS_USAGE_STATS": "false",
    }
    _run(programs / "dbt", "build", "--project-dir", project, "--profiles-dir", project, cwd=folder, env=env)
    query = "import duckdb, json, sys; print(json.dumps(duckdb.connect(sys.argv[1]).sql("
    query += "'SELECT customer, orders, total FROM customers ORDER BY customer').fetchall()))"
    _check(_run(programs / "python", "-c", query, folder / "orders.duckdb", cwd=folder))


def _declarative(folder: Path, data: Path) -> None:
    programs = _environment(folder, f"{ROOT}[spark]", "pyspark[connect]")
    (folder / "warehouse").mkdir()
    settings = {
        "spark.orders.data": data,
        "spark.sql.warehouse.dir": folder / "warehouse",
        "spark.driver.bindAddress": "127.0.0.1",
    }
    conf = [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
    spec = folder / "spark-pipeline.yml"
    text = (EXAMPLES / "declarative_pipeline" / "spark-pipeline.yml").read_text()
    text = text.replace("file:///tmp/penstock-orders-pipeline", f"file://{folder}/storage")
    spec.write_text(text)
    (folder / "transformations").symlink_to(EXAMPLES / "declarative_pipeline" / "transformations")
    env = {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": str(programs / "python"), "SPARK_HOME": ""}
    env["PATH"] = f"{programs}:{os.environ['PATH']}"
    _run(programs / "spark-pipelines", "run", "--spec", spec, *conf, cwd=folder, env=env)
    query = "import json, sys, pyarrow.parquet as pq; print(json.dumps([list(row.values()) for row in sorted("
    query += "pq.read_table(sys.argv[1]).to_pylist(), key=lambda row: row['customer'])]))"
    _check(_run(programs / "python", "-c", query, folder / "warehouse" / "customers", cwd=folder))


def _check(printed: str) -> None:
    found = [tuple(row) for row in json.loads(printed.splitlines()[-1])]
    if found != TOTALS:
        sys.exit(f"expected {TOTALS}, got {found}")


TOOLS: dict[str, Callable[[Path, Path], None]] = {"dbt": _dbt, "declarative-pipeline": _declarative}

if __name__ == "__main__":
    sys.exit(main())
