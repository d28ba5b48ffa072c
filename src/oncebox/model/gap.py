"""Gap: sequence numbers of a key that have not arrived."""

from __future__ import annotations

from datetime import datetime

import msgspec


class Gap(msgspec.Struct, frozen=True):
    """A missing sequence number, and the messages that wait for it."""

    key: str
    epoch: str
    next: int | None
    """The missing number; None if the first number of the key is unknown."""
    lowest: int
    """The lowest number that waits."""
    waiting: int
    """The number of messages that wait."""
    waiting_since: datetime
