"""The state of the demo, which the live view and the verdict are made of."""

from __future__ import annotations

import msgspec

from oncebox.cli.demo.books import Balance
from oncebox.cli.demo.stream import Expected


class Side(msgspec.Struct):
    """One side: oncebox or the naive consumer."""

    kills: int = 0
    """How many of its processes got kill -9."""
    balance: Balance = Balance()
    is_finished: bool = False
    """True if it has processed every message of the stream."""


class State(msgspec.Struct):
    """The state of the demo at a moment."""

    expected: Expected = msgspec.field(default_factory=Expected)
    naive: Side = msgspec.field(default_factory=Side)
    oncebox: Side = msgspec.field(default_factory=Side)
    length: float = 30
    """How many seconds the demo sends payments and kills processes."""
    seconds: float = 0
    phase: str = "starting"
    is_over: bool = False
    """True if all processes have ended, and the table `sent` is complete."""
    is_interrupted: bool = False
    """True if Ctrl-C or a signal stopped the demo."""
    absorbed: int = 0
    """Duplicates that oncebox recognised."""
    dead: int = 0
    """Dead letters of oncebox that wait for a retry."""
    retried: int = 0
    """Dead letters that were retried."""
    events: list[str] = []
    """What happened, such as a kill; oldest first."""

    def note(self, event: str) -> None:
        """Add an event at the current time."""
        self.events.append(f"{self.seconds:5.1f} s  {event}")

    @property
    def is_balanced(self) -> bool:
        """True if oncebox processed everything, and booked each payment exactly once."""
        return self.oncebox.is_finished and self.oncebox.balance.is_right
