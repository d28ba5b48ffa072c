"""Supervisor: starts worker processes, restarts them after a crash, and stops them.

Each worker process has two pipes. It writes heartbeats to one. The other one closes when the
supervisor ends, and then the worker stops.
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

from oncebox.processing import outcome_log as reports
from oncebox.services.loop import DATABASE, READ_ONLY, SOURCE

FIRST_BACKOFF = 0.5
LONGEST_BACKOFF = 30.0

STABLE_AFTER = 60.0
"""Seconds after which a worker counts as stable, and the next backoff is short again. A worker that
crashes on the same message each time may run for some seconds before."""

TICK = 0.1

BEATS = {"": b".", DATABASE: b"!", READ_ONLY: b"r", SOURCE: b"?"}
"""The heartbeat that a worker writes, by what it waits for."""

WAITS_FOR = {beat: waits_for for waits_for, beat in BEATS.items()}

MISUSED = 2
"""The exit code of a worker with a wrong configuration: a restart would not help."""


class Task(msgspec.Struct, frozen=True):
    """A process to keep running."""

    name: str
    command: Sequence[str]
    """Its arguments; the file descriptors of its pipes are added as --beat and --life."""
    heartbeat_timeout: float
    """Seconds without a heartbeat after which it is killed."""
    may_finish: bool = True
    """Whether it has finished if it ends with exit code 0; otherwise it is restarted."""


class Report(msgspec.Struct, frozen=True):
    """The state of a worker."""

    name: str
    pid: int | None
    is_ready: bool
    """True if it runs, has sent a heartbeat, and waits neither for the database nor the source."""
    waits_for: str
    """What it waits for, such as "the database"; or ""."""
    restarts: int
    finished: bool


class Supervisor:
    """Runs tasks until all have finished, or until it gets SIGTERM or SIGINT.

    After the first signal, workers finish their messages in flight. A second signal kills them,
    which loses nothing either. If `essential` tasks are named, the others stop when those have
    finished.
    """

    def __init__(self, tasks: Sequence[Task], *, essential: Sequence[str] = ()) -> None:
        self._workers = [_Worker(task) for task in tasks]
        self._essential = [w for w in self._workers if w.task.name in essential]
        self._signals = 0
        self.interrupted = False
        """True if a signal stopped it."""

    def run(self) -> int:
        """Run the tasks. Returns the exit code: 0, or 2 if a worker has a wrong configuration."""
        with _signals(self._on_signal):
            while not all(worker.finished for worker in self._workers):
                for worker in self._workers:
                    worker.check(restart=not self._signals)
                if self._is_over():
                    self._stop()
                time.sleep(TICK)
        return max(worker.verdict for worker in self._workers)

    def reports(self) -> list[Report]:
        """The state of each worker; may be called from another thread."""
        return [worker.report() for worker in self._workers]

    def _is_over(self) -> bool:
        """True if the remaining workers have to stop."""
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


class Backoff:
    """The delay before a restart: longer each time, until a worker was stable."""

    def __init__(self) -> None:
        self._pause = FIRST_BACKOFF

    def after(self, ran: float) -> float:
        """The seconds to wait before the restart of a worker that ran for this many seconds."""
        if ran > STABLE_AFTER:
            self._pause = FIRST_BACKOFF
        pause, self._pause = self._pause, min(2 * self._pause, LONGEST_BACKOFF)
        return pause


class _Worker:
    """A task and its process."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.finished = False
        self.verdict = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._beat = self._life = -1
        self._has_heartbeat, self._waits_for = False, ""
        self._heartbeat_at = self._started_at = self._start_at = 0.0
        self._restarts = 0
        self._backoff = Backoff()

    def check(self, *, restart: bool) -> None:
        """Start it, handle its end, or kill it if its heartbeat is overdue."""
        if self.finished:
            return
        if self._process is None:
            if not restart:
                self.finished = True
            elif time.monotonic() >= self._start_at:
                self._start()
            return
        self._read_heartbeats()
        code = self._process.poll()
        if code is not None:
            self._ended(self._process.pid, code, restart=restart)
        elif time.monotonic() - self._heartbeat_at > self.task.heartbeat_timeout:
            self._kill_unresponsive(self._process.pid)

    def _start(self) -> None:
        self._beat, beat = os.pipe()
        life, self._life = os.pipe()
        os.set_blocking(self._beat, False)
        command = [*self.task.command, "--beat", str(beat), "--life", str(life)]
        try:
            # A new session: only the supervisor gets the signals of the terminal.
            self._process = subprocess.Popen(command, pass_fds=(beat, life), start_new_session=True)
        finally:
            os.close(beat)
            os.close(life)
        self._started_at = self._heartbeat_at = time.monotonic()
        self._has_heartbeat, self._waits_for = False, ""

    def _read_heartbeats(self) -> None:
        with suppress(BlockingIOError):
            if beats := os.read(self._beat, 4096):
                self._heartbeat_at = time.monotonic()
                self._has_heartbeat = True
                self._waits_for = WAITS_FOR[beats[-1:]]

    def _kill_unresponsive(self, pid: int) -> None:
        reports.logger.error(
            "%s (process %d) sent no heartbeat for %.0f s: killing it, other workers take over its "
            "messages",
            self.task.name,
            pid,
            time.monotonic() - self._heartbeat_at,
        )
        self._heartbeat_at = time.monotonic()
        self.end(signal.SIGKILL)

    def _ended(self, pid: int, code: int, *, restart: bool) -> None:
        os.close(self._beat)
        os.close(self._life)
        self._process = None
        if (code == 0 and self.task.may_finish) or code == MISUSED or not restart:
            self.finished = True
            self.verdict = code if code == MISUSED else 0
            if code == MISUSED:
                reports.logger.error(
                    "%s (process %d) ended with exit code %d: its configuration is wrong, so all "
                    "workers stop",
                    self.task.name,
                    pid,
                    code,
                )
            return
        pause = self._backoff.after(time.monotonic() - self._started_at)
        reports.logger.error(
            "%s (process %d) ended with %s: restarting in %.1f s",
            self.task.name,
            pid,
            f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}",
            pause,
        )
        self._restarts += 1
        self._start_at = time.monotonic() + pause

    def end(self, number: signal.Signals) -> None:
        """Send it a signal if it runs."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)

    def report(self) -> Report:
        process = self._process
        return Report(
            name=self.task.name,
            pid=process.pid if process else None,
            is_ready=process is not None and self._has_heartbeat and not self._waits_for,
            waits_for=self._waits_for if process is not None else "",
            restarts=self._restarts,
            finished=self.finished,
        )


@contextmanager
def _signals(handler: Callable[[int, FrameType | None], Any]) -> Iterator[None]:
    """Handle SIGTERM and SIGINT inside the block."""
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = [signal.signal(number, handler) for number in numbers]
    try:
        yield
    finally:
        for number, old in zip(numbers, before, strict=True):
            signal.signal(number, old)
