"""Records: the values that go into a store and come out of it."""

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
    """New, and stored: earlier numbers of its key were waiting and run before it."""
    late_sequence = "s"
    """New, but its sequence number was admitted or skipped before."""
    sequence_taken = "t"
    """New, but another message awaits its turn with the same sequence number."""
    refused = "i"
    """Nothing was claimed: the transaction's snapshot may be older than a committed claim."""


TOO_STRICT = (
    "oncebox keeps messages in order only at READ COMMITTED, but this connection begins its "
    "transactions at a stricter isolation level: give the inbox its own pool or engine, at READ "
    "COMMITTED"
)
"""The text of an error: an older snapshot does not show what the last holder of a lock did."""


class PendingMessage(msgspec.Struct, frozen=True, gc=False):
    """A pending message as it was read, and the results of its earlier runs."""

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
        """True if it runs in a batch of its own: it failed before, or may crash the process."""
        return self.isolated or self.attempts > 0


class TakenBatch(msgspec.Struct, frozen=True):
    """The messages that a worker took. Their lanes are locked until the transaction ends."""

    rows: Sequence[PendingMessage] = ()
    token: Any = None
    """Names the transaction; the guard compares it."""
    crashed: bool = False
    """A worker crashed while it had locked these lanes: their first messages are now isolated."""
    again: bool = False
    """Nothing was taken, but something is ready now: commit, and take again."""
    is_slow: bool = False
    """The search visited many deleted rows: see Floors."""


class Floors(msgspec.Struct, frozen=True):
    """Where take() begins to search, so that it does not visit rows deleted long ago."""

    lanes: Sequence[int] | None = None
    """The floor of each lane: no fresh ready row has a lower seq."""
    due: datetime | None = None
    """No retry is due before this time."""
    server: datetime | None = None
    """When the server started. Floors of another server are not valid."""
    drawn: int | None = None
    noted_at: datetime | None = None
    """The seq and the time of the last raise_floors(). They become the floors once every
    transaction older than `xid` has ended."""
    xid: str | None = None


NO_FLOORS = Floors()


class SequenceKey(NamedTuple):
    """A sequence: the numbered messages of a key, within an epoch."""

    key: str
    epoch: str


class AwaitingMessage(msgspec.Struct, frozen=True):
    """A message that waits until its sequence number is due."""

    arrival: Arrival
    seq: int | None
    """None if only the number is occupied: the message itself is quarantined."""


class SequenceMove(msgspec.Struct, frozen=True):
    """A new state of a sequence."""

    sequence: SequenceKey
    next: int | None
    waits: bool
    """True if messages wait for the next number."""
    admitted: Sequence[int] = ()
    """The sequence numbers whose messages are stored now, in order."""


class AuditEntry(msgspec.Struct, frozen=True):
    """What the audit log records about an operator's action."""

    action: str
    by: str
    why: str


class WorkerInfo(msgspec.Struct, frozen=True):
    """A worker: its name, its unique id, and how much it takes at a time."""

    name: str
    incarnation: str
    batch: int
    timeout: float
    """Seconds after which the database ends a transaction of a suspended worker."""
    heartbeat_timeout: float
    """Seconds within which the worker sends its next heartbeat."""


class Claims(msgspec.Struct, frozen=True):
    """The result of claiming a batch, in the order of its arrivals."""

    answers: str
    seqs: Sequence[int | None]
    token: Any = None
    """Names the transaction; the guard compares it."""


class Entry(msgspec.Struct, frozen=True):
    """An outcome to record."""

    outcome: Outcome
    seq: int | None = None
    blocks_key: bool = False
    """A dead letter that blocks its key."""
    ready: bool = False
    """Stored to run as soon as possible, instead of waiting behind the first message of its key."""
    isolated: bool = False
    """Stored to run in isolation."""
    kept: bool = False
    """Its pending row exists already."""
    ran: bool = False
    """Its handler ran, and the run is recorded: it failed, or its message had been stored."""
    duration: float | None = None
    stored: PendingMessage | None = None
    """The pending message, if it had been stored before."""


class Run(msgspec.Struct, frozen=True, omit_defaults=True):
    """An attempt as it is archived."""

    number: int
    outcome: str
    worker: str
    ended_at: datetime
    replay: int = 0
    error: str | None = None
    fingerprint: str | None = None
    duration: float | None = None


class ArchivedMessage(msgspec.Struct, frozen=True, omit_defaults=True):
    """A message as it is archived: one line of a file."""

    seq: int
    origin: str
    id: str
    type: str
    version: int
    received_at: datetime
    key: str | None = None
    payload: str | None = None
    """The payload as text, if it is UTF-8."""
    payload_base64: bytes | None = None
    """The payload, if it is not UTF-8."""
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
        """Make a record from the stored payload."""
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
    """What the store needs to purge an archived message."""

    origin: str
    id: str
    runs: int
    """How many attempts are archived with it."""
    has_payload: bool
