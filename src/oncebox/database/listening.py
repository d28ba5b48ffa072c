"""Listening: a connection of its own that hears when something was stored. A hint, never the truth:
whoever listens looks by himself as well, and a connection that died is only slower."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import psycopg
from psycopg import sql

from oncebox.store.contract import Steps

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
        self._is_deaf = False

    def wait(self, seconds: float) -> Steps[bool]:
        """Until somebody stores something, or the time is over; says whether it is worth a look."""
        try:
            if self._connection is None:
                self._connection = yield self._connect
                listen = sql.SQL("LISTEN {}").format(sql.Identifier(self._channel))
                yield partial(self._connection.execute, listen)
                self._is_deaf = False
                return True  # what was stored before was not heard
            heard: bool = yield partial(self._hear, seconds)
            if not heard:  # such connections die without a word
                yield partial(self._connection.execute, "SELECT 1")
            return heard
        except psycopg.Error as error:
            if not self._is_deaf:
                logger.warning(
                    "cannot listen for stored messages (%s): they are found by looking, which is "
                    "slower",
                    type(error).__name__,
                )
            self._is_deaf = True
            yield from self.close()
            yield partial(self._sleep, seconds)
            return False

    def _hear(self, seconds: float) -> Any:
        notifies = self._connection.notifies(timeout=seconds, stop_after=1)
        return _any_of(notifies) if hasattr(notifies, "__aiter__") else any(True for _ in notifies)

    def close(self) -> Steps[None]:
        """Give the connection up."""
        connection, self._connection = self._connection, None
        if connection is not None:
            yield connection.close


async def _any_of(notifies: Any) -> bool:
    async for _ in notifies:
        return True
    return False
