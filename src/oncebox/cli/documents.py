"""JSON output: one field name for one thing in every command.

An id of 64 bits is a text, because many readers of JSON round large numbers. Times are in UTC.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import click
import msgspec

from oncebox.model.dead_letter import DeadLetter
from oncebox.model.inspection import (
    Attempt,
    AuditRecord,
    DeadLetterGroup,
    MessageDetail,
    MessageSummary,
    PartitionStatus,
    Status,
    WorkerStatus,
)
from oncebox.model.replay import Replay

Document = dict[str, Any]

NAMES: Mapping[type[Any], Mapping[str, str]] = {
    Attempt: {"replay": "replay_id", "duration": "seconds"},
    AuditRecord: {"replay": "replay_id"},
    DeadLetter: {"id": "dead_letter_id", "replay": "replay_id"},
    DeadLetterGroup: {
        "first": "first_dead_letter_id",
        "last": "last_dead_letter_id",
        "dead_at": "last_dead_at",
    },
    MessageSummary: {"last_error": "error"},
    PartitionStatus: {"next": "position", "settled": "acked", "owner": "reader"},
    Replay: {"id": "replay_id", "wanted": "filter"},
    WorkerStatus: {"name": "worker"},
}
"""Fields whose name in JSON says more than their name in a struct."""

IDS = ("seq", "replay_id", "dead_letter_id", "first_dead_letter_id", "last_dead_letter_id")
"""Fields with ids of 64 bits."""


def print_json(value: Any) -> None:
    """Print a value as JSON, one line per element of a list."""
    for element in value if isinstance(value, list) else [value]:
        click.echo(msgspec.json.encode(document(element), enc_hook=str).decode())


def document(value: Any) -> Any:
    """A value as JSON: structs become objects."""
    if isinstance(value, MessageDetail):
        return _message(value)
    if isinstance(value, Status):
        return _status(value)
    if isinstance(value, Replay):
        return _replay(value)
    if isinstance(value, DeadLetter):
        return _dead_letter(value)
    if isinstance(value, msgspec.Struct):
        return fields(value)
    if isinstance(value, datetime):
        return value.astimezone(UTC)
    if isinstance(value, Mapping):
        return {name: document(element) for name, element in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [document(element) for element in value]
    return value


def fields(struct: msgspec.Struct) -> Document:
    """The fields of a struct, with their names in JSON."""
    names = NAMES.get(type(struct), {})
    found = {names.get(n, n): document(getattr(struct, n)) for n in struct.__struct_fields__}
    for name in IDS:
        if name in found:
            found[name] = id_text(found[name])
    return found


def id_text(id: int | None) -> str | None:
    """An id as text. A message that belongs to no replay has the replay 0, here null."""
    return str(id) if id else None


def payload_fields(payload: bytes | None) -> Document:
    """A payload as text if it is UTF-8, else in base64."""
    try:
        return {"payload": None if payload is None else payload.decode()}
    except UnicodeDecodeError:
        return {"payload_base64": payload}


def _message(detail: MessageDetail) -> Document:
    """A message in one object: its summary, its content and its history."""
    headers = None if detail.headers is None else msgspec.json.decode(detail.headers)
    return {
        **fields(detail.message),
        **payload_fields(detail.payload),
        "headers": headers,
        "source": detail.source,
        "coordinates": detail.coordinates,
        "occurred_at": document(detail.occurred_at),
        "waits": detail.waits,
        "dead_letter_id": id_text(detail.letter),
        "attempt_history": document(detail.attempts),
        "actions": document(detail.actions),
    }


def _dead_letter(letter: DeadLetter) -> Document:
    found = fields(letter)
    del found["payload"]
    content_hash = letter.content_hash.hex() if letter.content_hash else None
    return {**found, **payload_fields(letter.payload), "content_hash": content_hash}


def _status(status: Status) -> Document:
    """The status, with the sums of its parts."""
    return {
        **fields(status),
        "pending": status.pending,
        "dead_letters": sum(group.count for group in status.dead),
    }


def _replay(replay: Replay) -> Document:
    return {
        **fields(replay),
        "filter": msgspec.json.decode(replay.wanted),
        "state": replay.progress,
        "done": replay.done,
    }
