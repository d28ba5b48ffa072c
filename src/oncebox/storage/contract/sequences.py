"""Sequences: messages of a key that carry sequence numbers."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from oncebox.model.gap import Gap
from oncebox.model.sequencing import Numbers
from oncebox.storage.contract.connection import Connection
from oncebox.storage.records import (
    Count,
    Early,
    Move,
)
from oncebox.storage.steps import Steps


class SequenceStore(Protocol):
    """Messages of a key that carry sequence numbers."""

    def sequence_states(
        self, connection: Connection, consumer: str, counts: Sequence[Count]
    ) -> Steps[dict[Count, Numbers]]:
        """What is known of these counts; nothing of those that have not begun."""
        ...

    def store_awaiting(
        self, connection: Connection, consumer: str, early: Sequence[Early]
    ) -> Steps[Collection[tuple[Count, int]]]:
        """Keep messages until their numbers are due; answers the numbers that were taken."""
        ...

    def advance_sequences(
        self, connection: Connection, consumer: str, moves: Sequence[Move]
    ) -> Steps[None]:
        """Note where counts are, and store what is admitted by that."""
        ...

    def gaps(
        self,
        connection: Connection,
        consumer: str,
        *,
        age: float = 0,
        key: str | None = None,
        longest: int | None = None,
        limit: int = 100,
    ) -> Steps[list[Gap]]:
        """The numbers that are waited for since so many seconds, the longest first; where so many
        are missing at most."""
        ...

    def cut_sequences(self, connection: Connection, consumer: str) -> Steps[list[Count]]:
        """Counts whose next number waits already: there were too many to store at once."""
        ...

    def try_lock_key(self, connection: Connection, consumer: str, key: str) -> Steps[bool]:
        """Lock a key, if it is free."""
        ...

    def is_gap(self, connection: Connection, consumer: str, gap: Gap, *, age: float) -> Steps[bool]:
        """Whether it is still this number that is waited for, since so many seconds."""
        ...
