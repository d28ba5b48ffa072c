"""Sequences: messages of a key that carry sequence numbers."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from oncebox.model.gap import Gap
from oncebox.model.sequencing import SequenceState
from oncebox.storage.contract.connection import Connection
from oncebox.storage.records import (
    AwaitingMessage,
    SequenceKey,
    SequenceMove,
)
from oncebox.storage.steps import Steps


class SequenceStore(Protocol):
    """Messages of a key that carry sequence numbers."""

    def sequence_states(
        self, connection: Connection, consumer: str, counts: Sequence[SequenceKey]
    ) -> Steps[dict[SequenceKey, SequenceState]]:
        """The states of these sequences. Sequences that have not begun are left out."""
        ...

    def store_awaiting(
        self, connection: Connection, consumer: str, early: Sequence[AwaitingMessage]
    ) -> Steps[Collection[tuple[SequenceKey, int]]]:
        """Store messages until their sequence numbers are due.

        Returns the sequence numbers that other messages have taken.
        """
        ...

    def advance_sequences(
        self, connection: Connection, consumer: str, moves: Sequence[SequenceMove]
    ) -> Steps[None]:
        """Record the next number of each sequence, and store the messages that may run now."""
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
        """Missing sequence numbers, the longest wait first.

        Only those missing for `age` seconds, and only gaps of at most `longest` numbers.
        """
        ...

    def cut_sequences(self, connection: Connection, consumer: str) -> Steps[list[SequenceKey]]:
        """Sequences of which more waiting messages may run: too many for one transaction."""
        ...

    def try_lock_key(self, connection: Connection, consumer: str, key: str) -> Steps[bool]:
        """Lock a key if no other transaction has locked it. Returns False if one has."""
        ...

    def is_gap(self, connection: Connection, consumer: str, gap: Gap, *, age: float) -> Steps[bool]:
        """True if this number has been missing for at least `age` seconds."""
        ...
