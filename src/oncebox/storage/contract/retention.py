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
        """What is known of what is still to come."""
        ...

    def set_watermark(
        self, connection: Connection, consumer: str, watermark: datetime
    ) -> Steps[datetime]:
        """Move the mark forward; answers where it is. What is older and new is quarantined."""
        ...

    def take_purge_turn(
        self, connection: Connection, *, consumer: str, every: float
    ) -> Steps[bool]:
        """Whether it is our turn to keep house: the first one who asks after so many seconds."""
        ...

    def count_old(self, connection: Connection, consumer: str, watermark: datetime) -> Steps[int]:
        """How many messages are older than a mark."""
        ...

    def old_windows(
        self, connection: Connection, consumer: str, watermark: datetime
    ) -> Steps[list[Any]]:
        """Where messages are that are older than a mark, in portions for forget()."""
        ...

    def purge(
        self, connection: Connection, consumer: str, watermark: datetime, window: Any
    ) -> Steps[int]:
        """Forget what is older than the mark, and finished, with its attempts; says how many."""
        ...

    def purge_counters(
        self, connection: Connection, consumer: str, watermark: datetime
    ) -> Steps[None]:
        """Forget the counters of old minutes."""
        ...

    def old_size(
        self, connection: Connection, consumer: str, watermark: datetime, window: Any
    ) -> Steps[tuple[int, int]]:
        """How many messages are old within a window, and the bytes of their payloads, about."""
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
        """What may be forgotten within a window, behind a number, with its attempts."""
        ...

    def purge_archived(
        self, connection: Connection, consumer: str, messages: Sequence[ArchivedRef]
    ) -> Steps[int]:
        """Forget messages that are archived, unless they have changed since; says how many."""
        ...

    def purge_paused_until(self, connection: Connection, consumer: str) -> Steps[datetime | None]:
        """Until when nothing is forgotten, because something was restored."""
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
        """Before a file is restored: nothing is forgotten for some seconds; numbers are free."""
        ...

    def write_audit(
        self, connection: Connection, consumer: str, audit: AuditEntry, about: str
    ) -> Steps[None]:
        """Write down what was done to something that is no message."""
        ...

    def restore(
        self, connection: Connection, consumer: str, records: Sequence[ArchivedMessage]
    ) -> Steps[int]:
        """Bring messages back, with their attempts; says how many were not there."""
        ...

    def find_messages(
        self, connection: Connection, consumer: str, filter: MessageFilter
    ) -> Steps[list[Sequence[Any]]]:
        """Messages that match, in any state: key, origin, id, whether anything is to be erased."""
        ...

    def count_quarantined(
        self, connection: Connection, consumer: str, filter: MessageFilter
    ) -> Steps[int]:
        """How many quarantined deliveries may be about the same, by their key or id."""
        ...

    def erase(
        self,
        connection: Connection,
        consumer: str,
        messages: Sequence[tuple[str | None, str, str]],
        audit: AuditEntry,
    ) -> Steps[int]:
        """Erase the payloads of messages, given by key, origin and id, that are finished."""
        ...
