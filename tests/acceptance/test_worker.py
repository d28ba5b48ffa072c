"""oncebox worker: stored messages run as a service. oncebox drain: one pass."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from oncebox import Delivery, Inbox
from support.services import wait_until

from .conftest import Command, event, query, write_events
from .processes import is_ready, workers

pytestmark = [pytest.mark.usefixtures("ready"), pytest.mark.crash]


@pytest.fixture
def port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def receive(database: str) -> Iterator[Callable[..., None]]:
    """Store messages, as an endpoint for webhooks does."""
    with Inbox("billing", database) as inbox:
        inbox.on("order")(lambda payload: None)

        def receive(*ids: str) -> None:
            inbox.receive([Delivery(json.dumps(event(id)).encode()) for id in ids])

        yield receive


@contextmanager
def running(start: Callable[..., Any], *arguments: str) -> Iterator[list[str]]:
    """A worker service that must end well. Yields a list that gets what it logged."""
    service = start("worker", "billing:inbox", *arguments)
    logged: list[str] = []
    try:
        yield logged
    finally:
        service.terminate()
        logged.append(service.communicate(timeout=30)[1])
    assert service.returncode == 0, logged


def effects(database: str) -> list[str]:
    return [row[0] for row in query(database, "SELECT id FROM effects ORDER BY id")]


def test_a_worker_runs_what_is_received_while_it_is_killed(
    start: Callable[..., Any], receive: Callable[..., None], database: str, port: int
) -> None:
    ids = [f"{number:03}" for number in range(60)]
    options = ("--processes", "2", "--batch", "5", "--health", str(port))
    with running(start, *options) as logged:
        wait_until(lambda: is_ready(port), "it does not get ready")
        assert [worker["name"] for worker in workers(port)] == ["worker 1", "worker 2"]
        for first in range(0, 60, 20):
            receive(*ids[first : first + 20])
            for worker in workers(port):
                if worker["pid"]:
                    os.kill(worker["pid"], signal.SIGKILL)
        wait_until(lambda: effects(database) == ids, "messages are missing")
        wait_until(lambda: is_ready(port), "it does not recover")
        assert sum(worker["restarts"] for worker in workers(port)) >= 2
    assert "restarting in" in logged[0]


def test_a_worker_process_that_ends_by_itself_is_restarted(
    start: Callable[..., Any], receive: Callable[..., None], database: str, port: int
) -> None:
    with running(start, "--health", str(port)) as logged:
        wait_until(lambda: is_ready(port), "it does not get ready")
        os.kill(workers(port)[0]["pid"], signal.SIGTERM)
        wait_until(lambda: workers(port)[0]["restarts"] == 1, "it is not restarted")
        receive("1")
        wait_until(lambda: effects(database) == ["1"], "no other process continues")
    assert "ended with exit code 0: restarting in" in logged[0]


EXITS = """
import os, sys
from oncebox import Inbox, Message, Retry

inbox = Inbox("exits", os.environ["DATABASE"], retry=Retry(max_attempts=1))

@inbox.on("order")
def leave(message: Message) -> None:
    sys.exit(int(message.id))
"""


def test_a_handler_that_ends_its_process_fails(
    oncebox: Command, folder: Path, database: str
) -> None:
    (folder / "exits.py").write_text(EXITS)
    write_events(folder / "events.jsonl", "0", "2")
    done = oncebox("run", "exits:inbox", "--from", f"file://{folder}/events.jsonl")
    assert done.returncode == 0, done.stderr
    errors = query(database, "SELECT error FROM oncebox_dead_letter ORDER BY message_id")
    assert errors == [("RuntimeError: SystemExit escaped from a handler",)] * 2


@pytest.mark.slow  # more than 30 seconds pass before it counts as hanging
def test_a_worker_that_hangs_is_restarted(
    start: Callable[..., Any],
    receive: Callable[..., None],
    database: str,
    port: int,
) -> None:
    with running(start, "--health", str(port)) as logged:
        wait_until(lambda: is_ready(port), "it does not get ready")
        pid = workers(port)[0]["pid"]
        os.kill(pid, signal.SIGSTOP)
        wait_until(lambda: not os.path.exists(f"/proc/{pid}"), "the process is not ended")
        receive("1")
        wait_until(lambda: effects(database) == ["1"], "no other process continues")
    assert "no heartbeat" in logged[0]


def test_a_worker_says_at_start_what_it_does_and_at_the_end_what_it_did(
    start: Callable[..., Any], receive: Callable[..., None], database: str, port: int
) -> None:
    receive("1", "2")
    with running(start, "--processes", "2", "--health", str(port)) as logged:
        wait_until(lambda: effects(database) == ["1", "2"], "nothing runs")
    lines = logged[0].splitlines()
    assert lines[:3] == [
        "billing: 2 worker processes, batches of up to 100 stored messages",
        "handlers: order",
        f"health: http://127.0.0.1:{port}/ready",
    ]
    assert lines[-1].endswith("2 done, 0 duplicates absorbed, 0 failed attempts, 0 dead, "
                              "0 quarantined; 0 pending")  # fmt: skip


@pytest.mark.parametrize("command", ["worker", "run"])
def test_a_busy_health_port_is_an_error_in_one_line(oncebox: Command, command: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        source = ("--from", "-") if command == "run" else ()
        done = oncebox(command, "billing:inbox", *source, "--health", str(port))
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == (
        f"error: cannot serve health checks on http://127.0.0.1:{port}: Address already in use. "
        "Choose another address with --health"
    )


@pytest.mark.parametrize("given", ["http://x", "99999", "x:"])
def test_a_health_address_that_is_none_is_refused(oncebox: Command, given: str) -> None:
    done = oncebox("worker", "billing:inbox", "--health", given)
    assert done.returncode == 2
    assert f"{given!r} is not a port: write 8086, or 0.0.0.0:8086" in done.stderr


def test_drain_makes_one_pass(
    oncebox: Command, receive: Callable[..., None], database: str
) -> None:
    receive("1", "2")
    assert oncebox("drain", "billing:inbox").stdout == "2 done\n"
    assert effects(database) == ["1", "2"]
    assert oncebox("drain", "billing:inbox").stdout == "no messages were due\n"
    assert json.loads(oncebox("drain", "billing:inbox", "--json").stdout) == {}
