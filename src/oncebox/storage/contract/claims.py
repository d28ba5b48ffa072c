"""Claims: record new messages, and what became of each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from oncebox.model.message import Message
from oncebox.storage.contract.connection import Connection, Guarded
from oncebox.storage.records import (
    Arrival,
    Claims,
    Entry,
)
from oncebox.storage.steps import Steps


class ClaimStore(Protocol):
    """Record new messages, and what became of each."""

    def claim(
        self,
        connection: Connection,
        consumer: str,
        arrivals: Sequence[Arrival],
        *,
        ordered: bool = True,
        keep_payload: bool = True,
        timeout: float | None = None,
        any_snapshot: bool = True,
    ) -> Steps[Claims]:
        """Insert the messages that are new, and return the state of each.

        With `ordered`, the locks of all keys are taken first, and held until the transaction ends.
        """
        ...

    def claim_one(
        self,
        connection: Connection,
        consumer: str,
        arrival: Arrival,
        *,
        keep_payload: bool = True,
        any_snapshot: bool = False,
    ) -> Steps[str]:
        """Claim a message in the caller's transaction. Returns its ClaimState.

        Needs only the claims tables. Nothing is stored unless the message is new.
        """
        ...

    def claim_many(
        self,
        connection: Connection,
        consumer: str,
        arrivals: Sequence[Arrival],
        *,
        keep_payload: bool = True,
        any_snapshot: bool = False,
    ) -> Steps[str]:
        """As claim_one() for many messages. Returns one ClaimState per message.

        Nothing stays stored if one of them is refused, too late or has another payload.
        """
        ...

    def count_failures(self, connection: Connection, consumer: str, message: Message) -> Steps[int]:
        """How often a message failed in the caller's own loop."""
        ...

    def receive(
        self,
        connection: Connection,
        consumer: str,
        arrivals: Sequence[Arrival],
        *,
        keep_payload: bool = True,
        timeout: float | None = None,
    ) -> Steps[Claims]:
        """As claim, ordered; and what is new is stored as pending, behind its key if that waits."""
        ...

    def store_received(
        self,
        connection: Connection,
        consumer: str,
        arrivals: Sequence[Arrival],
        claims: Claims,
    ) -> Steps[None]:
        """Store what a claim has found to be new as pending: what receive() does at once."""
        ...

    def committed_claims(
        self,
        connection: Connection,
        consumer: str,
        messages: Sequence[tuple[Message, int]],
        token: Any,
    ) -> Steps[set[int]]:
        """Which of these claims of a lost transaction were committed: their sequence numbers.

        Locks the keys of the messages first, so that what is recorded about them is in order.
        Raises Conflict while the transaction is still in progress.
        """
        ...

    def release_claims(
        self,
        connection: Connection,
        consumer: str,
        arrivals: Sequence[Arrival],
        claims: Claims,
    ) -> Steps[None]:
        """Take back what this transaction claimed a moment ago."""
        ...

    def record(
        self,
        connection: Connection,
        consumer: str,
        worker: str,
        entries: Sequence[Entry],
        *,
        tell: bool = False,
        notify: bool = False,
    ) -> Steps[None]:
        """Write down pending messages, dead letters, quarantine, attempts and counters.

        For messages that had been stored, the locks of their keys come first where a key begins or
        ceases to wait; then followers are parked, or released. `tell`: dead letters are to be told;
        `notify`: those who listen for messages that are ready get a hint.
        """
        ...

    def guard(self, work: Guarded, token: Any) -> None:
        """Let the work commit only if it is still in the transaction of the claim or of take()."""
        ...
