"""Records: what goes into a store, and what comes out of it. Values, without any SQL."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple, Self

import msgspec

from oncebox.message import Delivery, HeaderMap, Message
from oncebox.outcome import Outcome


class Arrival(msgspec.Struct, frozen=True, gc=False):
    """A message to be claimed, and the delivery that brought it."""

    message: Message
    delivery: Delivery


class Answer:
    """What a claim says of one message: a letter each, as the databases answer."""

    new = "n"
    waits = "w"
    """New, and its key waits for a retry or a dead letter."""
    queued = "r"
    """New, and its key has stored messages that are ready to run."""
    duplicate = "d"
    other_bytes = "x"
    too_late = "l"
    early = "e"
    """New, and kept until the numbers before its own have come."""
    stored = "q"
    """New, and stored behind what waited for its number, or for the numbers before."""
    late_number = "s"
    """New, but its number was admitted or given up before."""
    number_taken = "t"
    """New, but another message waits under its number."""
    refused = "i"
    """Nothing was claimed: the transaction's snapshot may be older than the truth."""


class Stored(msgspec.Struct, frozen=True, gc=False):
    """A pending message as it was read, and what is known of its runs."""

    message: Message
    delivery: Delivery
    lane: int
    seq: int
    attempts: int = 0
    alone: bool = False
    deaths: int = 0
    replay: int = 0
    last_error: str | None = None

    @property
    def is_special(self) -> bool:
        """Runs by itself: it failed before, or may kill its process. Its key may wait for it."""
        return self.alone or self.attempts > 0


class Taken(msgspec.Struct, frozen=True):
    """What a worker got to drain: rows of lanes that are locked until the transaction ends."""

    rows: Sequence[Stored] = ()
    token: Any = None
    """Names the transaction; the guard compares it."""
    crashed: bool = False
    """Somebody died over these lanes: the first of their messages are marked to run alone."""
    again: bool = False
    """Nothing was taken, but something is ready now: commit, and take again."""


class Position(msgspec.Struct, frozen=True):
    """How far a part of a source has been read, and by whom."""

    part: str
    next: int
    mark: str | None = None
    """What tells this file from another one of the same name."""
    owner: str | None = None
    """The incarnation of the worker that reads it."""
    owner_name: str | None = None
    batch: int = 0
    suspects: int = 0
    """How many of the next messages were in the hands of an owner that vanished."""
    is_overdue: bool = False
    """Whether its owner should have been heard of."""
    moved_at: datetime | None = None


class Gauge(msgspec.Struct, frozen=True):
    """What a source knows of a part beside its position, in the same unit."""

    lag: int | None = None
    """How much is there that was not read yet."""
    settled: int | None = None
    """The position that the broker was told."""


class Advance(msgspec.Struct, frozen=True):
    """A step of a position, made with the work on the messages that it passes."""

    source: str
    part: str
    owner: str
    old: int
    new: int
    patience: float
    """Seconds within which the owner is heard of again."""
    mark: str | None = None
    suspects: int = 0


class DeadLetter(msgspec.Struct, frozen=True):
    """A message that cannot be run, or whose identity is not to be trusted."""

    id: int
    state: str
    """dead or quarantined"""
    reason: str
    seq: int | None
    origin: str | None
    message_id: str | None
    type: str | None
    version: int | None
    key: str | None
    parks: bool
    """Whether the later messages of its key wait for it."""
    payload: bytes
    content_hash: bytes | None
    headers: HeaderMap
    source: str
    coordinates: str | None
    occurred_at: datetime | None
    attempts: int
    deaths: int
    replay: int
    error: str | None
    fingerprint: str | None
    """What it has in common with letters that died of the same error."""
    died_at: datetime


class Matching(msgspec.Struct, frozen=True):
    """Which dead letters are meant: those that match everything that is given."""

    ids: Sequence[int] | None = None
    keys: Sequence[str] | None = None
    state: str | None = None
    reason: str | None = None
    type: str | None = None
    key: str | None = None
    origin: str | None = None
    message_id: str | None = None
    fingerprint: str | None = None


class Past(msgspec.Struct, frozen=True, omit_defaults=True):
    """Which messages of the past are meant: those that match everything that is given."""

    ids: Sequence[str] | None = None
    origin: str | None = None
    type: str | None = None
    key: str | None = None
    since: datetime | None = None
    """Received at this time or later."""
    until: datetime | None = None
    """Received before this time."""
    state: str = "done"
    """done or discarded"""


class Replay(msgspec.Struct, frozen=True):
    """Old messages that are run once more, and how far that is."""

    id: int
    name: str
    state: str
    by: str
    why: str
    wanted: str
    """Which messages, as JSON."""
    pace: float | None
    """Messages per second at most."""
    total: int
    stored: int
    """How many arrived anew so far."""
    skipped: int
    """How many were unfinished or had no payload when their turn came."""
    cancelled: int
    """How many were taken back before they ran."""
    waiting: int
    """How many are pending at the moment."""
    dead: int
    discarded: int
    began_at: datetime
    ended_at: datetime | None

    @property
    def done(self) -> int:
        """How many have run."""
        return self.stored - self.waiting - self.dead - self.discarded - self.cancelled

    @property
    def is_over(self) -> bool:
        """Whether nothing of it will run any more, unless a dead letter is put back."""
        return self.state == "cancelled" or (self.state == "stored" and not self.waiting)


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


class Gap(msgspec.Struct, frozen=True):
    """A number of a key that is waited for."""

    key: str
    epoch: str
    next: int | None
    """The number that is missing; None where it is not known what the first is."""
    lowest: int
    """The lowest of those that wait."""
    early: int
    """How many wait."""
    waiting_since: datetime


class Deed(msgspec.Struct, frozen=True):
    """What an operator does, for the audit."""

    act: str
    by: str
    why: str


class Worker(msgspec.Struct, frozen=True):
    """Who drains: a name that is its own for the time being, and what it takes at a time."""

    name: str
    incarnation: str
    batch: int
    timeout: float
    """Seconds after which the database ends a transaction that was left behind."""
    patience: float
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
    parks: bool = False
    """A dead letter that holds its key."""
    ready: bool = False
    """Stored to run as soon as its turn comes, instead of waiting behind its key's head."""
    alone: bool = False
    """Stored to be run by itself."""
    kept: bool = False
    """Its pending row is written already."""
    ran: bool = False
    """Its handler ran, and the run is worth a row: it failed, or its message had been stored."""
    duration: float | None = None
    stored: Stored | None = None
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


class Record(msgspec.Struct, frozen=True, omit_defaults=True):
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
    minted_at: datetime | None = None
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


class Archived(NamedTuple):
    """A message that is in an archive, as far as needed to forget it."""

    origin: str
    id: str
    runs: int
    """How many attempts are archived with it."""
    has_payload: bool
