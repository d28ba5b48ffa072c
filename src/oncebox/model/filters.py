"""Filters that select messages or dead letters for an operation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, TypedDict

from oncebox.errors import ConfigurationError
from oncebox.model.suggestions import suggestion

REPLAYABLE = ("done", "discarded")
"""States of messages that can be replayed. Messages in other states still have to run."""


class MessageFilter(TypedDict, total=False):
    """Selects the messages that match everything that is given."""

    ids: Iterable[str] | None
    origin: str | None
    type: str | None
    key: str | None
    since: datetime | None
    """Received at this time or later."""
    until: datetime | None
    """Received before this time."""
    state: str


class DeadLetterFilter(TypedDict, total=False):
    """Selects the dead letters that match everything that is given."""

    state: str | None
    """dead or quarantined"""
    reason: str | None
    type: str | None
    key: str | None
    origin: str | None
    message_id: str | None
    fingerprint: str | None


def checked_message_filter(filter: MessageFilter) -> MessageFilter:
    """Validate a filter: ids sorted, times in UTC. Raises ConfigurationError."""
    _check_names(filter, MessageFilter)
    checked = MessageFilter(**filter)
    if (ids := filter.get("ids")) is not None:
        checked["ids"] = _checked_ids(ids)
    checked["since"] = checked_time("since", filter.get("since"))
    checked["until"] = checked_time("until", filter.get("until"))
    if checked.setdefault("state", "done") not in REPLAYABLE:
        raise ConfigurationError(
            f"state must be {' or '.join(REPLAYABLE)}, got {checked['state']!r}: other messages "
            "still run by themselves, or are retried with retry()"
        )
    return checked


def checked_dead_letter_filter(filter: DeadLetterFilter) -> DeadLetterFilter:
    """Validate a filter. Raises ConfigurationError."""
    _check_names(filter, DeadLetterFilter)
    return filter


def selects_everything(filter: Mapping[str, Any]) -> bool:
    """True if a filter selects all messages that are done."""
    return all(
        value is None or (name, value) == ("state", "done") for name, value in filter.items()
    )


def _check_names(filter: Mapping[str, Any], kind: type[Any]) -> None:
    if unknown := sorted(set(filter) - set(kind.__annotations__)):
        hint = suggestion(unknown[0], kind.__annotations__)
        raise ConfigurationError(f"unknown filter {unknown[0]!r}, {hint}")


def _checked_ids(ids: Any) -> list[str]:
    unique = set() if isinstance(ids, str) else set(ids)
    if isinstance(ids, str) or not all(isinstance(id, str) for id in unique):
        raise ConfigurationError(f"ids must be a list of message ids, got {ids!r}")
    return sorted(unique)


def checked_time(name: str, value: Any) -> datetime | None:
    """A time with a zone, in UTC. Raises ConfigurationError."""
    if value is not None and not isinstance(value, datetime):
        raise ConfigurationError(f"{name} must be a datetime, got {value!r}")
    if value is not None and value.tzinfo is None:
        raise ConfigurationError(f"{name} needs a time zone: datetime(..., tzinfo=UTC)")
    return None if value is None else value.astimezone(UTC)
