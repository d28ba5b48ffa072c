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
    """Stored behind an unfinished message or dead letter of its key, or until the missing sequence
    numbers before its own arrive."""
    stored = auto()
    """Stored to run later: it was only received, or it has to run in isolation."""
    dead = auto()
    """It does not run again unless an operator retries it. Ordering.strict: it blocks its key."""
    quarantined = auto()
    """It never ran: its id is missing, contradicts an earlier message, or is too old to check. It
    blocks no key. An operator releases or discards it."""
    ignored = auto()
    """Its type is ignored. Nothing was done."""


class Reason(StrEnum):
    """Why a message is dead (up to transaction_lost) or quarantined (from missing_id on)."""

    undecodable = auto()
    unknown_type = auto()
    unknown_version = auto()
    too_large = auto()
    rejected = auto()
    out_of_attempts = auto()
    crashed = auto()
    """Its worker process crashed each time it ran."""
    transaction_lost = auto()
    """Its handler ended the transaction, so how much of its work is committed is unknown."""
    missing_id = auto()
    """The id, or another field that identifies the message, is missing or not valid."""
    payload_mismatch = auto()
    """Its id was claimed before with another payload."""
    too_late = auto()
    """It is older than the purged messages, so it may be a duplicate of one of them."""
    late_sequence = auto()
    """Its sequence number was admitted or skipped before."""
    sequence_taken = auto()
    """Another message awaits its turn with the same sequence number."""


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
