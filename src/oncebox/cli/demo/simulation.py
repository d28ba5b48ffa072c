"""Run the demo: real workers, a producer, and random kills."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import msgspec

from oncebox.cli.demo.books import Books, booked, open_books
from oncebox.cli.demo.stream import CLOSED, Expected, Stream
from oncebox.inbox import Inbox

RATE = 250
"""Deliveries per second."""

FINISH_TIMEOUT = 60.0
"""Seconds after the last kill in which all messages must be processed."""


class Snapshot(msgspec.Struct):
    """The state of the demo at a moment."""

    expected: Expected
    phase: str = "starting"
    seconds: float = 0
    kills: int = 0
    naive_kills: int = 0
    booked: tuple[int, int] = (0, 0)
    naive: tuple[int, int] = (0, 0)
    absorbed: int = 0
    dead: int = 0
    retried: int = 0


class Simulation:
    """Payments for some seconds, through oncebox and through the naive consumer."""

    def __init__(
        self, folder: Path, ours: Books, theirs: Books, *, seconds: float, seed: int
    ) -> None:
        self.snapshot = Snapshot(Expected())
        self._folder = folder
        self._ours = ours
        self._theirs = theirs
        self._seconds = seconds
        self._chance = random.Random(seed)
        self._stream = Stream(seed)
        self.snapshot.expected = self._stream.expected
        self._file = folder / "payments.jsonl"
        self._inbox = self._make_inbox()
        self._port = _free_port()
        self._naive: subprocess.Popen[bytes] | None = None

    def _make_inbox(self) -> Inbox:
        os.environ["ONCEBOX_DEMO_DATABASE"] = self._ours.url
        from oncebox.cli.demo.app import inbox

        return inbox

    def run(self) -> Iterator[Snapshot]:
        """Run the demo, and yield its state repeatedly until the end."""
        open_books(self._ours, naive=False)
        open_books(self._theirs, naive=True)
        self._file.touch()
        self._inbox.migrate()
        with self._inbox, self._workers():
            yield from self._produce_and_kill()
            yield from self._wait_until_finished()
        yield self._snapshot("finished")

    # -- phases -----------------------------------------------------------------------------------

    def _produce_and_kill(self) -> Iterator[Snapshot]:
        """Produce messages and kill workers."""
        began = time.monotonic()
        written = 0
        next_kill = 2.0
        sent_failing = False
        while (now := time.monotonic() - began) < self._seconds:
            due = int(now * RATE)
            self._write(self._stream.lines(due - written))
            written = due
            if not sent_failing and now > self._seconds / 4:
                self._write([self._stream.failing_payment()])
                sent_failing = True
            if now > next_kill:
                self._kill()
                next_kill = now + self._chance.uniform(0.5, 1.5)
            if now > self._seconds * 0.6:
                self._retry_dead_letters()
            self.snapshot.seconds = now
            yield self._snapshot("killing workers at random")
            time.sleep(0.1)

    def _wait_until_finished(self) -> Iterator[Snapshot]:
        """Wait until all messages are processed, without further kills."""
        deadline = time.monotonic() + FINISH_TIMEOUT
        while time.monotonic() < deadline and not self._is_finished():
            self._retry_dead_letters()
            self._restart_naive()
            yield self._snapshot("processing the remaining messages")
            time.sleep(0.2)

    def _is_finished(self) -> bool:
        naive_position = self._folder / "naive.offset"
        read = int(naive_position.read_text() or 0) if naive_position.exists() else 0
        status = self._inbox.status()
        done = sum(partition.next for partition in status.partitions) == self._file.stat().st_size
        waiting = (
            status.ready + status.retrying + status.blocked + sum(d.count for d in status.dead)
        )
        return read == self._file.stat().st_size and done and not waiting

    # -- processes --------------------------------------------------------------------------------

    @contextmanager
    def _workers(self) -> Iterator[None]:
        command = [sys.executable, "-m", "oncebox", "run", "oncebox.cli.demo.app:inbox"]
        command += ["--from", f"file://{self._file}?follow=1", "--batch", "50"]
        command += ["--health", str(self._port), "--log-level", "ERROR"]
        with ExitStack() as stack:
            log = stack.enter_context((self._folder / "workers.log").open("wb"))
            ours = subprocess.Popen(command, stdout=log, stderr=log)
            stack.callback(_ended, ours)
            stack.callback(self._end_naive)
            self._restart_naive()
            yield

    def _restart_naive(self) -> None:
        if self._naive is None or self._naive.poll() is not None:
            command = [sys.executable, "-m", "oncebox.cli.demo.naive", self._theirs.url]
            command += [str(self._file), str(self._folder / "naive.offset")]
            self._naive = subprocess.Popen(command, stderr=subprocess.DEVNULL)

    def _end_naive(self) -> None:
        if self._naive is not None:
            _ended(self._naive)

    def _write(self, lines: Iterator[bytes] | list[bytes]) -> None:
        with self._file.open("ab") as file:
            file.writelines(lines)

    def _kill(self) -> None:
        """Kill a process of oncebox and the naive consumer."""
        pids = self._pids()
        if pids:
            with suppress(ProcessLookupError):
                os.kill(self._chance.choice(pids), signal.SIGKILL)
                self.snapshot.kills += 1
        if self._naive is not None and self._naive.poll() is None:
            self._naive.kill()
            self._naive.wait()
            self.snapshot.naive_kills += 1
        self._restart_naive()

    def _pids(self) -> list[int]:
        """The PIDs of the processes of `oncebox run`, from its health check."""
        with suppress(OSError, ValueError):
            url = f"http://127.0.0.1:{self._port}/live"
            with urllib.request.urlopen(url, timeout=1) as response:
                workers = json.load(response)["workers"]
            return [worker["pid"] for worker in workers if worker["is_ready"]]
        return []

    def _retry_dead_letters(self) -> None:
        """Create the missing account, and retry the dead letters of its key."""
        letters = self._inbox.dead_letters.find(key=CLOSED)
        if not letters:
            return
        if not self._ours.execute("SELECT 1 FROM accounts WHERE name = ?", CLOSED):
            self._ours.execute("INSERT INTO accounts (name, cents) VALUES (?, 0)", CLOSED)
        acted = self._inbox.dead_letters.retry(
            key=CLOSED, why="the account is open now", by="the demo"
        )
        self.snapshot.retried += acted.done

    def _snapshot(self, phase: str) -> Snapshot:
        snapshot = self.snapshot
        snapshot.phase = phase
        snapshot.booked = booked(self._ours)
        snapshot.naive = booked(self._theirs)
        status = self._inbox.status()
        snapshot.absorbed = status.rates[60].duplicate
        snapshot.dead = sum(group.count for group in status.dead)
        return snapshot


def _ended(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
