"""Dialect: what parts of a store that are the same on every database need to know of one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from oncebox.storage.contract import Connection
from oncebox.storage.steps import Steps


class Dialect(ABC):
    """How a database keeps time, takes lists and waits."""

    _sql: dict[str, str]

    @abstractmethod
    def _moment(self, value: Any) -> datetime | None:
        """A time as the database keeps it."""

    @abstractmethod
    def _kept(self, time: datetime | None) -> Any:
        """A time as the database wants it."""

    @abstractmethod
    def _times(self, rest: float = 0) -> dict[str, Any]:
        """What a statement must be told of the time: now, and the time in so many seconds."""

    @abstractmethod
    def _be_polite(self, connection: Connection) -> Steps[None]:
        """Do not wait for locks for long, and do not outlive being stopped."""

    @abstractmethod
    def _list(self, values: Sequence[Any]) -> Any:
        """A list as the database wants it."""
