"""Claims: insert new messages into the inbox, and record the outcome of each."""

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
    """Insert new messages into the inbox, and record the outcome of each."""

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

        With `ordered`, the transaction first locks all keys, and holds these locks until it ends.
        With `any_snapshot`, it also claims at REPEATABLE READ or SERIALIZABLE, where a claim may
        fail with a serialization error; otherwise it refuses.
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

        Needs only the claims tables. Stores nothing unless the message is new.
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
        """As claim_one(), for many messages. Returns one ClaimState per message.

        If one of them is refused, too late or has another payload, none of them stays stored.
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
        """Claim a batch in order, and store its new messages as pending.

        A message is stored as blocked if its key is blocked.
        """
        ...

    def store_received(
        self,
        connection: Connection,
        consumer: str,
        arrivals: Sequence[Arrival],
        claims: Claims,
    ) -> Steps[None]:
        """Store the messages that claim() found to be new as pending.

        receive() claims and stores at once.
        """
        ...

    def committed_claims(
        self,
        connection: Connection,
        consumer: str,
        messages: Sequence[tuple[Message, int]],
        token: Any,
    ) -> Steps[set[int]]:
        """After a transaction was lost: the seqs of its claims that are in the table.

        Locks the keys of the messages first, so that their outcomes are recorded in order. Raises
        Conflict while the transaction is still in progress.
        """
        ...

    def release_claims(
        self,
        connection: Connection,
        consumer: str,
        arrivals: Sequence[Arrival],
        claims: Claims,
    ) -> Steps[None]:
        """Delete the claims that this transaction has just inserted."""
        ...

    def record(
        self,
        connection: Guarded,
        consumer: str,
        worker: str,
        entries: Sequence[Entry],
        *,
        has_on_dead: bool = False,
        notify: bool = False,
    ) -> Steps[None]:
        """Record pending messages, dead letters, quarantine, attempts and counters.

        For messages that had been stored, it first locks the keys that become blocked or free. Then
        it blocks or releases the messages behind them. `has_on_dead`: on_dead hooks are to be
        called for dead letters. `notify`: wake workers that listen for ready messages.
        """
        ...

    def guard(self, work: Guarded, token: Any) -> None:
        """Let the work commit only if it is still in the transaction of the claim or of take().

        A handler may have ended that transaction.
        """
        ...
