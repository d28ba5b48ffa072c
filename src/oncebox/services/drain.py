"""Drainer: drains an inbox until it is told to stop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from oncebox import reports
from oncebox.database.contract import Listener
from oncebox.database.steps import arun, run
from oncebox.drain import Drain
from oncebox.errors import ConfigurationError, DatabaseUnavailable
from oncebox.inbox import Inbox
from oncebox.store.contract import Steps

SOONEST = 0.01
"""Seconds until the first look after there was nothing to do; then twice as long each time."""

ATTENTION = 0.3
"""Seconds within which a stop is noticed."""

LONGEST_OUTAGE = 30.0
"""Seconds between two tries while the database is away."""


class Drainer:
    """Runs what an inbox has stored, as it becomes due.

    `run()` (or `await arun()`) returns after `stop()`, which may be called from a signal handler or
    another thread: the batch in hands is finished first. `poll` is the longest time in seconds
    between two looks when there is nothing to do; with `Inbox(..., notify=True)` on a psycopg
    database it looks at once when something was stored. Start as many as you like, in threads,
    processes or on other machines.
    """

    def __init__(self, inbox: Inbox, *, batch: int = 100, poll: float = 1.0) -> None:
        if not poll >= SOONEST:
            raise ConfigurationError(f"poll is a number of seconds from {SOONEST}, not {poll!r}")
        self._inbox = inbox
        self._batch = batch
        self._poll = poll
        self._stopping = threading.Event()
        self._wake: Callable[[], Any] | None = None

    def stop(self) -> None:
        """Finish what is in hands, and return from run()."""
        self._stopping.set()
        if self._wake is not None:
            self._wake()

    def run(self) -> None:
        """Drain until stop() is called."""
        run(self._service(self._stopping.wait, is_async=False))

    async def arun(self) -> None:
        """Drain until stop() is called."""
        woken = asyncio.Event()
        self._wake = partial(asyncio.get_running_loop().call_soon_threadsafe, woken.set)

        async def wait(seconds: float) -> None:
            try:
                async with asyncio.timeout(seconds):
                    await woken.wait()
            except TimeoutError:
                pass

        try:
            await arun(self._service(wait, is_async=True))
        finally:
            self._wake = None

    def _service(self, wait: Callable[[float], Any], *, is_async: bool) -> Steps[None]:
        with self._inbox._draining(self._batch) as begin:
            drain: Drain | None = None
            outage = SOONEST
            while not self._stopping.is_set():
                try:
                    drain = drain or (yield from begin(is_async))
                    yield from drain.sign_on()
                    outage = SOONEST
                    yield from self._loop(drain, wait)
                    yield from drain.sign_off()
                except DatabaseUnavailable as error:
                    outage = min(outage * 2, LONGEST_OUTAGE)
                    reports.logger.error(
                        "%s: %s; the drain looks again in %.1f seconds",
                        self._inbox.name,
                        reports.name(error.__cause__ or error),
                        outage,
                    )
                    yield partial(wait, outage)

    def _loop(self, drain: Drain, wait: Callable[[float], Any]) -> Steps[None]:
        pause = SOONEST
        channel = self._inbox._channel
        listener = drain.database.listen(channel) if channel else None
        try:
            while not self._stopping.is_set():
                step = yield from drain.step()
                pause = min(pause * 2, self._poll) if step.idle else SOONEST
                if step.idle and listener is not None:
                    yield from self._listen(listener, pause)
                elif step.idle:
                    yield partial(wait, pause)
        finally:
            if listener is not None:
                yield from listener.close()

    def _listen(self, listener: Listener, seconds: float) -> Steps[None]:
        """Wait for a hint; but not so long at a time that a stop would be noticed late."""
        while seconds > 0 and not self._stopping.is_set():
            if (yield from listener.wait(min(seconds, ATTENTION))):
                return
            seconds -= ATTENTION
