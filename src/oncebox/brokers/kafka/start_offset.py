"""Start offsets: from which offset a partition is read. Pure rules without I/O.

The position in the database decides. The offset that the broker stores for the group counts only
if there is no position yet, and only if another program committed it. So a group that was rewound,
or moved ahead, changes nothing. A database that lost its positions is detected.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta

import msgspec

from oncebox.model.position import Position

SIGNATURE = "oncebox"


class LogId(msgspec.Struct, frozen=True):
    """Identifies the log of a partition. It is stored with the position, as text."""

    topic_id: str | None = None
    """Distinguishes a topic from a later one of the same name; None if the broker has no ids."""
    version: int = 0
    """How often the log was replaced or truncated: the same offset is another message in each
    version."""
    epoch: int | None = None
    """The leader epoch of the last message that was read."""
    first_offset: int = 0
    """The offset that the partition was first read from."""

    @classmethod
    def of(cls, text: str | None) -> LogId:
        """Parse the text of a log id."""
        topic_id, version, epoch, first = [*(text or "").split(":"), "", "", "", ""][:4]
        return cls(
            topic_id or None, int(version or 0), int(epoch) if epoch else None, int(first or 0)
        )

    def __str__(self) -> str:
        epoch = "" if self.epoch is None else self.epoch
        return f"{self.topic_id or ''}:{self.version}:{epoch}:{self.first_offset}"

    @property
    def coordinates_prefix(self) -> str:
        """The prefix of coordinates: an offset is another message in another version."""
        return f"{self.version}:" if self.version else ""


class Signature(msgspec.Struct, frozen=True):
    """Metadata that oncebox adds to each offset that it commits to Kafka."""

    version: int
    """See LogId."""
    next: int
    """The position at that time: no message is between it and the committed offset."""
    first_offset: int
    """See LogId."""

    @classmethod
    def of(cls, metadata: str | None) -> Signature | None:
        """Parse the metadata of a committed offset; None if another program committed it."""
        words = (metadata or "").split()
        if len(words) != 4 or words[0] != SIGNATURE or not all(w.isdecimal() for w in words[1:]):
            return None
        return cls(*map(int, words[1:]))

    def __str__(self) -> str:
        return f"{SIGNATURE} {self.version} {self.next} {self.first_offset}"


class Facts(msgspec.Struct, frozen=True):
    """What the brokers report about a partition when it is assigned."""

    low: int | None = None
    """The first offset; None while the partition has no leader."""
    high: int | None = None
    """The offset after the last one; None while the partition has no leader."""
    committed: int | None = None
    """The committed offset of the group; None if it has none."""
    signature: Signature | None = None
    """The signature of the committed offset; None if another program committed it."""
    topic_id: str | None = None
    """See LogId."""
    truncated_at: int | None = None
    """The offset at which the log was truncated, found by leader epochs; -1 if only the fact is
    known."""
    is_refused: bool = False
    """True if the broker refused the position as out of range."""


class Initial(msgspec.Struct, frozen=True):
    """Where a partition without a position is read from, and why."""

    position: Position
    why: str
    is_loss: bool = False
    """True if there was a position before, and the database lost it."""


class Start(msgspec.Struct, frozen=True):
    """Where a partition is read from, and what to log about it."""

    offset: int
    log_id: LogId
    warning: str | None = None
    skipped: int = 0
    """Upper bound of the messages that were deleted before they were read."""


def initial_position(partition: str, facts: Facts, *, reset: str) -> Initial | None:
    """Return where to read a partition without a position; None if that is unknown at present."""
    known = facts.signature
    if facts.committed is not None and known is not None:
        why = (
            f"its group has read up to offset {facts.committed:,}, but the database has no "
            "position: it was restored or replaced. The inbox absorbs the messages it still has"
        )
        log_id = LogId(facts.topic_id, known.version, first_offset=known.first_offset)
        return Initial(Position(partition, known.first_offset, str(log_id)), why, is_loss=True)
    offset, why = facts.committed, "the group committed this offset"
    if offset is None:
        offset = facts.low if reset == "earliest" else facts.high
        why = f"the group has no offset, and auto.offset.reset is {reset}"
    if offset is None:
        return None
    log_id = LogId(facts.topic_id, first_offset=offset)
    return Initial(Position(partition, offset, str(log_id)), why)


def is_beyond(position: Position, facts: Facts) -> bool:
    """Return True if the position is after the end of the log."""
    return facts.high is not None and position.next > facts.high


def start_at(position: Position, facts: Facts) -> Start:
    """Return where to read a partition with a position."""
    log_id = LogId.of(position.log_id)
    known = msgspec.structs.replace(log_id, topic_id=facts.topic_id or log_id.topic_id)
    if facts.low is None:
        return Start(position.next, known)
    if log_id.topic_id and facts.topic_id and log_id.topic_id != facts.topic_id:
        return _recreated(known, facts.low)
    if facts.truncated_at is not None and facts.truncated_at < position.next:
        return _truncated(position, known, facts.truncated_at, facts.low)
    # While brokers elect a leader, the end of the log proves nothing; leader epochs do.
    if is_beyond(position, facts) and (log_id.epoch is None or facts.is_refused):
        return _shortened(position, known, facts)
    if position.next < facts.low:
        return _deleted(position, known, facts, facts.low)
    return Start(position.next, known)


def _recreated(log_id: LogId, low: int) -> Start:
    warning = "belongs to a topic that was deleted and created again; reading it from its beginning"
    return Start(low, _next_version(log_id, first_offset=0), warning, skipped=low)


def _truncated(position: Position, log_id: LogId, truncated_at: int, low: int) -> Start:
    offset = max(truncated_at, low)
    warning = (
        f"was read up to offset {position.next:,}, but brokers lost the messages after offset "
        f"{offset:,} and wrote others there (unclean leader election); reading it again from there"
    )
    skipped = low - truncated_at if 0 <= truncated_at < low else 0
    return Start(offset, _next_version(log_id), warning, skipped=skipped)


def _shortened(position: Position, log_id: LogId, facts: Facts) -> Start:
    warning = (
        f"ends at offset {facts.high:,}, but was read up to {position.next:,} before: brokers lost "
        "messages. Reading it from its beginning; the inbox absorbs duplicates"
    )
    return Start(facts.low or 0, _next_version(log_id), warning)


def _deleted(position: Position, log_id: LogId, facts: Facts, low: int) -> Start:
    unread = 0 if _had_no_messages(position, log_id, facts, low) else low - position.next
    return Start(low, msgspec.structs.replace(log_id, epoch=None), skipped=unread)


def _had_no_messages(position: Position, log_id: LogId, facts: Facts, low: int) -> bool:
    """Return True if no message was between the position and the beginning of the log.

    Offsets at the end of a partition may have no message, such as transaction markers. oncebox
    commits the offset after them, and signs it with the position.
    """
    known, committed = facts.signature, facts.committed
    if known is None or committed is None or known.version != log_id.version:
        return False
    return known.next <= position.next and low <= committed


def _next_version(log_id: LogId, first_offset: int | None = None) -> LogId:
    return msgspec.structs.replace(
        log_id,
        version=log_id.version + 1,
        epoch=None,
        first_offset=log_id.first_offset if first_offset is None else first_offset,
    )


def longest_retention(topics: Sequence[Mapping[str, str]]) -> timedelta | None:
    """Return the longest retention of some topics, from their settings; None if unknown."""
    spans = [span for topic in topics if (span := _retention(topic)) is not None]
    return max(spans, default=None)


def _retention(topic: Mapping[str, str]) -> timedelta | None:
    if "retention.ms" not in topic:
        return None
    milliseconds = int(topic["retention.ms"])
    if milliseconds < 0 or "delete" not in topic.get("cleanup.policy", "delete"):
        return timedelta.max
    try:
        return timedelta(milliseconds=milliseconds)
    except OverflowError:
        return timedelta.max
