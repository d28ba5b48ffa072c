"""Rows: turn outcomes into the rows that record them, and rows into values."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from hashlib import blake2b
from math import inf
from typing import Any

from oncebox.errors import PayloadMismatch
from oncebox.model.dead_letter import DeadLetter
from oncebox.model.error_text import ErrorText, describe, trace
from oncebox.model.message import Delivery, Message, headers_json, headers_of, text_headers, text_of
from oncebox.model.ordering import lane
from oncebox.model.outcome import Kind, Outcome, Reason
from oncebox.storage.records import Arrival, Claims, ClaimState, Entry, PendingMessage
from oncebox.storage.worker_identity import is_gone

Row = dict[str, Any]

PAYLOAD_MISMATCH = ErrorText(
    "another payload than the message with this id", describe(PayloadMismatch()).fingerprint
)
"""The error of a delivery whose id was claimed with another payload."""

LAST = 2**63 - 1
"""The largest id of a row."""

_KINDS = [kind.value for kind in Kind]
_PENDING = (Kind.failed, Kind.blocked, Kind.stored)
_QUIET = (Kind.done, Kind.duplicate, Kind.ignored)
_DEAD = (Kind.dead, Kind.quarantined)


def pending_rows(entries: Sequence[Entry]) -> list[Row]:
    """Messages that still have to run. delay: None = ready, infinity = blocked, else seconds."""
    return [_pending(e) for e in entries if e.outcome.kind in _PENDING and not e.kept]


def dead_rows(entries: Sequence[Entry]) -> list[Row]:
    """Dead letters and quarantined deliveries."""
    return [_dead(entry) for entry in entries if entry.outcome.kind in _DEAD]


def attempt_rows(entries: Sequence[Entry]) -> list[Row]:
    """Runs that failed, and runs of messages that had been stored."""
    return [_attempt(entry) for entry in entries if entry.ran]


def attempt_columns(entries: Sequence[Entry]) -> dict[str, list[Any] | None]:
    """As attempt_rows(), as columns. A column is None if all its values are the usual ones."""
    ran = [entry for entry in entries if entry.ran]
    if all(map(_is_usual, ran)):
        messages = [_message(entry.outcome) for entry in ran]
        omitted = ("replay", "number", "outcome", "error", "fingerprint", "duration")
        return {
            **dict.fromkeys(omitted),
            "origin": [message.origin for message in messages],
            "message_id": [message.id for message in messages],
        }
    table = [_attempt(entry) for entry in ran]
    return {column: [row[column] for row in table] for column in table[0]}


def _is_usual(entry: Entry) -> bool:
    outcome = entry.outcome
    replay = entry.stored.replay if entry.stored else 0
    return outcome.kind is Kind.done and outcome.attempts == 1 and not replay


def is_plain(entries: Sequence[Entry]) -> bool:
    """True if all messages had been stored, are done, and block no other message."""
    return all(
        e.outcome.kind is Kind.done and e.stored is not None and not e.stored.runs_separately
        for e in entries
    )


def to_store(entries: Sequence[Entry]) -> list[Entry]:
    """The entries that need more than a counter; often none."""
    return [entry for entry in entries if entry.stored or entry.outcome.kind not in _QUIET]


def counters(entries: Sequence[Entry]) -> Row:
    """How many messages had which outcome. Stored messages were counted as received before."""
    counts = dict.fromkeys(_KINDS, 0)
    received = 0
    for entry in entries:
        counts[entry.outcome.kind._value_] += 1
        received += entry.stored is None
    counts["received"] = received
    return counts


def has_ready(entries: Sequence[Entry]) -> bool:
    """True if a new message was stored that can run at once."""
    return any(e.outcome.kind is Kind.stored or e.ready for e in entries if e.stored is None)


def received_rows(arrivals: Sequence[Arrival], claims: Claims) -> list[Row]:
    """The pending rows of a batch that is only stored."""
    return [
        {
            **_common(arrival.message, arrival.delivery),
            **_fresh(arrival.message, seq),
            "isolated": arrival.delivery.redelivered,
            "delay": inf if answer == ClaimState.blocked else None,
        }
        for arrival, seq, answer in zip(arrivals, claims.seqs, claims.answers, strict=True)
        if answer in _NEW
    ]


_NEW = (ClaimState.new, ClaimState.blocked, ClaimState.queued)


def keys_to_block(entries: Sequence[Entry]) -> list[tuple[str, int]]:
    """The keys that become or stay blocked, and the seq of the message that blocks each.

    Only for messages that had been stored: a new message is the last one of its key.
    """
    return [
        (entry.stored.message.key, entry.stored.seq)
        for entry in entries
        if entry.stored is not None and entry.stored.message.key is not None and _blocks(entry)
    ]


def keys_to_release(entries: Sequence[Entry]) -> list[str]:
    """The keys that may be free now: their first message is done, or dead without blocking them."""
    return sorted(
        {
            entry.stored.message.key
            for entry in entries
            if entry.stored is not None
            and entry.stored.message.key is not None
            and entry.stored.runs_separately
            and entry.outcome.kind not in _PENDING
            and not entry.blocks_key
        }
    )


def _blocks(entry: Entry) -> bool:
    return entry.outcome.kind is Kind.failed or entry.blocks_key


def _pending(entry: Entry) -> Row:
    outcome = entry.outcome
    message = _message(outcome)
    delay = None if entry.ready else inf
    if outcome.retry_in is not None:
        delay = max(outcome.retry_in.total_seconds(), 0.0)
    return {
        **_common(message, outcome.delivery),
        **(_again(entry.stored) if entry.stored else _fresh(message, entry.seq)),
        **({"attempts": outcome.attempts, "crashes": 0} if entry.ran else {}),
        **({} if outcome.error is None else {"last_error": describe(outcome.error).line}),
        **({"isolated": True} if entry.isolated else {}),
        "delay": delay,
    }


def _fresh(message: Message, seq: int | None) -> Row:
    """Columns of a message that was not stored before."""
    return {
        "lane": lane(message.key or message.id),
        "seq": seq,
        "attempts": 0,
        "isolated": False,
        "crashes": 0,
        "replay": 0,
        "last_error": None,
    }


def _again(stored: PendingMessage) -> Row:
    """Columns of a message that stays stored."""
    return {
        "lane": stored.lane,
        "seq": stored.seq,
        "attempts": stored.attempts,
        "isolated": stored.isolated,
        "crashes": stored.crashes,
        "replay": stored.replay,
        "last_error": stored.last_error,
    }


def _dead(entry: Entry) -> Row:
    outcome = entry.outcome
    error = None if outcome.error is None else describe(outcome.error)
    if error is None and outcome.reason is Reason.payload_mismatch:
        error = PAYLOAD_MISMATCH
    return {
        **_common(outcome.message, outcome.delivery),
        "state": outcome.kind.value,
        "reason": outcome.reason and outcome.reason.value,
        "seq": entry.seq,
        "blocks_key": entry.blocks_key,
        "content_hash": outcome.message and outcome.message.content_hash,
        "attempts": outcome.attempts,
        "crashes": entry.stored.crashes if entry.stored and outcome.reason is Reason.crashed else 0,
        "replay": entry.stored.replay if entry.stored else 0,
        "error": error and error.line,
        "fingerprint": error and error.fingerprint,
        "sighting": _sighting(outcome),
    }


def _attempt(entry: Entry) -> Row:
    outcome = entry.outcome
    error = outcome.error  # not tested for truth: an exception with a length may be false
    message = _message(outcome)
    return {
        "origin": message.origin,
        "message_id": message.id,
        "replay": entry.stored.replay if entry.stored else 0,
        "number": outcome.attempts,
        "outcome": outcome.kind.value,
        "error": None if error is None else trace(error),
        "fingerprint": None if error is None else describe(error).fingerprint,
        "duration": entry.duration,
    }


def _common(message: Message | None, delivery: Delivery) -> Row:
    return {
        "origin": message and message.origin,
        "message_id": message and message.id,
        "type": message and message.type,
        "version": message and message.version,
        "key": message.key if message else _broker_key(delivery),
        "payload": message.payload if message else delivery.body,
        "headers": headers_json(message.headers if message else text_headers(delivery.headers)),
        "source": delivery.source,
        "coordinates": delivery.coordinates,
        "occurred_at": message and message.occurred_at,
    }


def alive(workers: Sequence[Sequence[Any]]) -> list[Sequence[Any]]:
    """The workers that are alive, as far as known.

    A row is (name, incarnation, batch, is overdue).
    """
    return [w for w in workers if not w[3] and not is_gone(w[0], w[1])]


def dead_letter(row: Sequence[Any]) -> DeadLetter:
    """Make a dead letter from a row."""
    values = dict(zip(DeadLetter.__struct_fields__, row, strict=True))
    values["blocks_key"] = bool(values["blocks_key"])
    values["payload"] = bytes(values["payload"])
    values["headers"] = headers_of(values["headers"])
    return DeadLetter(**values)


def keys_of(letters: Sequence[DeadLetter]) -> list[str]:
    """The keys of dead letters."""
    return sorted({letter.key for letter in letters if letter.key is not None})


def heads(letters: Sequence[DeadLetter]) -> list[tuple[str, int]]:
    """The lowest seq of each key."""
    first: dict[str, int] = {}
    for letter in letters:
        if letter.key is not None and letter.seq is not None:
            first[letter.key] = min(letter.seq, first.get(letter.key, letter.seq))
    return sorted(first.items())


def message_of(
    origin: str,
    message_id: str,
    type: str,
    version: int,
    key: str | None,
    payload: bytes,
    headers: str | None,
    source: str,
    coordinates: str | None,
    occurred_at: datetime | None,
    *,
    replay: int,
) -> tuple[Message, Delivery]:
    """Make a stored message from a row, and the delivery that brought it."""
    payload = bytes(payload)
    fields = headers_of(headers)
    message = Message(
        message_id, payload, origin, type, version, key, fields, occurred_at, replay=replay
    )
    return message, Delivery(payload, fields, None, source, coordinates)


def _broker_key(delivery: Delivery) -> str | None:
    """The broker's key as text, cut to the length that can be stored."""
    return (text_of(delivery.key) or "")[:255] or None


def _sighting(outcome: Outcome) -> bytes | None:
    """A hash that is equal for two deliveries of the same quarantined message.

    None for dead letters, which are unique by their claim.
    """
    message, delivery = outcome.message, outcome.delivery
    if outcome.reason is Reason.payload_mismatch and message is not None:
        parts = [message.origin.encode(), message.id.encode(), message.content_hash or b""]
    elif outcome.reason is Reason.missing_id:
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
