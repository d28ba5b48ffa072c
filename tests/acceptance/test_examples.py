"""The examples work: their READMEs are followed to the letter, twice."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from .conftest import query

EXAMPLES = Path(__file__).parents[2] / "examples"
PROGRAMS = {"python": [sys.executable], "oncebox": [sys.executable, "-m", "oncebox"]}


@dataclass(frozen=True)
class Example:
    """What an example is given, and what it leaves in its database."""

    name: str
    scheme: str | None
    """Of the PostgreSQL database that it gets; None: it makes a SQLite file of its own."""
    sql: str
    rows: list[tuple[Any, ...]]


ORDERS = Example(
    "sqlite3_orders",
    None,
    "SELECT number, customer, cents, state FROM orders ORDER BY number",
    [("A-1", "ada", 4200, "open"), ("A-2", "bob", 990, "cancelled"), ("A-3", "ada", 1500, "open")],
)
PAYMENTS = Example(
    "psycopg_payments",
    "postgresql",
    "SELECT account, cents FROM balances ORDER BY account",
    [("ada", 5250), ("bob", 1000)],
)
STOCK = Example(
    "sqlalchemy_async_stock",
    "postgresql+psycopg",
    "SELECT sku, quantity FROM items ORDER BY sku",
    [("apple", 70), ("pear", 35)],
)
INVOICES = Example(
    "django_invoices",
    "postgresql",
    'SELECT "order", cents, is_paid FROM invoices_invoice ORDER BY "order"',
    [("A-1", 4200, True), ("A-2", 990, False), ("A-3", 1500, False)],
)
ALL = [ORDERS, PAYMENTS, STOCK, INVOICES]

Run = Callable[..., str]


SLOW = (PAYMENTS, STOCK, INVOICES)


@pytest.fixture(
    params=[pytest.param(e, id=e.name, marks=[pytest.mark.slow] * (e in SLOW)) for e in ALL]
)
def example(request: pytest.FixtureRequest) -> Example:
    found: Example = request.param
    return found


@pytest.fixture
def folder(example: Example, tmp_path: Path) -> Path:
    """A copy of the example; what was run in the original is left there."""
    left = shutil.ignore_patterns("__pycache__", "*.db*")
    return Path(shutil.copytree(EXAMPLES / example.name, tmp_path / example.name, ignore=left))


@pytest.fixture
def database(example: Example, folder: Path, request: pytest.FixtureRequest) -> str:
    if example.scheme is None:
        return f"sqlite:///{folder}/orders.db"
    url: str = request.getfixturevalue("postgres_url")
    return url


@pytest.fixture
def environment(example: Example, folder: Path, database: str) -> dict[str, str]:
    ours = {name: value for name, value in os.environ.items() if name != "DATABASE_URL"}
    ours |= {"PWD": str(folder), "COLUMNS": "200", "NO_COLOR": "1"}
    if example.scheme is not None:
        ours["DATABASE_URL"] = database.replace("postgresql", example.scheme, 1)
    return ours


@pytest.fixture
def run(folder: Path, environment: dict[str, str]) -> Run:
    """Run a command of a README to its end; returns what it printed."""

    def run(command: str, *more: str) -> str:
        program, *arguments = shlex.split(command.replace("$PWD", str(folder)))
        done = subprocess.run(
            [*PROGRAMS[program], *arguments, *more],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, f"{command}\n{done.stderr}"
        assert "Traceback" not in done.stderr, f"{command}\n{done.stderr}"
        return done.stdout

    return run


def commands(folder: Path) -> list[str]:
    """The commands of a README, without the line that names the database."""
    block = (folder / "README.md").read_text().split("```\n")[1]
    lines = [line for line in block.splitlines() if not line.startswith("export ")]
    return [command for line in lines for command in line.split(" && ")]


def test_an_example_does_what_its_readme_says_and_the_second_time_nothing(
    example: Example, folder: Path, database: str, run: Run
) -> None:
    *preparations, consume, status = commands(folder)
    shutil.copy(folder / "events.jsonl", folder / "copy.jsonl")
    consume_copy = consume.replace("events.jsonl", "copy.jsonl")

    for command in [*preparations, consume]:
        run(command)
    assert query(database, example.sql) == example.rows
    assert "duplicates absorbed" in run(status)

    for command in [*preparations, consume_copy]:
        run(command)
    assert query(database, example.sql) == example.rows
    found = json.loads(run(status, "--json"))
    assert (found["ready"], found["retrying"], found["blocked"], found["dead"]) == (0, 0, 0, [])
    assert found["rates"]["60"]["done"] == 4
    assert found["rates"]["60"]["duplicate"] == 6, "one of the file, all five of its copy"


def test_every_example_is_tested_and_short() -> None:
    folders = {path.name for path in EXAMPLES.iterdir() if path.is_dir()}
    assert folders == {example.name for example in ALL}
    for path in EXAMPLES.rglob("*.py"):
        assert len(path.read_text().splitlines()) < 40, path
