"""A process that purges, and pauses on request."""

from __future__ import annotations

import multiprocessing
import time
from types import TracebackType
from typing import Any, Self

import msgspec

from bench.drain.oncebox import NAME
from bench.drain.worker_pool import PATIENCE, WorkerCrashed
from bench.retention.old_messages import DAYS
from oncebox import Inbox, Retention

_processes = multiprocessing.get_context("spawn")


class Purge(msgspec.Struct, frozen=True):
    """The result of a purge."""

    purged: int
    first: float
    """Seconds of the first step, with the search before it."""
    steps: list[float]
    """Seconds of each further step, with the pause before it."""


class Purger:
    """A purge in its own process. It can be paused between two steps."""

    def __init__(self, url: str) -> None:
        self._may = _processes.Event()
        self._purged = _processes.Value("q", 0)
        self._pipe, theirs = _processes.Pipe()
        arguments = (theirs, self._may, self._purged, url)
        self._process = _processes.Process(target=_serve, args=arguments, daemon=True)
        self._process.start()
        theirs.close()
        self._answer()

    def resume(self) -> None:
        self._may.set()

    def pause(self) -> None:
        self._may.clear()

    @property
    def is_finished(self) -> bool:
        return self._pipe.poll()

    @property
    def purged(self) -> int:
        """How many messages so far."""
        return int(self._purged.value)

    def result(self) -> Purge:
        """Wait until the purge has finished."""
        self.resume()
        purge: Purge = self._answer()
        return purge

    def _answer(self) -> Any:
        if not self._pipe.poll(PATIENCE * 2):
            raise TimeoutError(f"the purge has not finished after {PATIENCE * 2:g} s")
        try:
            return self._pipe.recv()
        except EOFError:
            raise WorkerCrashed(WorkerCrashed.__doc__) from None

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


def _serve(pipe: Any, may: Any, total: Any, url: str) -> None:
    inbox = Inbox(NAME, url, retention=Retention(days=DAYS))
    with inbox:
        inbox.purge.preview()  # connects
        pipe.send(None)
        may.wait()
        steps: list[float] = []
        since = time.monotonic()

        def note(count: int) -> None:
            nonlocal since
            steps.append(time.monotonic() - since)
            total.value = count
            may.wait()
            since = time.monotonic()

        purged = inbox.purge.run(progress=note)
        pipe.send(Purge(purged.purged, steps[0], steps[1:] or steps))
