"""Whether the process of a worker has ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from oncebox.storage.worker_identity import incarnation, is_gone, worker_name
from support.services import wait_until

CHILD = """
import sys
from oncebox.storage.worker_identity import incarnation, worker_name
print(worker_name(3), incarnation(), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def child() -> Iterator[subprocess.Popen[str]]:
    """A process that waits for its end."""
    command = [sys.executable, "-c", CHILD]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def introduced(child: subprocess.Popen[str]) -> tuple[str, str]:
    """The name and incarnation that a child gives itself."""
    assert child.stdout is not None
    name, own = child.stdout.readline().split()
    return name, own


def test_our_own_process_is_alive() -> None:
    assert not is_gone(worker_name(0), incarnation())


def test_no_two_workers_are_the_same() -> None:
    assert incarnation() != incarnation()
    assert worker_name(0) != worker_name(1)
    assert f":{os.getpid()}:7" in worker_name(7)


def test_an_ended_process_is_detected(child: subprocess.Popen[str]) -> None:
    name, own = introduced(child)
    assert not is_gone(name, own)
    child.kill()
    child.wait()
    assert is_gone(name, own)


def test_a_zombie_process_has_ended(child: subprocess.Popen[str]) -> None:
    """A zombie still has its number, and a supervisor may be slow."""
    name, own = introduced(child)
    child.send_signal(signal.SIGKILL)
    wait_until(lambda: is_gone(name, own), "it is still believed to live")
    os.kill(child.pid, 0)  # its number is taken


def test_a_suspended_process_is_not_taken_for_ended(child: subprocess.Popen[str]) -> None:
    name, own = introduced(child)
    child.send_signal(signal.SIGSTOP)
    assert not is_gone(name, own)
    child.send_signal(signal.SIGCONT)


def test_a_pid_that_another_process_has_now_does_not_count() -> None:
    """Our own number, and a process that began at another time."""
    namespace, began, chance = incarnation().split(".")
    assert began.isdecimal()
    assert is_gone(worker_name(0), f"{namespace}.{int(began) - 1}.{chance}")


def test_a_process_on_another_machine_is_not_taken_for_ended() -> None:
    name = f"elsewhere:{2**22 + 1}:0"
    assert not is_gone(name, incarnation())


def test_a_process_in_another_container_is_not_taken_for_ended() -> None:
    """It may have our host's name, and our number."""
    _, began, chance = incarnation().split(".")
    assert not is_gone(worker_name(0), f"1.{int(began) - 1}.{chance}")


def test_a_name_of_another_format_is_not_taken_for_ended() -> None:
    host = worker_name(0).rsplit(":", 2)[0]
    assert not is_gone(f"{host}:x:0", incarnation())


def test_a_process_of_another_user_is_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbid(pid: int, number: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "kill", forbid)
    assert not is_gone(worker_name(0), incarnation())


def test_without_proc_a_pid_in_use_counts_as_alive(
    monkeypatch: pytest.MonkeyPatch, child: subprocess.Popen[str]
) -> None:
    """As on macOS: no /proc."""

    def refuse(self: object, *args: object) -> None:
        raise FileNotFoundError

    monkeypatch.setattr(Path, "stat", refuse)
    monkeypatch.setattr(Path, "read_text", refuse)
    own = incarnation()
    assert own.startswith("..")
    assert not is_gone(worker_name(0), own)
    introduced(child)
    child.kill()
    child.wait()
    host = worker_name(0).rsplit(":", 2)[0]
    assert is_gone(f"{host}:{child.pid}:0", own)
