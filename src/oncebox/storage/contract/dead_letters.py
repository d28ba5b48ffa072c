"""Dead letters: find, lock, retry, discard, and notify about them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from oncebox.model.dead_letter import DeadLetter
from oncebox.model.filters import DeadLetterFilter
from oncebox.storage.contract.connection import Connection
from oncebox.storage.records import (
    AuditEntry,
)
from oncebox.storage.steps import Steps


class DeadLetterStore(Protocol):
    """Find, lock, retry, discard, and notify about them."""

    def newest_dead_letter(self, connection: Connection, consumer: str) -> Steps[int]:
        """The number of the newest dead letter."""
        ...

    def find_dead_letters(
        self,
        connection: Connection,
        consumer: str,
        filter: DeadLetterFilter,
        *,
        ids: Sequence[int] | None = None,
        keys: Sequence[str] | None = None,
        limit: int,
        after: int = 0,
        up_to: int | None = None,
    ) -> Steps[list[DeadLetter]]:
        """Dead letters and quarantine that match, in the order of their numbers."""
        ...

    def lock_dead_letters(
        self, connection: Connection, consumer: str, letters: Sequence[DeadLetter]
    ) -> Steps[list[DeadLetter]]:
        """Lock the keys of these letters; answers those that are there and may be acted on.

        A key one of whose messages runs alone at this moment is left alone.
        """
        ...

    def retry_dead_letters(
        self,
        connection: Connection,
        consumer: str,
        letters: Sequence[DeadLetter],
        audit: AuditEntry,
    ) -> Steps[None]:
        """Put letters back to be run, with their old numbers: at the head of their keys."""
        ...

    def discard_dead_letters(
        self,
        connection: Connection,
        consumer: str,
        letters: Sequence[DeadLetter],
        audit: AuditEntry,
    ) -> Steps[None]:
        """Delete letters; what waited for them is released."""
        ...

    def has_unnotified(self, connection: Connection, consumer: str) -> Steps[bool]:
        """Whether somebody is to be told of a letter, now."""
        ...

    def lease_unnotified(
        self, connection: Connection, consumer: str, *, limit: int, lease: float
    ) -> Steps[list[DeadLetter]]:
        """Letters that somebody is to be told of, now; nobody else is for `lease` seconds."""
        ...

    def mark_notified(self, connection: Connection, letters: Sequence[DeadLetter]) -> Steps[None]:
        """Somebody was told."""
        ...
