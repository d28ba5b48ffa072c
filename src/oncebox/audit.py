"""Audit: who did what, and why."""

from __future__ import annotations

import getpass

from oncebox.errors import ConfigurationError
from oncebox.store.records import Deed


def checked_deed(act: str, by: str | None, why: str) -> Deed:
    """What is written down of an operator's act. Raises ConfigurationError without a reason."""
    if not isinstance(why, str) or not why.strip():
        raise ConfigurationError(f"{act}() is written down: say why")
    return Deed(act, by or _user(), why)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container without a name for its user
        return "unknown"
