"""A full disk is reported, nothing is lost, and the run continues once there is space."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.services import namespaces, wait_until

from .conftest import Command, event

pytestmark = pytest.mark.crash

LINES = 3_000
SIZE = 32_768
"""Kilobytes of the disk."""
QUERY = """
import sqlite3, sys
connection = sqlite3.connect("disk/inbox.db", timeout=30)
for row in connection.execute(sys.argv[1]).fetchall():
    print(*row)
connection.commit()
connection.close()
"""


class Disk:
    """What is done on a disk that only commands under a prefix see."""

    def __init__(self, prefix: list[str]) -> None:
        self.prefix = prefix

    def run(self, *command: str) -> str:
        done = subprocess.run([*self.prefix, *command], capture_output=True, text=True, timeout=60)
        return done.stdout.strip()

    def query(self, sql: str) -> str:
        return self.run(sys.executable, "-c", QUERY, sql)

    def fill(self, but: int = 0) -> None:
        """Leave no room but some kilobytes."""
        free = int(self.run("df", "--output=avail", "-k", "disk").split()[-1])
        assert free <= SIZE, "this is a real disk"
        self.run("dd", "if=/dev/zero", "of=disk/ballast", "bs=1k", f"count={free - but}")

    def make_room(self) -> None:
        self.run("rm", "disk/ballast")


@pytest.fixture
def disk(folder: Path) -> Iterator[Disk]:
    (folder / "disk").mkdir()
    with namespaces.disk(folder / "disk", f"{SIZE}k") as prefix:
        yield Disk(prefix)


@pytest.fixture
def prefix(disk: Disk) -> list[str]:
    return disk.prefix


@pytest.fixture
def database(folder: Path) -> str:
    return f"sqlite:///{folder}/disk/inbox.db"


@pytest.fixture
def events(folder: Path) -> Path:
    path = folder / "events.jsonl"
    with path.open("w") as file:
        for number in range(LINES):
            file.write(json.dumps({**event(str(number)), "data": "x" * 500}) + "\n")
    return path


@pytest.fixture(autouse=True)
def migrated(oncebox: Command, disk: Disk) -> None:
    assert oncebox("migrate", "billing:inbox").returncode == 0
    disk.query("CREATE TABLE effects (id text)")


def test_a_run_waits_on_a_full_disk_and_continues_once_there_is_space(
    start: Callable[..., Any], disk: Disk, events: Path, tmp_path: Path
) -> None:
    disk.fill(but=1_500)
    log = tmp_path / "log"
    with log.open("w") as err:
        run = start("run", "billing:inbox", "--from", f"file://{events}", stderr=err)
    try:
        full = "database unavailable (the disk is full: OperationalError SQLITE_FULL)"
        wait_until(lambda: full in log.read_text(), "no worker reports the full disk")
        before = int(disk.query("SELECT count(*) FROM effects"))
        assert 0 < before < LINES
        disk.make_room()
        assert run.wait(timeout=90) == 0, log.read_text()
    finally:
        run.kill()
        run.communicate()
    assert disk.query("SELECT count(*), count(DISTINCT id) FROM effects") == f"{LINES} {LINES}"
    assert disk.query("SELECT count(*) FROM oncebox_dead_letter") == "0"


def test_a_run_that_cannot_begin_on_a_full_disk_says_so(
    oncebox: Command, disk: Disk, events: Path
) -> None:
    disk.fill()
    refused = oncebox("run", "billing:inbox", "--from", f"file://{events}")
    assert refused.returncode == 1
    assert refused.stderr.startswith("error: cannot connect to the database (the disk is full: ")
    assert "Traceback" not in refused.stderr
    disk.make_room()
    done = oncebox("run", "billing:inbox", "--from", f"file://{events}")
    assert done.returncode == 0, done.stderr
    assert disk.query("SELECT count(*), count(DISTINCT id) FROM effects") == f"{LINES} {LINES}"
