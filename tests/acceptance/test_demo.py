"""The demo: both sides get kill -9, the books of oncebox balance, and a user can check it."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import psutil
import psycopg
import pytest

from oncebox.cli.demo.books import SqliteBooks
from oncebox.cli.demo.command import next_command
from oncebox.cli.demo.simulation import LATE_PAYMENTS

DEMO = [sys.executable, "-m", "oncebox", "demo", "--seconds", "5"]

COUNTS = (
    "payments booked",
    "booked twice after kill -9",
    "booked twice by a double click",
    "payments lost",
)
"""Rows of the final table that the query computes, in its order."""

pytestmark = pytest.mark.crash


def environment(folder: Path) -> dict[str, str]:
    return {**os.environ, "COLUMNS": "120", "TMPDIR": str(folder)}


def run_demo(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*DEMO, *arguments],
        cwd=folder,
        env=environment(folder),
        capture_output=True,
        text=True,
        timeout=110,
    )


def cells(output: str, name: str) -> list[str]:
    """The cells of a row of the final table."""
    return next(line for line in output.splitlines() if line.startswith(name))[32:].split()


def processes_below(folder: Path) -> list[str]:
    """The command lines that name this folder."""
    found = [" ".join(p.info["cmdline"] or []) for p in psutil.process_iter(["cmdline"])]
    return [line for line in found if str(folder) in line]


def assert_balanced(done: subprocess.CompletedProcess[str]) -> None:
    """Both sides were killed, oncebox booked everything once, and the naive consumer did not."""
    assert done.returncode == 0, done.stdout + done.stderr
    kills = cells(done.stdout, "processes killed by kill -9")
    assert kills[0] == kills[1]
    assert int(kills[0]) > 0
    sent, _, ours = cells(done.stdout, "payments booked")
    assert sent == ours
    assert f"oncebox booked each of the {sent} payments once under kill -9" in done.stdout
    assert cells(done.stdout, "payments lost") == ["0", str(LATE_PAYMENTS), "0"]


def test_the_books_balance_under_kill_9_and_the_printed_query_confirms_it(tmp_path: Path) -> None:
    done = run_demo(tmp_path, "--keep")
    assert_balanced(done)
    assert not processes_below(tmp_path)
    start = done.stdout.index("SELECT")
    query = done.stdout[start : done.stdout.index(";", start)]
    paths = re.findall(r"^  sqlite3 (.+)$", done.stdout, re.MULTILINE)
    for path, side in zip(paths, (2, 1), strict=True):
        with closing(sqlite3.connect(path)) as connection:
            sent, *counts, _ = connection.execute(query).fetchone()
        shown = [cells(done.stdout, name)[side].replace(",", "") for name in COUNTS]
        assert shown == [str(count) for count in counts]
        assert sent == counts[0] + counts[-1]


def test_the_printed_next_command_works(tmp_path: Path) -> None:
    ours = SqliteBooks(tmp_path / "oncebox.db")
    ours.close()
    command = next_command(ours, keep=True)
    environment = {**os.environ, "ONCEBOX_DEMO_DATABASE": ours.url}
    migrate = [*DEMO[:3], "migrate", "oncebox.cli.demo.app:inbox"]
    subprocess.run(migrate, check=True, env=environment, capture_output=True, timeout=60)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    status = subprocess.run(
        command,
        shell=True,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert status.returncode == 0, status.stderr
    assert "duplicates absorbed" in status.stdout


@pytest.mark.slow
def test_the_books_balance_under_kill_9_on_postgres(postgres_url: str, tmp_path: Path) -> None:
    assert_balanced(run_demo(tmp_path, "--database", postgres_url))
    assert not list(tmp_path.iterdir())
    with psycopg.connect(postgres_url) as connection:
        found = connection.execute("SELECT FROM pg_namespace WHERE nspname LIKE 'oncebox_demo%'")
        assert not found.fetchall()


def test_ctrl_c_stops_the_demo_and_all_its_processes(tmp_path: Path) -> None:
    with subprocess.Popen(
        [*DEMO, "--seconds", "60"],
        cwd=tmp_path,
        env=environment(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as running:
        assert running.stdout is not None
        assert any("kill -9: " in line for line in running.stdout)
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=60)
    assert running.returncode == 130
    assert not err
    assert "this run proves nothing" in out
    assert not processes_below(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_database_that_the_demo_does_not_know_is_refused(tmp_path: Path) -> None:
    done = run_demo(tmp_path, "--database", "mysql://x")
    assert done.returncode == 2
    assert "postgresql://" in done.stderr
