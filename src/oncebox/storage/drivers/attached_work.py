"""The base class of transactions whose connection comes from a pool or an engine."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from oncebox.storage.contract import Guard
from oncebox.storage.drivers.watchdog import Watched


class AttachedWork(Watched, ABC):
    """A transaction that is attached to the connection that `connect` returns.

    Connecting and attaching are one call: an exception of a signal handler between two calls would
    lose the connection.
    """

    connection: Any = None
    is_exposed = False
    is_doubtful = False
    guard: Guard | None = None

    def attach(self, connect: Callable[[], Any]) -> None:
        """Use the connection that `connect` returns."""
        self.connection = connect()
        self._prepare()

    async def aattach(self, connect: Callable[[], Any]) -> None:
        """Use the async connection that `connect` returns."""
        self.connection = await connect()
        self._prepare()

    @abstractmethod
    def _prepare(self) -> None:
        """Read from the connection what the transaction needs to know."""
