"""SQLAlchemy sessions that join the transaction of the claim."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import Session

from oncebox.errors import SwallowedError


def open_session(connection: Any, *, flush_once: bool, options: Mapping[str, Any]) -> Any:
    """A Session or AsyncSession on a connection whose transaction it does not end."""
    kind = SharedSession if flush_once else Session
    # rollback_only: a handler's commit() only flushes, and its rollback() can be detected.
    joined = {"join_transaction_mode": "rollback_only", "autoflush": not flush_once, **options}
    if isinstance(connection, AsyncConnection):
        return AsyncSession(connection, sync_session_class=kind, **joined)
    return kind(connection, **joined)


class SharedSession(Session):
    """One session for all handlers of a batch; no handler may discard its changes."""

    ours = False
    """True while oncebox uses the session, and not a handler."""

    def rollback(self) -> None:
        self._refuse("rollback")
        super().rollback()

    def close(self) -> None:
        self._refuse("close")
        super().close()

    def expunge_all(self) -> None:
        self._refuse("expunge_all")
        super().expunge_all()

    def _refuse(self, verb: str) -> None:
        if not self.ours:
            raise SwallowedError(
                f"with flush_once a handler must not call session.{verb}(): the session also holds "
                "the changes of other messages"
            )
