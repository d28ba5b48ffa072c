"""Replay: finished messages that run again."""

from __future__ import annotations

from datetime import datetime

import msgspec


class Replay(msgspec.Struct, frozen=True):
    """A replay of finished messages, and its progress."""

    id: int
    name: str
    state: str
    by: str
    why: str
    wanted: str
    """The filter of the messages, as JSON."""
    pace: float | None
    """The most messages per second; None for no limit."""
    total: int
    stored: int
    """The number of messages that were stored to run again."""
    skipped: int
    """The number of messages that were unfinished or had no payload when they were due."""
    cancelled: int
    """The number of messages that were cancelled before they ran."""
    waiting: int
    """The number of messages that are pending."""
    dead: int
    discarded: int
    began_at: datetime
    ended_at: datetime | None

    @property
    def done(self) -> int:
        """The number of messages that have run."""
        return self.stored - self.waiting - self.dead - self.discarded - self.cancelled

    @property
    def progress(self) -> str:
        """The state for people: running, done, cancelling or cancelled."""
        if self.state == "stored":
            return "done" if self.is_over else "running"
        return self.state

    @property
    def is_over(self) -> bool:
        """True if none of its messages will run any more, unless a dead letter is retried."""
        return self.state == "cancelled" or (self.state == "stored" and not self.waiting)
