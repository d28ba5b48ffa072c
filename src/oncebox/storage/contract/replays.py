"""Replays: run finished messages again."""

from __future__ import annotations

from typing import Protocol

from oncebox.model.filters import MessageFilter
from oncebox.model.replay import Replay
from oncebox.storage.contract.connection import Connection
from oncebox.storage.records import (
    AuditEntry,
)
from oncebox.storage.steps import Steps


class ReplayStore(Protocol):
    """Run finished messages again."""

    def count_messages(
        self, connection: Connection, consumer: str, filter: MessageFilter
    ) -> Steps[tuple[int, int, int]]:
        """Three counts of matching messages: replayable, without payload, in another state."""
        ...

    def begin_replay(
        self,
        connection: Connection,
        consumer: str,
        name: str,
        filter: MessageFilter,
        pace: float | None,
        audit: AuditEntry,
    ) -> Steps[int | None]:
        """Create a replay and list its messages. Returns None if the name was used before."""
        ...

    def replays(
        self, connection: Connection, consumer: str, *, name: str | None, limit: int
    ) -> Steps[list[Replay]]:
        """Replays, the newest first."""
        ...

    def next_replay(self, connection: Connection, consumer: str) -> Steps[float | None]:
        """Seconds until a replay is to be continued; None if there is none. Takes no locks."""
        ...

    def continue_replay(self, connection: Connection, consumer: str) -> Steps[bool]:
        """Store more messages of a replay, or remove some of a cancelled one.

        Returns False if no replay was due.
        """
        ...

    def set_pace(
        self,
        connection: Connection,
        consumer: str,
        name: str,
        pace: float | None,
        audit: AuditEntry,
    ) -> Steps[bool]:
        """Change the pace of a replay. Returns False if it is not running."""
        ...

    def cancel_replay(
        self, connection: Connection, consumer: str, name: str, audit: AuditEntry
    ) -> Steps[bool]:
        """Store no more messages of a replay, and remove those that have not run."""
        ...
