"""Retention: watermark, purge, archive, restore and erase."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Protocol

from oncebox.model.filters import MessageFilter
from oncebox.model.retention import ArrivalProgress
from oncebox.storage.contract.connection import Connection
from oncebox.storage.records import (
    ArchivedMessage,
    ArchivedRef,
    AuditEntry,
)
from oncebox.storage.steps import Steps


class RetentionStore(Protocol):
    """Watermark, purge, archive, restore and erase."""

    def arrival_progress(self, connection: Connection, consumer: str) -> Steps[ArrivalProgress]:
        """When messages last arrived, and how old they were: from this a safe watermark follows."""
        ...

    def set_watermark(
        self, connection: Connection, consumer: str, watermark: datetime
    ) -> Steps[datetime]:
        """Move the watermark forward, and return it.

        New messages that were produced before it are quarantined from now on.
        """
        ...

    def take_purge_turn(
        self, connection: Connection, *, consumer: str, every: float
    ) -> Steps[bool]:
        """True for the first caller after `every` seconds: this caller runs the purge."""
        ...

    def count_old(self, connection: Connection, consumer: str, watermark: datetime) -> Steps[int]:
        """How many messages are older than a watermark."""
        ...

    def old_windows(
        self, connection: Connection, consumer: str, watermark: datetime
    ) -> Steps[list[Any]]:
        """Windows that contain the messages older than a watermark. Pass each to purge()."""
        ...

    def purge(
        self, connection: Connection, consumer: str, watermark: datetime, window: Any
    ) -> Steps[int]:
        """Delete finished messages older than the watermark, and their attempts.

        Returns how many messages were deleted.
        """
        ...

    def purge_counters(
        self, connection: Connection, consumer: str, watermark: datetime
    ) -> Steps[None]:
        """Delete the counters of old minutes."""
        ...

    def old_size(
        self, connection: Connection, consumer: str, watermark: datetime, window: Any
    ) -> Steps[tuple[int, int]]:
        """How many old messages a window has, and roughly the bytes of their payloads."""
        ...

    def old_messages(
        self,
        connection: Connection,
        consumer: str,
        watermark: datetime,
        window: Any,
        *,
        after: int,
        limit: int,
    ) -> Steps[list[ArchivedMessage]]:
        """The messages of a window that may be purged, with their attempts.

        Only those after the seq `after`.
        """
        ...

    def purge_archived(
        self, connection: Connection, consumer: str, messages: Sequence[ArchivedRef]
    ) -> Steps[int]:
        """Delete archived messages that have not changed since. Returns how many."""
        ...

    def purge_paused_until(self, connection: Connection, consumer: str) -> Steps[datetime | None]:
        """Until when no messages are purged, because an archive was restored."""
        ...

    def begin_restore(
        self,
        connection: Connection,
        consumer: str,
        *,
        keep: float,
        last_seq: int,
        file: str,
        audit: AuditEntry,
    ) -> Steps[None]:
        """Prepare to restore a file: pause the purge, and check that its seqs are not in use."""
        ...

    def write_audit(
        self, connection: Connection, consumer: str, audit: AuditEntry, about: str
    ) -> Steps[None]:
        """Record an operator's action that does not concern a single message."""
        ...

    def restore(
        self, connection: Connection, consumer: str, records: Sequence[ArchivedMessage]
    ) -> Steps[int]:
        """Insert archived messages and their attempts. Returns how many did not exist."""
        ...

    def find_messages(
        self, connection: Connection, consumer: str, filter: MessageFilter
    ) -> Steps[list[Sequence[Any]]]:
        """Find the messages that match, in any state if the filter names none.

        Each row has key, origin, id, and True if there is data to erase.
        """
        ...

    def count_quarantined(
        self, connection: Connection, consumer: str, filter: MessageFilter
    ) -> Steps[int]:
        """How many never-claimed deliveries in quarantine have the key or id of the filter."""
        ...

    def erase(
        self,
        connection: Connection,
        consumer: str,
        messages: Sequence[tuple[str | None, str, str]],
        audit: AuditEntry,
    ) -> Steps[int]:
        """Erase the payloads of finished messages, given by key, origin and id."""
        ...
