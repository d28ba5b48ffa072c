"""The supervisor: how long it waits before restarts, and what it does after exit code 2."""

from __future__ import annotations

import sys

import pytest

from oncebox.services.supervisor import LONGEST_BACKOFF, MISUSED, Backoff, Supervisor, Task


def test_a_worker_that_crashes_after_some_seconds_each_time_is_restarted_less_and_less_often() -> (
    None
):
    backoff = Backoff()
    pauses = [backoff.after(ran=3.0) for _ in range(10)]
    assert pauses[:4] == [0.5, 1.0, 2.0, 4.0]
    assert pauses[-1] == LONGEST_BACKOFF


def test_a_worker_that_ran_long_enough_is_restarted_soon() -> None:
    backoff = Backoff()
    for _ in range(10):
        backoff.after(ran=3.0)
    assert backoff.after(ran=3600.0) == 0.5
    assert backoff.after(ran=3.0) == 1.0


def test_a_wrong_configuration_stops_all_workers_and_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def task(name: str, code: str) -> Task:
        return Task(name, [sys.executable, "-c", code], heartbeat_timeout=60)

    wrong = task("worker 1", "raise SystemExit(2)")
    other = task("worker 2", "import time; time.sleep(60)")
    assert Supervisor([wrong, other]).run() == MISUSED
    (line,) = [r.getMessage() for r in caplog.records if r.levelname == "ERROR"]
    assert line.startswith("worker 1 (process ")
    assert line.endswith(
        ") ended with exit code 2: its configuration is wrong, so all workers stop"
    )
