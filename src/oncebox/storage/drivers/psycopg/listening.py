"""Wait for NOTIFY on a separate connection.

Notifications are a hint: workers poll as well, so a lost connection only delays messages.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import psycopg
from psycopg import sql

from oncebox.storage.drivers.watchdog import watch
from oncebox.storage.steps import Steps

STATEMENT_TIMEOUT = 5.0
"""Seconds in which the server must respond to LISTEN and to the check of the connection."""

logger = logging.getLogger("oncebox")


class Listener:
    """Waits for notifications on a channel, on a psycopg connection that `connect` opens."""

    def __init__(
        self, connect: Callable[[], Any], channel: str, sleep: Callable[[float], Any]
    ) -> None:
        self._connect = connect
        self._channel = channel
        self._sleep = sleep
        self._connection: Any = None
        self._has_warned = False

    def wait(self, seconds: float) -> Steps[bool]:
        """Wait for a notification, at most this long. Returns True if messages may be stored."""
        try:
            if self._connection is None:
                self._connection = yield self._connect
                listen = sql.SQL("LISTEN {}").format(sql.Identifier(self._channel))
                yield from self._execute(listen)
                self._has_warned = False
                return True  # notifications before LISTEN are lost
            notified: bool = yield partial(self._wait_for_notification, seconds)
            if not notified:  # a lost connection raises no error while it only listens
                yield from self._execute("SELECT 1")
            return notified
        except psycopg.Error as error:
            if not self._has_warned:
                logger.warning(
                    "cannot LISTEN for stored messages (%s): polling instead, which is slower",
                    type(error).__name__,
                )
            self._has_warned = True
            yield from self.close()
            yield partial(self._sleep, seconds)
            return False

    def _execute(self, statement: Any) -> Steps[None]:
        watched = watch(self._connection, STATEMENT_TIMEOUT)
        try:
            yield partial(self._connection.execute, statement)
        finally:
            if watched is not None:
                watched.stop()

    def _wait_for_notification(self, seconds: float) -> Any:
        notifies = self._connection.notifies(timeout=seconds, stop_after=1)
        return _any_of(notifies) if hasattr(notifies, "__aiter__") else any(True for _ in notifies)

    def close(self) -> Steps[None]:
        """Close the connection that listens."""
        connection, self._connection = self._connection, None
        if connection is not None:
            yield connection.close


async def _any_of(notifies: Any) -> bool:
    async for _ in notifies:
        return True
    return False
