"""The results of inbox.status(), inbox.messages.find() and inbox.messages.get()."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

import msgspec


class Rates(msgspec.Struct, frozen=True):
    """How many messages had which outcome in a time span."""

    received: int
    done: int
    duplicate: int
    failed: int
    dead: int
    quarantined: int


class DeadLetterCount(msgspec.Struct, frozen=True):
    """The number of dead letters, or quarantined deliveries, with the same reason."""

    state: str
    reason: str
    count: int
    keys: int
    """How many keys they block."""


class WorkerStatus(msgspec.Struct, frozen=True):
    """A worker, with its last heartbeat."""

    name: str
    batch: int
    started_at: datetime
    heartbeat_at: datetime
    is_crashed: bool
    """It did not stop cleanly, and its heartbeat stopped: the process crashed or hangs."""
    is_overdue: bool
    """It crashed, and no live worker has taken over: messages may wait for it."""


class PartitionStatus(msgspec.Struct, frozen=True):
    """A partition of a source, and how far it was read."""

    source: str
    partition: str
    next: int
    lag: int | None
    """The distance to the end of the partition when it was last measured."""
    lag_at: datetime | None
    """When the lag was measured."""
    settled: int | None
    """The position that was committed to the broker."""
    owner: str | None
    owned_at: datetime | None
    """Since when this worker reads it."""
    suspects: int
    skipped: int
    """Upper bound of the messages that the source deleted before they were read."""
    skipped_at: datetime | None
    skipped_why: str | None
    moved_at: datetime
    is_overdue: bool


class Outage(msgspec.Struct, frozen=True):
    """A worker that cannot read its source."""

    source: str
    worker: str
    why: str
    since_at: datetime


class Status(msgspec.Struct, frozen=True):
    """The state of a consumer."""

    consumer: str
    ready: int
    retrying: int
    blocked: int
    isolated: int
    awaiting_sequence: int
    """Messages that wait for lower sequence numbers of their key."""
    gaps: int
    """Keys that wait for a missing sequence number."""
    oldest_gap: datetime | None
    oldest_pending: datetime | None
    purged_before: datetime | None
    """The watermark: older messages are purged, and quarantined if they are delivered again."""
    last_purge_at: datetime | None
    """When the last purge ran."""
    purge_paused_until: datetime | None
    """No message is purged before this time, because an archive was restored."""
    dead: Sequence[DeadLetterCount]
    rates: Mapping[int, Rates]
    """Rates by minutes: 1, 5 and 60."""
    workers: Sequence[WorkerStatus]
    partitions: Sequence[PartitionStatus]
    outages: Sequence[Outage] = ()
    oldest_ready: datetime | None = None
    """When the ready message that waits longest arrived."""

    @property
    def pending(self) -> int:
        """The messages that still have to run: ready, retrying or blocked."""
        return self.ready + self.retrying + self.blocked


class MessageSummary(msgspec.Struct, frozen=True):
    """A message in a list."""

    seq: int
    origin: str
    message_id: str
    type: str
    version: int
    key: str | None
    state: str
    reason: str | None
    attempts: int
    received_at: datetime
    processed_at: datetime | None
    last_error: str | None


class Attempt(msgspec.Struct, frozen=True):
    """A run of a handler."""

    replay: int
    """The id of the replay that it belongs to, or 0."""
    number: int
    outcome: str
    error: str | None
    duration: float | None
    worker: str
    ended_at: datetime


class AuditRecord(msgspec.Struct, frozen=True):
    """An operator's action on a message."""

    action: str
    by: str
    why: str
    replay: int
    at: datetime


class MessageDetail(msgspec.Struct, frozen=True):
    """Everything about a message."""

    message: MessageSummary
    payload: bytes | None
    headers: str | None
    source: str | None
    coordinates: str | None
    occurred_at: datetime | None
    waits: str | None
    """What it waits for, if it is pending and not ready."""
    letter: int | None
    """The id of its dead letter."""
    attempts: Sequence[Attempt]
    actions: Sequence[AuditRecord]


class DeadLetterGroup(msgspec.Struct, frozen=True):
    """Dead letters with the same state, reason, error and type."""

    state: str
    reason: str
    fingerprint: str
    type: str | None
    count: int
    first: int
    last: int
    dead_at: datetime
    error: str | None
