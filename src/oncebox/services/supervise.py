"""Supervisor: keeps worker processes alive, and lets them go in peace.

Each worker is a process of its own with two pipes: on one it says that it goes on, the other one
ends with the supervisor, so that no worker outlives it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

import msgspec

from oncebox import reports

FIRST_BACKOFF = 0.5
LONGEST_BACKOFF = 30.0

SETTLED = 2.0
"""Seconds after which a worker that was started again counts as well."""

TICK = 0.1

GOES_ON, WAITS = b".", b"!"
"""What a worker says: that it goes on, or that it does and waits for the database."""

MISUSED = 2
"""The exit code of a worker that cannot work as it is configured: to start it again is no use."""


class Task(msgspec.Struct, frozen=True):
    """A process to be kept running."""

    name: str
    command: Sequence[str]
    """Its arguments; the numbers of its two pipes are added as --beat and --life."""
    patience: float
    """Seconds without a sign of life after which it is killed."""


class Report(msgspec.Struct, frozen=True):
    """How a worker is."""

    name: str
    pid: int | None
    is_ready: bool
    """It runs, was heard of, and does not wait for the database."""
    is_waiting: bool
    """It waits for the database."""
    restarts: int
    finished: bool


class Supervisor:
    """Runs tasks until all of them have finished, or a signal says stop.

    The first SIGTERM or SIGINT lets workers finish what they have in hands; a second one ends them
    at once, which loses nothing either. Where `essential` tasks are named, the others end when
    those have.
    """

    def __init__(self, tasks: Sequence[Task], *, essential: Sequence[str] = ()) -> None:
        self._workers = [_Worker(task) for task in tasks]
        self._essential = [w for w in self._workers if w.task.name in essential]
        self._signals = 0
        self.interrupted = False
        """Whether somebody told it to stop."""

    def run(self) -> int:
        """Returns 0 if everything ended well, else 1; or 2 if a worker could not even begin."""
        with _signals(self._on_signal):
            while not all(worker.finished for worker in self._workers):
                for worker in self._workers:
                    worker.look(restart=not self._signals)
                if self._is_over():
                    self._stop()
                time.sleep(TICK)
        return max(worker.verdict for worker in self._workers)

    def reports(self) -> list[Report]:
        """How each worker is; another thread may ask."""
        return [worker.report() for worker in self._workers]

    def _is_over(self) -> bool:
        """Whether there is no use in going on."""
        misused = any(worker.verdict == MISUSED for worker in self._workers)
        ended = bool(self._essential) and all(worker.finished for worker in self._essential)
        return not self._signals and (misused or ended)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.interrupted = True
        self._stop()

    def _stop(self) -> None:
        self._signals += 1
        for worker in self._workers:
            worker.end(signal.SIGTERM if self._signals == 1 else signal.SIGKILL)


class _Worker:
    """A task and the process that does it."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.finished = False
        self.verdict = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._beat = self._life = -1
        self._is_heard = self._is_waiting = False
        self._heard_at = self._started_at = self._start_at = 0.0
        self._restarts = 0
        self._backoff = FIRST_BACKOFF

    def look(self, *, restart: bool) -> None:
        """Start it, notice its end, or kill it if it does not go on."""
        if self.finished:
            return
        if self._process is None:
            if not restart:
                self.finished = True
            elif time.monotonic() >= self._start_at:
                self._start()
            return
        self._listen()
        code = self._process.poll()
        if code is not None:
            self._ended(self._process.pid, code, restart=restart)
        elif time.monotonic() - self._heard_at > self.task.patience:
            self._lose_patience(self._process.pid)

    def _start(self) -> None:
        self._beat, beat = os.pipe()
        life, self._life = os.pipe()
        os.set_blocking(self._beat, False)
        command = [*self.task.command, "--beat", str(beat), "--life", str(life)]
        try:
            # A session of its own: what a terminal sends to all its processes comes to us alone.
            self._process = subprocess.Popen(command, pass_fds=(beat, life), start_new_session=True)
        finally:
            os.close(beat)
            os.close(life)
        self._started_at = self._heard_at = time.monotonic()
        self._is_heard = self._is_waiting = False

    def _listen(self) -> None:
        with suppress(BlockingIOError):
            if said := os.read(self._beat, 4096):
                self._heard_at = time.monotonic()
                self._is_heard = True
                self._is_waiting = said.endswith(WAITS)

    def _lose_patience(self, pid: int) -> None:
        reports.logger.error(
            "%s (process %d) gave no sign of life for %.0f seconds: it is killed, and what it had "
            "in hands is run by others",
            self.task.name,
            pid,
            time.monotonic() - self._heard_at,
        )
        self._heard_at = time.monotonic()
        self.end(signal.SIGKILL)

    def _ended(self, pid: int, code: int, *, restart: bool) -> None:
        os.close(self._beat)
        os.close(self._life)
        self._process = None
        if code == 0 or code == MISUSED or not restart:
            self.finished = True
            self.verdict = code if code == MISUSED else 0
            return
        if time.monotonic() - self._started_at > SETTLED:
            self._backoff = FIRST_BACKOFF
        reports.logger.error(
            "%s (process %d) ended with %s: it is started again in %.1f seconds",
            self.task.name,
            pid,
            f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}",
            self._backoff,
        )
        self._restarts += 1
        self._start_at = time.monotonic() + self._backoff
        self._backoff = min(self._backoff * 2, LONGEST_BACKOFF)

    def end(self, number: signal.Signals) -> None:
        """Send it a signal, if it runs."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)

    def report(self) -> Report:
        process = self._process
        return Report(
            name=self.task.name,
            pid=process.pid if process else None,
            is_ready=process is not None and self._is_heard and not self._is_waiting,
            is_waiting=process is not None and self._is_waiting,
            restarts=self._restarts,
            finished=self.finished,
        )


@contextmanager
def _signals(handler: Callable[[int, FrameType | None], Any]) -> Iterator[None]:
    """Let a handler have SIGTERM and SIGINT for a while."""
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = [signal.signal(number, handler) for number in numbers]
    try:
        yield
    finally:
        for number, old in zip(numbers, before, strict=True):
            signal.signal(number, old)
