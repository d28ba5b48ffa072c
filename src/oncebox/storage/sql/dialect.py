"""Dialect: how the shared code of the SQL stores passes times, lists and locks to a database."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from oncebox.storage.contract import Connection
from oncebox.storage.steps import Steps


class Dialect(ABC):
    """How a database stores times, takes lists and waits for locks."""

    _sql: dict[str, str]

    @abstractmethod
    def _moment(self, value: Any) -> datetime | None:
        """Convert a time that the database stored."""

    @abstractmethod
    def _time_param(self, time: datetime | None) -> Any:
        """Convert a time to a parameter."""

    @abstractmethod
    def _times(self, rest: float = 0) -> dict[str, Any]:
        """The parameters of statements that need the time: now, and in `rest` seconds."""

    @abstractmethod
    def _limit_lock_wait(self, connection: Connection) -> Steps[None]:
        """Limit how long this transaction waits for locks, and how long it may take.

        So background work does not block messages, even if its process is suspended.
        """

    @abstractmethod
    def _list(self, values: Sequence[Any]) -> Any:
        """Convert a list to a parameter."""
