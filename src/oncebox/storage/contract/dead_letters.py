"""Dead letters: find, lock, retry and discard them, and call hooks for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from oncebox.model.dead_letter import DeadLetter
from oncebox.model.filters import DeadLetterFilter
from oncebox.model.inspection import DeadLetterGroup
from oncebox.storage.contract.connection import Connection
from oncebox.storage.records import (
    AuditEntry,
)
from oncebox.storage.steps import Steps


class DeadLetterStore(Protocol):
    """Find, lock, retry and discard dead letters, and call hooks for them."""

    def newest_dead_letter(self, connection: Connection, consumer: str) -> Steps[int]:
        """The id of the newest dead letter; 0 if there is none."""
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
        """Dead letters and quarantined deliveries that match, ordered by id."""
        ...

    def dead_letter_groups(
        self,
        connection: Connection,
        consumer: str,
        filter: DeadLetterFilter,
        *,
        ids: Sequence[int] | None = None,
        limit: int,
    ) -> Steps[list[DeadLetterGroup]]:
        """Counts of matching dead letters by state, reason, error and type, the largest first."""
        ...

    def fingerprints(
        self, connection: Connection, consumer: str, prefix: str, *, limit: int
    ) -> Steps[list[tuple[str, str | None]]]:
        """The fingerprints that begin with a prefix, and one error of each."""
        ...

    def lock_dead_letters(
        self, connection: Connection, consumer: str, letters: Sequence[DeadLetter]
    ) -> Steps[list[DeadLetter]]:
        """Lock the keys of these dead letters. Returns those that still exist and may be changed.

        A key is left out while one of its messages runs in isolation.
        """
        ...

    def retry_dead_letters(
        self,
        connection: Connection,
        consumer: str,
        letters: Sequence[DeadLetter],
        audit: AuditEntry,
    ) -> Steps[None]:
        """Make dead letters pending again. They keep their seq, so they run first in their keys."""
        ...

    def discard_dead_letters(
        self,
        connection: Connection,
        consumer: str,
        letters: Sequence[DeadLetter],
        audit: AuditEntry,
    ) -> Steps[None]:
        """Delete dead letters, and release the messages that they blocked."""
        ...

    def has_unnotified(self, connection: Connection, consumer: str) -> Steps[bool]:
        """True if the hooks of a dead letter are due."""
        ...

    def lease_unnotified(
        self, connection: Connection, consumer: str, *, limit: int, lease: float
    ) -> Steps[list[DeadLetter]]:
        """Dead letters whose hooks are due. No other worker gets them for `lease` seconds."""
        ...

    def mark_notified(self, connection: Connection, letters: Sequence[DeadLetter]) -> Steps[None]:
        """Record that the hooks of these dead letters were called."""
        ...
