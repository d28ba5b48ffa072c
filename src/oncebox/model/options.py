"""Checks of the options of an inbox that no other module defines."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from oncebox.errors import ConfigurationError

_SECOND = timedelta(seconds=1)


def checked_name(name: Any) -> str:
    """Return the name of an inbox. Raises ConfigurationError unless it has 1 to 255 bytes."""
    if not isinstance(name, str) or not 1 <= len(name.encode()) <= 255 or "\0" in name:
        raise ConfigurationError(
            f"the name of an inbox must be a str of 1 to 255 bytes without NUL, got {name!r}"
        )
    return name


def checked_timeout(timeout: Any) -> timedelta:
    """Return the time limit of a transaction. Raises ConfigurationError below one second."""
    if not isinstance(timeout, timedelta) or timeout < _SECOND:
        raise ConfigurationError(
            f"transaction_timeout must be a timedelta of at least one second, got {timeout!r}"
        )
    return timeout


def checked_payload_limit(limit: Any) -> int:
    """Return the most bytes of a payload. Raises ConfigurationError unless it is at least 1."""
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
        raise ConfigurationError(
            f"payload_limit must be a number of bytes, at least 1, got {limit!r}"
        )
    return limit


def ignores_unknown_types(unknown_type: Any) -> bool:
    """Whether unknown_type is "ignore". Raises ConfigurationError unless it is that or "dead"."""
    if unknown_type not in ("dead", "ignore"):
        raise ConfigurationError(f"unknown_type must be 'dead' or 'ignore', got {unknown_type!r}")
    return bool(unknown_type == "ignore")
