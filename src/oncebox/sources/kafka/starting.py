"""Starting: the offset that a partition is read from. Pure.

The position in the database is the truth: the offset that the broker keeps for the group counts
only where there is no position yet. So a group that was rewound, or skipped ahead, changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta

import msgspec

from oncebox.store.records import Position


class Facts(msgspec.Struct, frozen=True):
    """What the broker says of a partition when it becomes ours."""

    low: int | None = None
    """Its first offset,"""
    high: int | None = None
    """and the one after its last; None while it has no leader."""
    committed: int | None = None
    """Where the group stands, if it ever committed anything."""
    topic_id: str | None = None
    """What tells a topic from another one of the same name; None where brokers do not say."""


class Start(msgspec.Struct, frozen=True):
    """Where a partition is read from, and what is to be said about it."""

    offset: int
    mark: str
    prefix: str = ""
    """Before coordinates: what was at the same place in an earlier life of the topic is another
    message."""
    complaint: str | None = None


def beginning(part: str, facts: Facts, *, reset: str) -> Position | None:
    """Where a partition is read from that has no position yet; None if that cannot be told now."""
    offset = facts.committed
    if offset is None:
        offset = facts.low if reset == "earliest" else facts.high
    return None if offset is None else Position(part, offset, _mark(facts.topic_id, 0))


def is_beyond(position: Position, facts: Facts) -> bool:
    """Whether more was read than there is."""
    return facts.high is not None and position.next > facts.high


def starting(position: Position, facts: Facts) -> Start:
    """Where a partition is read on."""
    topic_id, _, count = (position.mark or ":0").partition(":")
    life = int(count)
    known, low = facts.topic_id or topic_id, facts.low
    if low is None:
        return _start(known, life, position.next)
    if topic_id and facts.topic_id and topic_id != facts.topic_id:
        complaint = "belongs to a topic that was created anew: it is read from its beginning"
        return _start(known, life + 1, low, complaint)
    if is_beyond(position, facts):
        complaint = (
            f"ends at {facts.high:,}, but was read up to {position.next:,} before: brokers lost "
            "messages. It is read from its beginning; the inbox absorbs what it knows"
        )
        return _start(known, life + 1, low, complaint)
    if position.next < low:
        # Kafka was told more than the position says only where nothing was left before it.
        if facts.committed is not None and facts.committed >= low:
            return _start(known, life, low)
        complaint = (
            f"begins at {low:,}, but was read up to {position.next:,} only: what was between was "
            "deleted by the topic's retention before anybody read it"
        )
        return _start(known, life, low, complaint)
    return _start(known, life, position.next)


def _start(topic_id: str | None, life: int, offset: int, complaint: str | None = None) -> Start:
    return Start(offset, _mark(topic_id, life), f"{life}:" if life else "", complaint)


def _mark(topic_id: str | None, life: int) -> str:
    return f"{topic_id or ''}:{life}"


def longest(topics: Sequence[Mapping[str, str]]) -> timedelta | None:
    """For how long the longest of some topics, by their settings, keeps messages."""
    spans = [span for topic in topics if (span := _keeps(topic)) is not None]
    return max(spans, default=None)


def _keeps(topic: Mapping[str, str]) -> timedelta | None:
    if "retention.ms" not in topic:
        return None
    milliseconds = int(topic["retention.ms"])
    if milliseconds < 0 or "delete" not in topic.get("cleanup.policy", "delete"):
        return timedelta.max
    try:
        return timedelta(milliseconds=milliseconds)
    except OverflowError:
        return timedelta.max
