"""Outcome: the result of processing a delivery. Ack a delivery after you have its outcome."""

from __future__ import annotations

from datetime import timedelta
from enum import StrEnum, auto

import msgspec

from oncebox.model.message import Delivery, Message


class Kind(StrEnum):
    """The result of processing a delivery. Every kind is committed, so ack every kind."""

    done = auto()
    """The handler ran, and its work is committed."""
    duplicate = auto()
    """The message was claimed before. Nothing was done."""
    failed = auto()
    """The handler raised. The message is stored for another attempt."""
    blocked = auto()
    """Stored. It waits for an unfinished message or dead letter of its key, or for missing sequence
    numbers."""
    stored = auto()
    """Stored to run later: receive() stored it; or it runs isolated, because it may crash its
    process or its batch could not be committed; or lower sequence numbers of its key run first."""
    dead = auto()
    """It does not run again unless an operator retries it. Ordering.strict: it blocks its key."""
    quarantined = auto()
    """It never ran: its id is missing or was used with another payload, it is so old that it may be
    a duplicate of a purged message, or its sequence number is late or taken. It blocks no key. An
    operator retries or discards it."""
    ignored = auto()
    """Its type is ignored. Nothing was done."""


class Reason(StrEnum):
    """Why a message is dead or quarantined."""

    undecodable = auto()
    """Dead: its payload does not fit the type that the handler takes."""
    unknown_type = auto()
    """Dead: its type has no handler."""
    unknown_version = auto()
    """Dead: its type has handlers, but none for its version."""
    too_large = auto()
    """Dead: its payload is larger than payload_limit."""
    rejected = auto()
    """Dead: its handler raised Reject."""
    out_of_attempts = auto()
    """Dead: its handler failed as often as the retry policy allows."""
    crashed = auto()
    """Dead: its worker process crashed each time it ran."""
    transaction_lost = auto()
    """Dead: its handler ended the transaction; it is unknown how much of its work is committed."""
    missing_id = auto()
    """Quarantined: the id, or another field that identifies it, is missing or not valid."""
    payload_mismatch = auto()
    """Quarantined: its id was claimed before with another payload."""
    too_late = auto()
    """Quarantined: it is older than the purged messages, so it may be a duplicate of one."""
    late_sequence = auto()
    """Quarantined: its sequence number was admitted or skipped before."""
    sequence_taken = auto()
    """Quarantined: a message that already waits has the same sequence number."""


class Outcome(msgspec.Struct, frozen=True):
    """The result of processing one delivery."""

    kind: Kind
    delivery: Delivery
    message: Message | None = None
    """None if the delivery has no valid id."""
    reason: Reason | None = None
    error: BaseException | None = None
    attempts: int = 0
    retry_in: timedelta | None = None
