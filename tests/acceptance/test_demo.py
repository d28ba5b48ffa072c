"""The demo balances, and reports it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from oncebox.cli.demo.stream import Stream

WIDE = ["postgres"] if "ONCEBOX_SOAK_LINES" in os.environ else []
DEMO = [sys.executable, "-m", "oncebox", "demo", "--seconds", "6"]


@pytest.mark.crash
@pytest.mark.slow
@pytest.mark.parametrize("database", ["sqlite", *WIDE])
def test_the_books_balance_under_kill_9(
    database: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    where = []
    if database == "postgres":
        where = ["--database", request.getfixturevalue("postgres_url")]
    done = subprocess.run(
        [*DEMO, *where],
        cwd=tmp_path,
        env={**os.environ, "COLUMNS": "120"},
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "The books of oncebox balance" in done.stdout
    assert "1 dead letter retried" in done.stdout
    assert "expected" in done.stdout


def test_a_database_that_the_demo_does_not_know_is_refused(tmp_path: Path) -> None:
    done = subprocess.run(
        [*DEMO, "--database", "mysql://x"], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert "postgresql://" in done.stderr


def test_the_stream_counts_the_expected_payments() -> None:
    stream = Stream(1)
    lines = list(stream.lines(1000))
    expected = stream.expected
    assert len(lines) == expected.deliveries == 1000
    assert expected.payments + expected.repeated + expected.doubled == 1000
    assert expected.repeated > 100
    assert expected.doubled > 5
