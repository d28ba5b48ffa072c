"""oncebox run as process 1, as in a container: no parent process reaps or kills its children."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import signal
import subprocess
import termios
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from support.services import namespaces, wait_until

from .conftest import APP, Command, event, query, write_events

pytestmark = [
    pytest.mark.usefixtures("ready"),
    pytest.mark.crash,
    pytest.mark.parametrize("database", ["sqlite"], indirect=True),
]

PARENT = """
import subprocess, time

@inbox.on("parent")
def beget(message: Message, tx: Transaction) -> None:
    tx.execute("insert into effects (id) values (:id)", id=message.id)
    subprocess.Popen(["sleep", "611"])                      # outlives its worker
    subprocess.run(["sh", "-c", "sleep 612 & sleep 612 &"])  # orphans at once

@inbox.on("slow")
def take_time(message: Message, tx: Transaction) -> None:
    open("slow", "w").close()
    time.sleep(2)
    tx.execute("insert into effects (id) values (:id)", id=message.id)
"""


@pytest.fixture
def prefix() -> list[str]:
    return namespaces.process_one()


@pytest.fixture
def events(folder: Path) -> Path:
    (folder / "billing.py").write_text(APP + PARENT)
    path = folder / "events.jsonl"
    path.touch()
    return path


@pytest.fixture
def follow(start: Callable[..., Any], events: Path) -> Callable[..., Any]:
    """Start a run that does not end by itself."""

    def follow(**options: Any) -> subprocess.Popen[str]:
        run: subprocess.Popen[str] = start(
            "run", "billing:inbox", "--from", f"file://{events}?follow=1", **options
        )
        return run

    return follow


def write_event(path: Path, id: str, type: str) -> None:
    with path.open("a") as file:
        file.write(json.dumps(event(id, type)) + "\n")


def effects(database: str) -> list[str]:
    return [row[0] for row in query(database, "SELECT id FROM effects ORDER BY id")]


def process_one(run: subprocess.Popen[str]) -> psutil.Process:
    """The first process of the namespace, as it is seen from here."""
    outside = psutil.Process(run.pid)
    wait_until(lambda: bool(outside.children()), "there is no process 1")
    return outside.children()[0]


def commands(processes: list[psutil.Process], *wanted: str) -> list[psutil.Process]:
    """Those whose command line has all these words."""
    found = []
    for process in processes:
        try:
            line = process.cmdline()
        except (psutil.NoSuchProcess, psutil.ZombieProcess):
            continue
        if set(wanted) <= set(line):
            found.append(process)
    return found


def zombies(one: psutil.Process) -> list[psutil.Process]:
    return [p for p in one.children(recursive=True) if _status(p) == psutil.STATUS_ZOMBIE]


def _status(process: psutil.Process) -> str | None:
    try:
        return str(process.status())
    except psutil.NoSuchProcess:
        return None


def test_process_one_reads_a_file_whole(oncebox: Command, database: str, events: Path) -> None:
    ids = [f"{number:03}" for number in range(250)]
    write_events(events, *ids)
    done = oncebox("run", "billing:inbox", "--from", f"file://{events}")
    assert done.returncode == 0, done.stderr
    assert effects(database) == ids


def test_process_one_reaps_orphans_and_stops_on_a_signal(
    follow: Callable[..., Any], database: str, events: Path
) -> None:
    run = follow()
    try:
        one = process_one(run)
        write_event(events, "1", "parent")
        wait_until(lambda: effects(database) == ["1"], "nothing is read")
        wait_until(lambda: len(commands(one.children(), "sleep", "612")) == 2, "no orphans")
        (consumer,) = commands(one.children(recursive=True), "worker-process", "consumer")
        consumer.kill()
        wait_until(
            lambda: len(commands(one.children(), "sleep")) == 3, "its children do not outlive it"
        )
        for orphan in commands(one.children(), "sleep"):
            orphan.kill()
        wait_until(lambda: not zombies(one), "zombies pile up")
        write_events(events, "2")
        wait_until(lambda: effects(database) == ["1", "2"], "it does not go on")
        one.terminate()
        _, err = run.communicate(timeout=30)
    finally:
        run.kill()
        run.communicate()
    assert run.returncode == 0, err
    assert "ended with signal SIGKILL: restarting" in err, "its own child is its own"
    assert err.count("restarting in") == 1
    assert query(database, "SELECT owner FROM oncebox_position") == [(None,)], "it signed off"


def test_process_one_is_ended_by_a_signal_before_it_runs(
    follow: Callable[..., Any], folder: Path, events: Path
) -> None:
    """The kernel spares process 1 what it does not handle."""
    (folder / "billing.py").write_text("import time\nopen('here', 'w').close()\ntime.sleep(600)\n")
    run = follow()
    try:
        wait_until((folder / "here").exists, "it is not even imported")
        process_one(run).terminate()
        run.communicate(timeout=30)
    finally:
        run.kill()
        run.communicate()
    assert run.returncode == 128 + signal.SIGTERM


def test_ctrl_c_in_the_terminal_of_process_one_is_one_signal(
    follow: Callable[..., Any], database: str, folder: Path, events: Path
) -> None:
    """A second signal would end the batch in flight."""
    ours, theirs = pty.openpty()
    run = follow(
        stdin=theirs,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    try:
        write_event(events, "1", "slow")
        wait_until((folder / "slow").exists, "nothing is read")
        os.write(ours, b"\x03")
        _, err = run.communicate(timeout=30)
    finally:
        run.kill()
        run.communicate()
        os.close(ours)
        os.close(theirs)
    assert run.returncode == 0, err
    assert effects(database) == ["1"]
