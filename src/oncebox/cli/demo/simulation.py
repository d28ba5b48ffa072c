"""Run the demo: a producer, both sides, and kill -9 of both at the same random moments."""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Generator, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from oncebox.cli.demo.books import Books, balance, create_tables, open_account, write_sent
from oncebox.cli.demo.fleet import Fleet, Process
from oncebox.cli.demo.interrupts import Interrupts
from oncebox.cli.demo.state import State
from oncebox.cli.demo.stream import LATE_ACCOUNT, Stream
from oncebox.errors import OnceboxError
from oncebox.inbox import Inbox

RATE = 150
"""Deliveries per second, while both sides keep up."""

MAX_BACKLOG = 150
"""Payments that a side may be behind before the shop waits: the result shows errors, no backlog."""

TICK = 0.05
"""Seconds between two writes to the stream."""

LOOK_EVERY = 0.25
"""Seconds between two readings of the books."""

KILL_AFTER = (0.3, 1.0)
"""Least and most seconds between two kills; a kill also waits until all processes run again."""

LATE_PAYMENTS = 3
"""Payments to an account that is opened later."""

START_TIMEOUT = 30.0
FINISH_TIMEOUT = 60.0
"""Seconds after the last kill in which both sides have to process all messages."""


class Simulation:
    """Payments for some seconds, through oncebox and through the naive consumer.

    Both sides read the same stream. At each kill, one process of each side gets kill -9: the naive
    consumer, and a random process of oncebox. Both have the same time to finish.
    """

    def __init__(
        self,
        folder: Path,
        ours: Books,
        theirs: Books,
        interrupts: Interrupts,
        *,
        seconds: float,
        seed: int,
    ) -> None:
        self._ours = ours
        self._theirs = theirs
        self._chance = random.Random(seed)
        self._stream = Stream(seed)
        self._file = folder / "payments.jsonl"
        self._offset = folder / "naive.offset"
        self._inbox = self._make_inbox()
        self._interrupts = interrupts
        self._consumer, self._worker, self._naive = self._processes(folder)
        self._since = datetime.now(UTC) - timedelta(hours=1)
        self._began_at = self._looked_at = 0.0
        self._late_end: int | None = None
        """The end of the payments to the late account in the stream."""
        self._is_account_open = False
        self._owed = 0.0
        """Deliveries that are due, with a fraction."""
        self.state = State(self._stream.expected, length=seconds)

    def _make_inbox(self) -> Inbox:
        os.environ["ONCEBOX_DEMO_DATABASE"] = self._ours.url
        from oncebox.cli.demo.app import inbox

        return inbox

    def _processes(self, folder: Path) -> tuple[Process, Process, Process]:
        """The processes of `oncebox run`, and the naive consumer."""
        ours = [sys.executable, "-m", "oncebox", "worker-process", "oncebox.cli.demo.app:inbox"]
        ours += ["--from", f"file://{self._file}?follow=1", "--batch", "50", "--log-level", "ERROR"]
        theirs = [sys.executable, "-m", "oncebox.cli.demo.naive", self._theirs.url]
        log = folder / "oncebox.log"
        return (
            Process("oncebox consumer", [*ours, "--role", "consumer"], log),
            Process("oncebox worker", [*ours, "--role", "worker"], log),
            Process(
                "naive consumer",
                [*theirs, str(self._file), str(self._offset)],
                folder / "naive.log",
            ),
        )

    def run(self) -> Generator[State, None, None]:
        """Run the demo, and yield its state repeatedly until the end."""
        with self._inbox:
            self._prepare()
            processes = (self._consumer, self._worker, self._naive)
            with Fleet(processes, lambda: self._interrupts.count > 1) as fleet:
                yield from self._wait_until_ready(fleet)
                yield from self._produce_and_kill(fleet)
                yield from self._wait_until_finished(fleet)
                self.state.phase = "stopping all processes"
                yield self.state
            yield self._finish()

    # -- phases -----------------------------------------------------------------------------------

    def _prepare(self) -> None:
        create_tables(self._ours, naive=False)
        create_tables(self._theirs, naive=True)
        self._file.touch()
        self._inbox.migrate()

    def _wait_until_ready(self, fleet: Fleet) -> Iterator[State]:
        """Wait until all processes of both sides are ready: their time begins together."""
        deadline = time.monotonic() + START_TIMEOUT
        while not fleet.is_ready and not self._is_interrupted:
            if time.monotonic() > deadline:
                raise OnceboxError(f"the processes of the demo did not start in {START_TIMEOUT} s")
            fleet.check()
            yield self.state
            time.sleep(TICK)

    def _produce_and_kill(self, fleet: Fleet) -> Iterator[State]:
        """Send payments, and kill processes of both sides."""
        self._began_at = time.monotonic()
        state = self.state
        state.phase = "sending payments, kill -9 at random moments"
        next_kill = self._chance.uniform(*KILL_AFTER)
        while not self._is_interrupted and state.seconds < state.length:
            self._produce()
            fleet.check()
            if state.seconds > next_kill and fleet.is_ready:
                self._kill()
                next_kill = state.seconds + self._chance.uniform(*KILL_AFTER)
            yield from self._look()
            self._tick()

    def _wait_until_finished(self, fleet: Fleet) -> Iterator[State]:
        """Wait until both sides have processed all messages, without further kills."""
        self.state.phase = "no more kills: both sides process the rest"
        deadline = time.monotonic() + FINISH_TIMEOUT
        while time.monotonic() < deadline and not self._is_interrupted:
            fleet.check()
            self._open_account_and_retry()
            self._check_finished()
            if self.state.naive.is_finished and self.state.oncebox.is_finished:
                return
            yield from self._look()
            self._tick()

    def _finish(self) -> State:
        """The final state, computed from the tables after all processes have ended."""
        for books in (self._ours, self._theirs):
            write_sent(books, self._file)
        self._read_books()
        self.state.phase = "stopped" if self.state.is_interrupted else "finished"
        self.state.is_over = True
        return self.state

    def _tick(self) -> None:
        time.sleep(TICK)
        before, self.state.seconds = self.state.seconds, time.monotonic() - self._began_at
        if self._is_keeping_up:  # what was not sent during a backlog is not sent later either
            self._owed += (self.state.seconds - before) * RATE

    # -- steps ------------------------------------------------------------------------------------

    @property
    def _is_interrupted(self) -> bool:
        self.state.is_interrupted = self._interrupts.count > 0
        return self.state.is_interrupted

    def _produce(self) -> None:
        """Write what is due; after a quarter of the time also payments that fail at first."""
        state = self.state
        if state.seconds > state.length / 4 and self._late_end is None:
            self._write(self._stream.late_account(LATE_PAYMENTS))
            self._late_end = self._file.stat().st_size
            state.note(f"{LATE_PAYMENTS} payments to an account that is not open yet")
        if self._is_keeping_up:
            self._write(self._stream.lines(int(self._owed)))
            self._owed %= 1
        if state.seconds > state.length / 2:
            self._open_account_and_retry()

    @property
    def _is_keeping_up(self) -> bool:
        """True if no side has a long backlog."""
        sides = (self.state.naive, self.state.oncebox)
        sent = self.state.expected.payments
        return all(sent - side.balance.booked < MAX_BACKLOG for side in sides)

    def _write(self, lines: Iterable[bytes]) -> None:
        with self._file.open("ab") as file:
            file.writelines(lines)

    def _kill(self) -> None:
        """kill -9 the process of each side that reads the payments, at the same moment."""
        victims = (self._naive, self._consumer)
        killed = [process.kill() for process in victims]
        names = [p.name for p, hit in zip(victims, killed, strict=True) if hit]
        self.state.note(f"kill -9: {', '.join(names)}")

    def _open_account_and_retry(self) -> None:
        """Once both sides gave up, open the account on both; retry the dead letters of oncebox."""
        if not self._is_account_open:
            if not self._have_given_up():
                return
            open_account(self._ours, LATE_ACCOUNT)
            open_account(self._theirs, LATE_ACCOUNT)
            self._is_account_open = True
            self.state.note("the account is open now, on both sides")
        if self._inbox.dead_letters.find(limit=1):
            acted = self._inbox.dead_letters.retry(
                everything=True, why="the missing account is open now", by="the demo"
            )
            self.state.retried += acted.done
            self.state.note(f"dead letters retried by `oncebox retry`: {acted.done}")

    def _have_given_up(self) -> bool:
        """True if oncebox has a dead letter of the late account, and the naive consumer read on."""
        is_read = self._late_end is not None and self._naive_position() >= self._late_end
        return is_read and bool(self._inbox.dead_letters.find(limit=1, key=LATE_ACCOUNT))

    def _naive_position(self) -> int:
        return int(self._offset.read_text()) if self._offset.exists() else 0

    def _check_finished(self) -> None:
        """Whether both sides have read the whole stream, and oncebox has nothing left to run."""
        size = self._file.stat().st_size
        self.state.naive.is_finished = self._naive_position() == size
        status = self._inbox.status()
        waiting = (
            status.ready + status.retrying + status.blocked + sum(d.count for d in status.dead)
        )
        is_read = sum(partition.next for partition in status.partitions) == size
        self.state.oncebox.is_finished = is_read and not waiting

    def _look(self) -> Iterator[State]:
        """Read the books and yield the state, if it is time."""
        if time.monotonic() - self._looked_at > LOOK_EVERY:
            self._read_books()
            self._looked_at = time.monotonic()
            yield self.state

    def _read_books(self) -> None:
        state = self.state
        state.oncebox.kills = self._consumer.kills + self._worker.kills
        state.naive.kills = self._naive.kills
        state.oncebox.balance = balance(self._ours)
        state.naive.balance = balance(self._theirs)
        state.absorbed = self._inbox.rates(since=self._since).duplicate
        state.dead = sum(group.count for group in self._inbox.status().dead)
