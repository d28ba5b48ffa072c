"""The processes of both sides of the demo: each is started again as soon as it ends.

Each process has two pipes, as under the supervisor of `oncebox run`: it writes heartbeats to one,
and ends when the other one closes because the demo ended.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from oncebox.errors import OnceboxError

STOP_TIMEOUT = 15.0
"""Seconds in which a process has to end after SIGTERM."""

MAX_FAILED_STARTS = 5
"""A process that ends this many times in a row before its first heartbeat cannot work."""


class Process:
    """A process that is started again whenever it ends."""

    def __init__(self, name: str, command: Sequence[str], log: Path) -> None:
        self.name = name
        self.is_ready = False
        """True if it has sent a heartbeat since its start."""
        self.kills = 0
        """How many times it ended by kill -9, by its exit status."""
        self._command = command
        self._log = log
        self._failed_starts = 0
        self._popen: subprocess.Popen[bytes] | None = None
        self._beat = self._life = -1

    @property
    def is_running(self) -> bool:
        return self._popen is not None and self._popen.poll() is None

    def check(self) -> None:
        """Start it if it does not run. Raises OnceboxError if it cannot start."""
        if not self.is_running:
            self._count_kill()
            self._clean_up()
            self._start()
        self._read_heartbeats()

    def kill(self) -> bool:
        """kill -9. Returns False if it did not run."""
        if self._popen is None or not self.is_running:
            return False
        self._popen.kill()
        self.is_ready = False
        return True

    def _count_kill(self) -> None:
        if self._popen is not None and self._popen.returncode == -signal.SIGKILL:
            self.kills += 1

    def ask_to_stop(self) -> None:
        """Send SIGTERM: it finishes its messages in flight."""
        if self._popen is not None:
            with suppress(ProcessLookupError):
                self._popen.terminate()

    def _start(self) -> None:
        if self._failed_starts == MAX_FAILED_STARTS:
            raise OnceboxError(f"the {self.name} of the demo cannot start: {self._last_line()}")
        self._failed_starts += 1
        self._beat, beat = os.pipe()
        life, self._life = os.pipe()
        os.set_blocking(self._beat, False)
        command = [*self._command, "--beat", str(beat), "--life", str(life)]
        try:
            with self._log.open("ab") as log:
                # A new session: the demo alone gets the Ctrl-C of the terminal.
                self._popen = subprocess.Popen(
                    command, pass_fds=(beat, life), stdout=log, stderr=log, start_new_session=True
                )
        finally:
            os.close(beat)
            os.close(life)

    def _read_heartbeats(self) -> None:
        with suppress(BlockingIOError):
            if os.read(self._beat, 4096):
                self.is_ready = True
                self._failed_starts = 0

    def _clean_up(self) -> None:
        """Close the pipes of the process that ended."""
        self.is_ready = False
        self._popen = None
        for pipe in (self._beat, self._life):
            if pipe >= 0:
                os.close(pipe)
        self._beat = self._life = -1

    def _last_line(self) -> str:
        lines = self._log.read_text(errors="replace").split("\n") if self._log.exists() else []
        return next((line for line in reversed(lines) if line.strip()), "it prints no error")

    def end(self) -> None:
        """kill -9 if it still runs, and close its pipes."""
        if self.kill() and self._popen is not None:
            self._popen.wait()
        self._clean_up()


class Fleet:
    """All processes. At the end of the block, none of them runs."""

    def __init__(self, processes: Sequence[Process], is_urgent: Callable[[], bool]) -> None:
        self._processes = processes
        self._is_urgent = is_urgent
        """Whether processes are killed at the end, instead of stopped."""

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, *error: object) -> None:
        """Stop all processes; kill those that do not stop."""
        for process in self._processes:
            process.ask_to_stop()
        deadline = time.monotonic() + STOP_TIMEOUT
        while any(process.is_running for process in self._processes):
            if time.monotonic() > deadline or self._is_urgent():
                break
            time.sleep(0.02)
        for process in self._processes:
            process.end()

    def check(self) -> None:
        """Start each process that does not run."""
        for process in self._processes:
            process.check()

    @property
    def is_ready(self) -> bool:
        """True if each process runs and has sent a heartbeat since its start."""
        return all(process.is_running and process.is_ready for process in self._processes)
