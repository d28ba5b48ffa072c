"""oncebox run: workers crash, hang or stop, and nothing is lost."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.services import wait_until
from support.services.postgres import Postgres

from .conftest import query, write_events
from .processes import complaints, is_ready, workers

pytestmark = [pytest.mark.usefixtures("ready"), pytest.mark.crash]


@pytest.fixture
def events(folder: Path) -> Path:
    path = folder / "events.jsonl"
    path.touch()
    return path


@pytest.fixture
def port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def effects(database: str) -> list[str]:
    return [row[0] for row in query(database, "SELECT id FROM effects ORDER BY id")]


def test_workers_that_are_killed_are_started_again_and_nothing_is_lost(
    start: Callable[..., Any], database: str, events: Path, port: int
) -> None:
    ids = [f"{number:03}" for number in range(60)]
    run = start(
        "run", "billing:inbox", "--from", f"file://{events}?follow=1", "--batch", "5",
        "--processes", "2", "--health", str(port),
    )  # fmt: skip
    try:
        wait_until(lambda: is_ready(port), "it does not get ready")
        for number in range(0, 60, 20):
            write_events(events, *ids[number : number + 20])
            for worker in workers(port):
                if worker["pid"]:
                    os.kill(worker["pid"], signal.SIGKILL)
        wait_until(lambda: effects(database) == ids, "something is missing")
        wait_until(lambda: is_ready(port), "it does not recover")
        assert sum(worker["restarts"] for worker in workers(port)) >= 2
    finally:
        run.terminate()
        _, err = run.communicate(timeout=30)
    assert run.returncode == 0, err
    assert "restarting in" in err
    assert query(database, "SELECT owner FROM oncebox_position") == [(None,)], "it signed off"
    assert query(database, "SELECT count(*) FROM oncebox_worker")[0][0] <= 3


@pytest.mark.parametrize("database", ["postgres"], indirect=True)
def test_workers_wait_for_a_server_that_is_read_only_and_say_so(
    start: Callable[..., Any], database: str, events: Path, port: int
) -> None:
    name = database.rpartition("/")[2]
    writable = f"{database}?options=-c%20default_transaction_read_only%3Doff"
    run = start(
        "run", "billing:inbox", "--from", f"file://{events}?follow=1", "--health", str(port)
    )
    try:
        wait_until(lambda: is_ready(port), "it does not get ready")
        query(writable, f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')
        query(
            writable,
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()",
        )
        write_events(events, "1")
        wait_until(
            lambda: all("the server is read-only" in why for why in complaints(port) or [""]),
            "nothing is said of it",
        )
        query(writable, f'ALTER DATABASE "{name}" RESET default_transaction_read_only')
        wait_until(lambda: effects(database) == ["1"], "it does not go on")
        wait_until(lambda: is_ready(port), "it does not get ready again")
        assert not any(worker["restarts"] for worker in workers(port))
    finally:
        run.terminate()
        _, err = run.communicate(timeout=30)
    assert run.returncode == 0, err
    assert "database unavailable (the server is read-only" in err


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_a_message_that_kills_ends_dead_and_the_others_go_through(
    start: Callable[..., Any], database: str, events: Path
) -> None:
    write_events(events, "1", "kill", "2", "3")
    run = start("run", "billing:inbox", "--from", f"file://{events}?follow=1")
    try:
        wait_until(lambda: effects(database) == ["1", "2", "3"], "the others wait")
        dead = "SELECT message_id, reason FROM oncebox_dead_letter"
        wait_until(lambda: query(database, dead) == [("kill", "crashed")], "it never dies")
    finally:
        run.terminate()
        run.communicate(timeout=30)


def test_a_second_signal_ends_at_once(start: Callable[..., Any], events: Path, port: int) -> None:
    run = start(
        "run", "billing:inbox", "--from", f"file://{events}?follow=1", "--health", str(port)
    )
    wait_until(lambda: is_ready(port), "it does not get ready")
    pids = [worker["pid"] for worker in workers(port)]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)  # they cannot stop in peace
    run.send_signal(signal.SIGINT)
    run.send_signal(signal.SIGTERM)
    wait_until(lambda: run.poll() is not None or run.send_signal(signal.SIGTERM), "it stays")
    run.communicate(timeout=30)
    assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)


def test_no_worker_outlives_its_supervisor(
    start: Callable[..., Any], events: Path, port: int
) -> None:
    run = start(
        "run", "billing:inbox", "--from", f"file://{events}?follow=1", "--health", str(port)
    )
    wait_until(lambda: is_ready(port), "it does not get ready")
    pids = [worker["pid"] for worker in workers(port)]
    run.kill()
    run.communicate(timeout=30)
    wait_until(
        lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids), "they are still there"
    )


@pytest.mark.parametrize("database", ["postgres"], indirect=True)
def test_a_database_that_restarts_in_the_middle_loses_nothing(
    start: Callable[..., Any], database: str, events: Path, port: int, postgres: Postgres
) -> None:
    run = start(
        "run", "billing:inbox", "--from", f"file://{events}?follow=1", "--health", str(port)
    )
    try:
        wait_until(lambda: is_ready(port), "it does not get ready")
        write_events(events, "1")
        wait_until(lambda: effects(database) == ["1"], "nothing is read")
        postgres.crash()
        write_events(events, "2", "3")
        postgres.restart()
        wait_until(lambda: effects(database) == ["1", "2", "3"], "it does not go on")
    finally:
        run.terminate()
        _, err = run.communicate(timeout=60)
    assert run.returncode == 0, err


@pytest.mark.parametrize("database", ["postgres"], indirect=True)
def test_it_is_not_ready_but_alive_while_the_database_is_away(
    start: Callable[..., Any], database: str, events: Path, port: int, postgres: Postgres
) -> None:
    run = start(
        "run", "billing:inbox", "--from", f"file://{events}?follow=1", "--health", str(port)
    )
    try:
        wait_until(lambda: is_ready(port), "it does not get ready")
        assert complaints(port) == []
        before = workers(port)
        postgres.crash()
        waiting = ["consumer 1 waits for the database", "worker 1 waits for the database"]
        wait_until(lambda: complaints(port) == waiting, "/ready does not report it")
        assert [w["pid"] for w in workers(port)] == [w["pid"] for w in before], "it is alive"
        postgres.restart()
        wait_until(lambda: is_ready(port), "it does not get ready again")
        write_events(events, "1")
        wait_until(lambda: effects(database) == ["1"], "it does not go on")
        assert workers(port) == before, "nothing was started again"
    finally:
        run.terminate()
        _, err = run.communicate(timeout=60)
    assert run.returncode == 0, err


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_it_runs_with_a_closed_stdin(
    folder: Path, environment: dict[str, str], database: str, events: Path
) -> None:
    write_events(events, "1")
    command = f"exec {sys.executable} -m oncebox run billing:inbox --from file://{events} <&-"
    done = subprocess.run(
        ["sh", "-c", command], cwd=folder, env=environment, capture_output=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert effects(database) == ["1"]
