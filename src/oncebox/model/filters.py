"""Filters that select messages or dead letters for an operation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypedDict

from oncebox.errors import ConfigurationError
from oncebox.model.outcome import Reason
from oncebox.model.suggestions import suggestion

STATES = ("pending", "awaiting_sequence", "done", "dead", "quarantined", "discarded")
"""States of messages."""

DEAD_STATES = ("dead", "quarantined")
"""States of dead letters."""

REASONS = tuple(reason.value for reason in Reason)
"""Why messages are dead or quarantined."""

REPLAYABLE = ("done", "discarded")
"""States of messages that can be replayed. Messages in other states still have to run."""


class MessageFilter(TypedDict, total=False):
    """Selects messages, for replay and erase: everything that is given must match."""

    ids: Iterable[str] | None
    origin: str | None
    type: str | None
    key: str | None
    since: datetime | None
    """Received at this time or later."""
    until: datetime | None
    """Received before this time."""
    state: str | None


class MessageSearch(TypedDict, total=False):
    """Selects messages in any state, to find them: everything that is given must match."""

    ids: Iterable[str] | None
    origin: str | None
    type: str | None
    key: str | None
    since: datetime | None
    """Received at this time or later."""
    until: datetime | None
    """Received before this time."""
    state: str | Iterable[str] | None
    reason: str | None
    """Why it is dead or quarantined."""
    fingerprint: str | None
    """The fingerprint of its error, or its first characters if no other fingerprint has them."""


class DeadLetterFilter(TypedDict, total=False):
    """Selects the dead letters that match everything that is given."""

    state: str | None
    """dead or quarantined"""
    reason: str | None
    type: str | None
    key: str | None
    origin: str | None
    message_id: str | Iterable[str] | None
    """The id of the message, or several ids."""
    fingerprint: str | None
    """The fingerprint of its error, or its first characters if no other fingerprint has them."""
    since: datetime | None
    """Received at this time or later."""
    until: datetime | None
    """Received before this time."""


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
    """Validate a filter: times in UTC. Raises ConfigurationError."""
    _check_names(filter, DeadLetterFilter)
    _check_value("state", filter.get("state"), DEAD_STATES)
    _check_value("reason", filter.get("reason"), REASONS)
    checked = DeadLetterFilter(**filter)
    if (ids := filter.get("message_id")) is not None:
        checked["message_id"] = as_list(ids)
    for name in ("since", "until"):
        if filter.get(name) is not None:
            checked[name] = checked_time(name, filter.get(name))
    return checked


def checked_message_search(filter: MessageSearch) -> MessageSearch:
    """Validate a filter: times in UTC. Raises ConfigurationError."""
    _check_names(filter, MessageSearch)
    checked = MessageSearch(**filter)
    if (states := filter.get("state")) is not None:
        checked["state"] = given = as_list(states)
        for state in given:
            _check_value("state", state, STATES)
    _check_value("reason", filter.get("reason"), REASONS)
    if (ids := filter.get("ids")) is not None:
        checked["ids"] = _checked_ids(ids)
    checked["since"] = checked_time("since", filter.get("since"))
    checked["until"] = checked_time("until", filter.get("until"))
    return checked


def as_list(values: str | Iterable[str]) -> list[str]:
    """One value as a list, or several values."""
    return [values] if isinstance(values, str) else list(values)


def _check_value(name: str, value: str | None, known: Sequence[str]) -> None:
    if value is not None and value not in known:
        raise ConfigurationError(f"unknown {name} {value!r}, {suggestion(value, known)}")


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
