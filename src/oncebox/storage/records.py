"""Records: what goes into a store, and what comes out of it. Values, without any SQL."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple, Self

import msgspec

from oncebox.model.message import Delivery, Message
from oncebox.model.outcome import Outcome


class Arrival(msgspec.Struct, frozen=True, gc=False):
    """A message to be claimed, and the delivery that brought it."""

    message: Message
    delivery: Delivery


class ClaimState:
    """What a claim found for one message: one letter each, as the database returns them."""

    new = "n"
    blocked = "w"
    """New, and its key is blocked by a retry or a dead letter."""
    queued = "r"
    """New, and its key has stored messages that are ready to run."""
    duplicate = "d"
    payload_mismatch = "x"
    too_late = "l"
    awaiting_sequence = "e"
    """New, and stored until the sequence numbers before its own have arrived."""
    stored = "q"
    """New, and stored because messages of its key that awaited their sequence run first."""
    late_sequence = "s"
    """New, but its sequence number was admitted or skipped before."""
    sequence_taken = "t"
    """New, but another message awaits its turn with the same sequence number."""
    refused = "i"
    """Nothing was claimed: the transaction's snapshot may be older than a committed claim."""


class PendingMessage(msgspec.Struct, frozen=True, gc=False):
    """A pending message as it was read, and what is known of its runs."""

    message: Message
    delivery: Delivery
    lane: int
    seq: int
    attempts: int = 0
    isolated: bool = False
    crashes: int = 0
    replay: int = 0
    last_error: str | None = None

    @property
    def runs_separately(self) -> bool:
        """Runs by itself: it failed before, or may kill its process. Its key may wait for it."""
        return self.isolated or self.attempts > 0


class TakenBatch(msgspec.Struct, frozen=True):
    """What a worker got to drain: rows of lanes that are locked until the transaction ends."""

    rows: Sequence[PendingMessage] = ()
    token: Any = None
    """Names the transaction; the guard compares it."""
    crashed: bool = False
    """Somebody died over these lanes: the first of their messages are marked to run alone."""
    again: bool = False
    """Nothing was taken, but something is ready now: commit, and take again."""
    is_slow: bool = False
    """The search visited many rows that are deleted: see Floors."""


class Floors(msgspec.Struct, frozen=True):
    """Where take() begins to search, so that it does not visit rows deleted long ago."""

    lanes: Sequence[int] | None = None
    """The floor of each lane: no ready row has a lower seq, but for rows that were ready before."""
    due: datetime | None = None
    """No retry is due before it."""
    server: datetime | None = None
    """When the server started: floors of another one are void."""
    drawn: int | None = None
    noted_at: datetime | None = None
    """The next floors, once no transaction below `xid` is in progress."""
    xid: str | None = None


NO_FLOORS = Floors()


class Count(NamedTuple):
    """What is counted: the messages of a key, within an epoch."""

    key: str
    epoch: str


class Early(msgspec.Struct, frozen=True):
    """A message that is kept until its number is due."""

    arrival: Arrival
    seq: int | None
    """None where only its number is kept: the message itself is quarantined."""


class Move(msgspec.Struct, frozen=True):
    """A step of a count."""

    count: Count
    next: int | None
    waits: bool
    """Whether anybody waits for the next number."""
    admitted: Sequence[int] = ()
    """The numbers to store now, in order."""


class AuditEntry(msgspec.Struct, frozen=True):
    """What the audit log records of an operator's action."""

    action: str
    by: str
    why: str


class WorkerInfo(msgspec.Struct, frozen=True):
    """Who drains: a name that is its own for the time being, and what it takes at a time."""

    name: str
    incarnation: str
    batch: int
    timeout: float
    """Seconds after which the database ends a transaction that was left behind."""
    heartbeat_timeout: float
    """Seconds within which it says again that it is alive."""


class Claims(msgspec.Struct, frozen=True):
    """What a claim says of a batch, in the order of its arrivals."""

    answers: str
    seqs: Sequence[int | None]
    token: Any = None
    """Names the transaction; the guard compares it."""


class Entry(msgspec.Struct, frozen=True):
    """An outcome to be written down."""

    outcome: Outcome
    seq: int | None = None
    blocks_key: bool = False
    """A dead letter that holds its key."""
    ready: bool = False
    """Stored to run as soon as its turn comes, instead of waiting behind its key's head."""
    isolated: bool = False
    """Stored to be run by itself."""
    kept: bool = False
    """Its pending row is written already."""
    ran: bool = False
    """Its handler ran, and the run is worth a row: it failed, or its message had been stored."""
    duration: float | None = None
    stored: PendingMessage | None = None
    """What the message was before, if it had been stored."""


class Run(msgspec.Struct, frozen=True, omit_defaults=True):
    """An attempt, as it is archived."""

    number: int
    outcome: str
    worker: str
    ended_at: datetime
    replay: int = 0
    error: str | None = None
    fingerprint: str | None = None
    duration: float | None = None


class ArchivedMessage(msgspec.Struct, frozen=True, omit_defaults=True):
    """A message, as it is archived: one line."""

    seq: int
    origin: str
    id: str
    type: str
    version: int
    received_at: datetime
    key: str | None = None
    payload: str | None = None
    """The payload as text, where it is UTF-8."""
    payload_base64: bytes | None = None
    """The payload where it is not."""
    content_hash: bytes | None = None
    headers: str | None = None
    """JSON, as it was stored."""
    source: str | None = None
    coordinates: str | None = None
    occurred_at: datetime | None = None
    produced_at: datetime | None = None
    runs: Sequence[Run] = ()

    @classmethod
    def of(cls, payload: bytes | None, **fields: Any) -> Self:
        """A record of a payload as it was stored."""
        if payload is None:
            return cls(**fields)
        try:
            return cls(**fields, payload=payload.decode())
        except UnicodeDecodeError:
            return cls(**fields, payload_base64=payload)

    @property
    def body(self) -> bytes | None:
        """The payload."""
        if self.payload_base64 is not None:
            return self.payload_base64
        return None if self.payload is None else self.payload.encode()


class ArchivedRef(NamedTuple):
    """A message that is in an archive, as far as needed to forget it."""

    origin: str
    id: str
    runs: int
    """How many attempts are archived with it."""
    has_payload: bool
