"""Past: which messages of the past are meant, by a replay or by somebody who erases."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, TypedDict

from oncebox.errors import ConfigurationError
from oncebox.store.records import Past

STATES = ("done", "discarded")
"""What may be replayed: what is unfinished will run anyway."""


class Which(TypedDict, total=False):
    """Which messages are meant: those that match everything that is given."""

    ids: Iterable[str] | None
    origin: str | None
    type: str | None
    key: str | None
    since: datetime | None
    until: datetime | None
    state: str


def checked_past(which: Which) -> Past:
    """Which messages are meant. Raises ConfigurationError."""
    unknown = sorted(set(which) - set(Which.__annotations__))
    if unknown:
        known = ", ".join(Which.__annotations__)
        raise ConfigurationError(f"unknown filter {unknown[0]!r}; the filters are {known}")
    values: dict[str, Any] = dict(which)
    ids = values.get("ids")
    if ids is not None:
        values["ids"] = _checked_ids(ids)
    for name in ("since", "until"):
        values[name] = checked_time(name, values.get(name))
    if values.setdefault("state", "done") not in STATES:
        raise ConfigurationError(
            f"only messages that are {' or '.join(STATES)} can be replayed, not "
            f"{values['state']!r} ones: they will run, or are put back by retry()"
        )
    return Past(**values)


def _checked_ids(ids: Any) -> list[str]:
    unique = set() if isinstance(ids, str) else set(ids)
    if isinstance(ids, str) or not all(isinstance(id, str) for id in unique):
        raise ConfigurationError("ids is a list of message ids")
    return sorted(unique)


def checked_time(name: str, value: Any) -> datetime | None:
    """A time with a zone, in UTC. Raises ConfigurationError."""
    if value is not None and not isinstance(value, datetime):
        raise ConfigurationError(f"{name} is a datetime, not {value!r}")
    if value is not None and value.tzinfo is None:
        raise ConfigurationError(f"{name} needs a time zone: datetime(..., tzinfo=UTC)")
    return None if value is None else value.astimezone(UTC)
