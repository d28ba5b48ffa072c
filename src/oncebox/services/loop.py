"""Loop: what services have in common: they run until they are told to stop, in either colour."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

from oncebox import reports
from oncebox.database.steps import arun, run
from oncebox.errors import DatabaseUnavailable
from oncebox.store.contract import Call, Steps

SOONEST = 0.01
"""Seconds of the first pause; each further one is twice as long."""

LONGEST_OUTAGE = 30.0
"""Seconds between two tries while the database is away."""


class Loop(ABC):
    """A service. `run()` or `await arun()` returns some time after `stop()`.

    stop() may be called from a signal handler or another thread: what is in hands is finished.
    """

    def __init__(self) -> None:
        # Not an Event: set() in a signal handler that interrupts its wait() would wait for itself.
        self._bell: SimpleQueue[None] = SimpleQueue()
        self.is_stopping = False
        self._wake: Callable[[], Any] | None = None
        self._wait: Callable[[float], Any] = self._wait_here
        self._pause = SOONEST
        self._waits = False
        self.on_beat: Callable[[bool], Any] = _nothing
        """Called whenever it is seen to go on: with True while it waits for the database."""

    def stop(self) -> None:
        """Finish what is in hands, and return from run()."""
        self.is_stopping = True
        self._bell.put(None)
        if self._wake is not None:
            self._wake()

    def _wait_here(self, seconds: float) -> None:
        with suppress(Empty):
            self._bell.get(timeout=seconds)

    def beat(self) -> None:
        """It goes on."""
        self.on_beat(self._waits)

    def run(self) -> None:
        """Serve until stop() is called."""
        run(self._service(is_async=False))

    async def arun(self) -> None:
        """Serve until stop() is called."""
        woken = asyncio.Event()
        self._wake = partial(asyncio.get_running_loop().call_soon_threadsafe, woken.set)

        async def wait(seconds: float) -> None:
            try:
                async with asyncio.timeout(seconds):
                    await woken.wait()
            except TimeoutError:
                pass

        self._wait = wait
        try:
            await arun(self._service(is_async=True))
        finally:
            self._wake, self._wait = None, self._wait_here

    @abstractmethod
    def _service(self, *, is_async: bool) -> Steps[None]:
        """Serve until it is to stop."""

    def _rest(self, longest: float) -> Steps[None]:
        """Wait a little, and longer each time in a row."""
        self._pause = min(self._pause * 2, longest)
        yield partial(self._wait, self._pause)

    def _outage(self, name: str, error: DatabaseUnavailable) -> Steps[None]:
        """The database is away: say so, and wait."""
        reports.logger.error(
            "%s: waits for the database (%s); nothing was committed, and it is tried again in "
            "%.1f seconds",
            name,
            reports.name(error.__cause__ or error),
            min(self._pause * 2, LONGEST_OUTAGE),
        )
        self._waits = True
        self.beat()
        yield from self._rest(LONGEST_OUTAGE)

    def _go_on(self) -> None:
        """All is well, the database answers: the next pause is short again."""
        self._pause = SOONEST
        self._waits = False

    @staticmethod
    def _off(function: Callable[[], Any], is_async: bool) -> Call:
        """The call of something that may block: not on an event loop."""
        return partial(asyncio.to_thread, function) if is_async else function


def _nothing(waits: bool) -> None:
    pass
