"""Savepoints in a psycopg transaction, without composing their SQL each time."""

from __future__ import annotations

from typing import Self

import psycopg


class _PlainCommands:
    """Replaces the commands of a psycopg transaction block that is a savepoint.

    psycopg quotes the name for each command, which costs more than all the rest of a savepoint. Our
    names need no quotes. If another version of psycopg does not call these methods, it only takes
    longer.
    """

    _savepoint_name: str

    def _get_enter_commands(self) -> tuple[bytes, ...]:
        return (b"SAVEPOINT " + self._savepoint_name.encode(),)

    def _get_commit_commands(self) -> tuple[bytes, ...]:
        return (b"RELEASE " + self._savepoint_name.encode(),)

    def _get_rollback_commands(self) -> tuple[bytes, ...]:
        name = self._savepoint_name.encode()
        return (b"ROLLBACK TO " + name, b"RELEASE " + name)


class Savepoint(_PlainCommands, psycopg.Transaction):  # type: ignore[misc]
    """A savepoint on a sync connection."""

    def adopt(self) -> Self:
        """Represent a savepoint that exists on the server and that psycopg believes released."""
        self.status = self.Status.ACTIVE
        self._push_savepoint()
        return self


class AsyncSavepoint(_PlainCommands, psycopg.AsyncTransaction):  # type: ignore[misc]
    """A savepoint on an async connection."""

    def adopt(self) -> Self:
        """As Savepoint.adopt()."""
        self.status = self.Status.ACTIVE
        self._push_savepoint()
        return self
