"""The processes of the demo are started again when they end, and none of them is left over."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from oncebox.cli.demo.fleet import Fleet, Process
from oncebox.errors import OnceboxError
from support.services import wait_until

STUBBORN = """
import os, signal, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.write(int(sys.argv[sys.argv.index("--beat") + 1]), b".")
while True:
    signal.pause()
"""


@pytest.fixture
def stubborn(tmp_path: Path) -> Process:
    """A process that ignores SIGTERM."""
    command = [sys.executable, "-c", STUBBORN, str(tmp_path)]
    return Process("stubborn", command, tmp_path / "log")


def is_ready(fleet: Fleet) -> Callable[[], bool]:
    def checked() -> bool:
        fleet.check()
        return fleet.is_ready

    return checked


def left_over(folder: Path) -> list[psutil.Process]:
    found = psutil.process_iter(["cmdline"])
    return [process for process in found if str(folder) in (process.info["cmdline"] or [])]


@pytest.mark.crash
def test_a_killed_process_is_counted_and_started_again(stubborn: Process, tmp_path: Path) -> None:
    with Fleet([stubborn], is_urgent=lambda: True) as fleet:
        wait_until(is_ready(fleet), "it does not start")
        first = left_over(tmp_path)
        assert stubborn.kill()
        wait_until(is_ready(fleet), "it does not start again")
        assert stubborn.kills == 1
        assert first != left_over(tmp_path)


def test_a_process_that_does_not_stop_is_killed_at_the_second_signal(
    stubborn: Process, tmp_path: Path
) -> None:
    began = time.monotonic()
    with Fleet([stubborn], is_urgent=lambda: True) as fleet:
        wait_until(is_ready(fleet), "it does not start")
        assert left_over(tmp_path)
    assert not left_over(tmp_path)
    assert stubborn.kills == 0  # not one of the demo's kills
    assert time.monotonic() - began < 10


def test_processes_end_if_the_demo_fails(stubborn: Process, tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), Fleet([stubborn], is_urgent=lambda: True) as fleet:
        wait_until(is_ready(fleet), "it does not start")
        raise ZeroDivisionError
    assert not left_over(tmp_path)


def test_a_process_that_cannot_start_is_an_error_with_its_last_line(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "raise SystemExit('no space left')"]
    with Fleet([Process("worker", command, tmp_path / "log")], is_urgent=lambda: True) as fleet:
        with pytest.raises(OnceboxError, match=r"worker of the demo cannot start: no space left"):
            wait_until(is_ready(fleet), "it starts")
