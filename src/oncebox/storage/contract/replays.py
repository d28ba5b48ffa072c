"""Replays: finished messages that run again."""

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
    """Finished messages that run again."""

    def count_messages(
        self, connection: Connection, consumer: str, filter: MessageFilter
    ) -> Steps[tuple[int, int, int]]:
        """How many messages match: to be replayed, without a payload, in another state."""
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
        """Note what is to be replayed; None where the name was used before."""
        ...

    def replays(
        self, connection: Connection, consumer: str, *, name: str | None, limit: int
    ) -> Steps[list[Replay]]:
        """Replays, the newest first."""
        ...

    def next_replay(self, connection: Connection, consumer: str) -> Steps[float | None]:
        """In how many seconds there is something to go on with; None if never. Takes no locks."""
        ...

    def continue_replay(self, connection: Connection, consumer: str) -> Steps[bool]:
        """Store some more of a replay, or take some back; says whether there was any."""
        ...

    def set_pace(
        self,
        connection: Connection,
        consumer: str,
        name: str,
        pace: float | None,
        audit: AuditEntry,
    ) -> Steps[bool]:
        """A replay goes on at another pace; says whether it is running."""
        ...

    def cancel_replay(
        self, connection: Connection, consumer: str, name: str, audit: AuditEntry
    ) -> Steps[bool]:
        """Nothing more of a replay is stored, and what has not run is to be taken back."""
        ...
