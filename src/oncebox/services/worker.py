"""Worker: runs the stored messages of an inbox until it is stopped."""

from __future__ import annotations

from functools import partial

from oncebox.errors import ConfigurationError, DatabaseUnavailable
from oncebox.inbox import Inbox
from oncebox.processing.drain import Drain
from oncebox.services.loop import FIRST_PAUSE, Loop
from oncebox.storage.drivers.contract import Listener
from oncebox.storage.steps import Steps

STOP_DELAY = 0.3
"""Seconds within which a worker that listens for notifications notices a stop."""


class Worker(Loop):
    """Runs the stored messages of an inbox as they become due, until stop() is called.

    `poll` is the longest time in seconds between two checks of an idle worker. With `Inbox(...,
    notify=True)` on a psycopg database, a stored message wakes it at once. Start any number of
    workers, in threads, processes or on other machines. With `until_idle`, the worker stops when
    nothing is due.
    """

    def __init__(
        self, inbox: Inbox, *, batch: int = 100, poll: float = 1.0, until_idle: bool = False
    ) -> None:
        super().__init__()
        self._until_idle = until_idle
        if not poll >= FIRST_PAUSE:
            raise ConfigurationError(
                f"poll must be a number of seconds from {FIRST_PAUSE}, got {poll!r}"
            )
        self._inbox = inbox
        self._batch = batch
        self._poll = poll

    def _service(self, *, is_async: bool) -> Steps[None]:
        engine = self._inbox._engine
        call = {"owner": "Worker(inbox)", "call": "run()"}
        with engine.worker(self._batch) as worker:
            drain: Drain | None = None
            while not self.is_stopping:
                try:
                    drain = drain or (yield from engine.drain(is_async, worker, **call))
                    yield from drain.sign_on()
                    self._reset_pause()
                    yield from self._loop(drain)
                    yield from drain.sign_off()
                except DatabaseUnavailable as error:
                    yield from self._outage(self._inbox.name, error)
                except GeneratorExit:  # no runner performs our calls any more
                    raise
                except BaseException:
                    if drain is not None:
                        yield from drain.leave()
                    raise

    def _loop(self, drain: Drain) -> Steps[None]:
        channel = self._inbox._engine.channel
        maintenance = self._inbox._maintenance(drain)
        listener = drain.database.listen(channel) if channel else None
        try:
            while not self.is_stopping:
                step = yield from drain.step()
                self.beat()
                is_idle = not (yield from maintenance.step(is_idle=step.idle)) and step.idle
                if is_idle and self._until_idle:
                    self.stop()
                elif is_idle:
                    yield from self._idle(listener)
                else:
                    self._reset_pause()
        finally:
            maintenance.stop()
            if listener is not None:
                yield from listener.close()

    def _idle(self, listener: Listener | None) -> Steps[None]:
        self._pause = min(self._pause * 2, self._poll)
        if listener is None:
            yield partial(self._wait, self._pause)
            return
        left = self._pause
        while left > 0 and not self.is_stopping:
            if (yield from listener.wait(min(left, STOP_DELAY))):
                return
            left -= STOP_DELAY
