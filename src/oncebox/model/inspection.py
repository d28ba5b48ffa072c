"""Inspection: what status, list and show return."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

import msgspec


class Rates(msgspec.Struct, frozen=True):
    """What happened within some minutes."""

    received: int
    done: int
    duplicate: int
    failed: int
    dead: int
    quarantined: int


class DeadLetterCount(msgspec.Struct, frozen=True):
    """How many died of a reason."""

    state: str
    reason: str
    count: int
    keys: int
    """How many keys wait for them."""


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
    """A part of a source, and how far it was read."""

    source: str
    partition: str
    next: int
    lag: int | None
    """How much was there that was not read yet,"""
    lag_at: datetime | None
    """and when that was measured."""
    settled: int | None
    """The position that the broker knows."""
    owner: str | None
    owned_at: datetime | None
    """Since when it has this reader."""
    suspects: int
    skipped: int
    """Up to how many messages were gone before they could be read,"""
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
    """How a consumer is."""

    consumer: str
    ready: int
    retrying: int
    blocked: int
    isolated: int
    awaiting_sequence: int
    """How many wait for numbers before their own."""
    gaps: int
    """How many keys wait for a number."""
    oldest_gap: datetime | None
    oldest_pending: datetime | None
    purged_before: datetime | None
    """The watermark: older messages are purged, and quarantined if they are delivered again."""
    last_purge_at: datetime | None
    """When the last purge ran."""
    purge_paused_until: datetime | None
    """Nothing is forgotten before, because something was restored."""
    dead: Sequence[DeadLetterCount]
    rates: Mapping[int, Rates]
    """By minutes: 1, 5 and 60."""
    workers: Sequence[WorkerStatus]
    partitions: Sequence[PartitionStatus]
    outages: Sequence[Outage] = ()


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
    """0, or the number of the replay that it belongs to."""
    number: int
    outcome: str
    error: str | None
    duration: float | None
    worker: str
    ended_at: datetime


class AuditRecord(msgspec.Struct, frozen=True):
    """What an operator did."""

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
    """Its number among the dead letters."""
    attempts: Sequence[Attempt]
    actions: Sequence[AuditRecord]


class DeadLetterGroup(msgspec.Struct, frozen=True):
    """Dead letters that died of the same."""

    state: str
    reason: str
    fingerprint: str
    type: str | None
    count: int
    first: int
    last: int
    dead_at: datetime
    error: str | None
