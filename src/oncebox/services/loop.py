"""Loop: the base class of services, sync and async, that run until stop() is called."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

from oncebox.errors import DatabaseUnavailable
from oncebox.processing import outcome_log as reports
from oncebox.storage.drivers import error_codes
from oncebox.storage.steps import Call, Steps, arun, run

FIRST_PAUSE = 0.01
"""Seconds of the first pause; each further one is twice as long."""

LONGEST_OUTAGE = 30.0
"""The most seconds between two tries while the database is unavailable."""

DATABASE = "the database"
READ_ONLY = "the database: the server is read-only"
SOURCE = "the source"
"""What a service may wait for."""


class Loop(ABC):
    """A service. `run()` or `await arun()` returns some time after `stop()`.

    stop() may be called from a signal handler or another thread. The service then finishes its
    messages in flight.
    """

    def __init__(self) -> None:
        # Not an Event: set() in a signal handler that interrupts wait() would deadlock.
        self._bell: SimpleQueue[None] = SimpleQueue()
        self.is_stopping = False
        self._wake: Callable[[], Any] | None = None
        self._wait: Callable[[float], Any] = self._wait_here
        self._pause = FIRST_PAUSE
        self._outage_of = ""
        """DATABASE or READ_ONLY during an outage of the database, else ""."""
        self._trouble: str | None = None
        """Why the source cannot be read now; None if it can."""
        self.on_beat: Callable[[str], Any] = _nothing
        """Called for every heartbeat, with what the service waits for, or ""."""

    def stop(self) -> None:
        """Finish the messages in flight, and return from run()."""
        self.is_stopping = True
        self._bell.put(None)
        if self._wake is not None:
            self._wake()

    def _wait_here(self, seconds: float) -> None:
        with suppress(Empty):
            self._bell.get(timeout=seconds)

    def beat(self) -> None:
        """Send a heartbeat to the supervisor."""
        self.on_beat(self._outage_of or (SOURCE if self._trouble else ""))

    def run(self) -> None:
        """Run until stop() is called."""
        run(self._service(is_async=False))

    async def arun(self) -> None:
        """Run until stop() is called."""
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
        """Run until is_stopping is set."""

    def _back_off(self, longest: float) -> Steps[None]:
        """Wait: a short time first, and twice as long each time in a row."""
        self._pause = min(self._pause * 2, longest)
        yield partial(self._wait, self._pause)

    def _outage(self, name: str, error: DatabaseUnavailable) -> Steps[None]:
        """Log that the database is unavailable, and wait."""
        reports.logger.error(
            "%s: database unavailable (%s); nothing is acked, retrying in %.1f s",
            name,
            reports.error_name(error.__cause__ or error),
            min(self._pause * 2, LONGEST_OUTAGE),
        )
        is_read_only = error_codes.is_read_only(error.__cause__ or error)
        self._outage_of = READ_ONLY if is_read_only else DATABASE
        self.beat()
        yield from self._back_off(LONGEST_OUTAGE)

    def _reset_pause(self) -> None:
        """Make the next pause short again: the database works."""
        self._pause = FIRST_PAUSE
        self._outage_of = ""

    @staticmethod
    def _blocking_call(function: Callable[[], Any], is_async: bool) -> Call:
        """The call of a function that may block: in a thread if there is an event loop."""
        return partial(asyncio.to_thread, function) if is_async else function


def _nothing(waits_for: str) -> None:
    pass
