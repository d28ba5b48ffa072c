"""The purger: a process that forgets, and rests when it is told to."""

from __future__ import annotations

import multiprocessing
import time
from types import TracebackType
from typing import Any, Self

import msgspec

from bench.drain.crew import PATIENCE, WorkerDied
from bench.drain.oncebox import NAME
from bench.house.old import DAYS
from oncebox import Inbox, Retention

_processes = multiprocessing.get_context("spawn")


class Purge(msgspec.Struct, frozen=True):
    """What a purge came to."""

    forgotten: int
    first: float
    """Seconds of the first step, with all that is found out before it."""
    steps: list[float]
    """Seconds of each of the others, with the rest before it."""


class Purger:
    """A purge in a process of its own: it goes on while it may, and rests between two steps."""

    def __init__(self, url: str) -> None:
        self._may = _processes.Event()
        self._forgotten = _processes.Value("q", 0)
        self._pipe, theirs = _processes.Pipe()
        arguments = (theirs, self._may, self._forgotten, url)
        self._process = _processes.Process(target=_serve, args=arguments, daemon=True)
        self._process.start()
        theirs.close()
        self._answer()

    def go_on(self) -> None:
        self._may.set()

    def rest(self) -> None:
        self._may.clear()

    @property
    def is_over(self) -> bool:
        return self._pipe.poll()

    @property
    def forgotten(self) -> int:
        """How many messages so far."""
        return int(self._forgotten.value)

    def result(self) -> Purge:
        """Let it come to its end."""
        self.go_on()
        purge: Purge = self._answer()
        return purge

    def _answer(self) -> Any:
        if not self._pipe.poll(PATIENCE * 2):
            raise TimeoutError("the purge does not end")
        try:
            return self._pipe.recv()
        except EOFError:
            raise WorkerDied(WorkerDied.__doc__) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None:
            self._process.kill()
        self._process.join(10)


def _serve(pipe: Any, may: Any, forgotten: Any, url: str) -> None:
    inbox = Inbox(NAME, url, retention=Retention(days=DAYS))
    with inbox:
        inbox.housekeeping.horizon()  # connects
        pipe.send(None)
        may.wait()
        steps: list[float] = []
        since = time.monotonic()

        def note(count: int) -> None:
            nonlocal since
            steps.append(time.monotonic() - since)
            forgotten.value = count
            may.wait()
            since = time.monotonic()

        purged = inbox.housekeeping.purge(progress=note)
        pipe.send(Purge(purged.forgotten, steps[0], steps[1:] or steps))
