"""Audit entries: which operator did what to which messages, and why."""

from __future__ import annotations

import getpass

from oncebox.errors import ConfigurationError
from oncebox.storage.records import AuditEntry


def audit_entry(action: str, by: str | None, why: str) -> AuditEntry:
    """The audit entry of an operator's action. Raises ConfigurationError if `why` is missing."""
    if not isinstance(why, str) or not why.strip():
        raise ConfigurationError('why="..." is missing: the audit log records the reason')
    return AuditEntry(action, by or _user(), why)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # in a container, the user may have no name
        return "unknown"
