"""SharedSession: one SQLAlchemy session for all handlers of a batch."""

from __future__ import annotations

from sqlalchemy.orm import Session

from oncebox.errors import SwallowedError


class SharedSession(Session):
    """A session whose changes are written once per batch: nobody may throw them away."""

    ours = False

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
                "what other messages changed"
            )
