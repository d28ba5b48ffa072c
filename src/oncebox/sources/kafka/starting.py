"""Starting: the offset that a partition is read from. Pure.

The position in the database is the truth: the offset that the broker keeps for the group counts
only where there is no position yet. So a group that was rewound, or skipped ahead, changes nothing.
"""

from __future__ import annotations

import msgspec

from oncebox.store.records import Position


class Facts(msgspec.Struct, frozen=True):
    """What the broker says of a partition when it becomes ours."""

    low: int
    """Its first offset,"""
    high: int
    """and the one after its last."""
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


def beginning(part: str, facts: Facts, *, reset: str) -> Position:
    """Where a partition is read from that has no position yet."""
    first = facts.low if reset == "earliest" else facts.high
    offset = first if facts.committed is None else facts.committed
    return Position(part, offset, _mark(facts.topic_id, 0))


def starting(position: Position, facts: Facts) -> Start:
    """Where a partition is read on."""
    topic_id, _, count = (position.mark or ":0").partition(":")
    life = int(count)
    if topic_id and facts.topic_id and topic_id != facts.topic_id:
        return _anew(
            facts.topic_id,
            life + 1,
            facts.low,
            "belongs to a topic that was created anew: it is read from its beginning",
        )
    known = facts.topic_id or topic_id
    if position.next > facts.high:
        return _anew(
            known,
            life + 1,
            facts.low,
            f"ends at {facts.high:,}, but was read up to {position.next:,} before: brokers lost "
            "messages. It is read from its beginning, and what was handled before is absorbed",
        )
    if position.next < facts.low:
        return _anew(
            known,
            life,
            facts.low,
            f"begins at {facts.low:,}, but was read up to {position.next:,} only: what was between "
            "was deleted by the topic's retention before anybody read it",
        )
    return _anew(known, life, position.next)


def _anew(topic_id: str | None, life: int, offset: int, complaint: str | None = None) -> Start:
    return Start(offset, _mark(topic_id, life), f"{life}:" if life else "", complaint)


def _mark(topic_id: str | None, life: int) -> str:
    return f"{topic_id or ''}:{life}"
