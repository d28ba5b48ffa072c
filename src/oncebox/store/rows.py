"""Rows: outcomes as the rows that are written down, the same for every database."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from hashlib import blake2b
from math import inf
from typing import Any

from oncebox.message import Delivery, Message, headers_json
from oncebox.ordering import lane
from oncebox.outcome import Kind, Outcome, Reason, describe, trace
from oncebox.store.contract import Entry

Row = dict[str, Any]

_KINDS = [kind.value for kind in Kind]
_PENDING = (Kind.failed, Kind.parked, Kind.stored)
_QUIET = (Kind.done, Kind.duplicate, Kind.ignored)
_DEAD = (Kind.dead, Kind.quarantined)


def pending_rows(entries: Sequence[Entry]) -> list[Row]:
    """What still has to run. delay: None = ready, infinity = parked, else seconds to the retry."""
    return [_pending(entry) for entry in entries if entry.outcome.kind in _PENDING]


def dead_rows(entries: Sequence[Entry]) -> list[Row]:
    """Dead letters and quarantine."""
    return [_dead(entry) for entry in entries if entry.outcome.kind in _DEAD]


def attempt_rows(entries: Sequence[Entry]) -> list[Row]:
    """The runs that failed."""
    return [_attempt(entry) for entry in entries if entry.outcome.attempts]


def unfinished(entries: Sequence[Entry]) -> list[Entry]:
    """The entries that leave more than a count behind; usually none."""
    return [entry for entry in entries if entry.outcome.kind not in _QUIET]


def counters(entries: Sequence[Entry]) -> Row:
    """How many deliveries had which outcome."""
    counts = Counter(entry.outcome.kind._value_ for entry in entries)
    return {"received": len(entries), **{kind: counts[kind] for kind in _KINDS}}


def _pending(entry: Entry) -> Row:
    outcome = entry.outcome
    message = _message(outcome)
    delay = None if entry.ready else inf
    if outcome.retry_in is not None:
        delay = max(outcome.retry_in.total_seconds(), 0.0)
    return {
        **_common(message, outcome.delivery),
        "lane": lane(message.key or message.id),
        "seq": entry.seq,
        "attempts": outcome.attempts,
        "alone": outcome.kind is Kind.stored,
        "last_error": outcome.error and describe(outcome.error).line,
        "delay": delay,
    }


def _dead(entry: Entry) -> Row:
    outcome = entry.outcome
    error = outcome.error and describe(outcome.error)
    return {
        **_common(outcome.message, outcome.delivery),
        "state": outcome.kind.value,
        "reason": outcome.reason and outcome.reason.value,
        "seq": entry.seq,
        "parks": entry.parks,
        "content_hash": outcome.message and outcome.message.content_hash,
        "attempts": outcome.attempts,
        "error": error and error.line,
        "fingerprint": error and error.fingerprint,
        "sighting": _sighting(outcome),
    }


def _attempt(entry: Entry) -> Row:
    outcome = entry.outcome
    message = _message(outcome)
    assert outcome.error is not None
    return {
        "origin": message.origin,
        "message_id": message.id,
        "number": outcome.attempts,
        "outcome": outcome.kind.value,
        "error": trace(outcome.error),
        "fingerprint": describe(outcome.error).fingerprint,
        "duration": entry.duration,
    }


def _common(message: Message | None, delivery: Delivery) -> Row:
    return {
        "origin": message and message.origin,
        "message_id": message and message.id,
        "type": message and message.type,
        "version": message and message.version,
        "key": message and message.key,
        "payload": message.payload if message else delivery.body,
        "headers": headers_json(message.headers if message else delivery.headers),
        "source": delivery.source,
        "coordinates": delivery.coordinates,
        "occurred_at": message and message.occurred_at,
    }


def _sighting(outcome: Outcome) -> bytes | None:
    """What makes two quarantined deliveries the same; a dead letter is unique by its claim."""
    message, delivery = outcome.message, outcome.delivery
    if outcome.reason is Reason.other_bytes and message is not None:
        parts = [message.origin.encode(), message.id.encode(), message.content_hash or b""]
    elif outcome.reason is Reason.unidentified:
        place = delivery.coordinates
        parts = [delivery.source.encode(), place.encode() if place else delivery.body]
    else:
        return None
    return blake2b(b"".join(_framed(part) for part in parts), digest_size=16).digest()


def _framed(part: bytes) -> bytes:
    return len(part).to_bytes(8) + part


def _message(outcome: Outcome) -> Message:
    assert outcome.message is not None, "only identified messages are stored or run"
    return outcome.message
