"""What a source is: where deliveries come from, in batches, to be settled after the commit."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Protocol

import msgspec

from oncebox.message import Delivery
from oncebox.outcome import Outcome
from oncebox.store.records import Gauge, Position


class Features(msgspec.Struct, frozen=True):
    """What a source promises."""

    ordered: bool = False
    """A part hands over its messages in order."""
    durable: bool = False
    """What was not settled comes again."""
    positions: bool = False
    """Its parts are read from a position on, which is kept in the inbox's database."""
    assigns: bool = False
    """It says itself who reads which part; otherwise readers agree in the database."""
    redeliveries: bool = False
    """It says of a delivery whether somebody had it before."""
    ends: bool = False
    """It comes to an end."""
    single: bool = False
    """Only one worker can read it."""


class Batch(msgspec.Struct, frozen=True):
    """Deliveries of one part, in order."""

    deliveries: Sequence[Delivery]
    part: str = ""
    old: int = 0
    """The part's position before them,"""
    new: int = 0
    """and after them."""
    mark: str | None = None


class Source(Protocol):
    """Where deliveries come from. One thread uses it at a time."""

    name: str
    features: Features

    def parts(self) -> Sequence[str]:
        """The parts that can be read at the moment; where it assigns them, those that are ours."""
        ...

    def is_reassigned(self) -> bool:
        """Whether parts came or went since parts() was asked; read() returns None meanwhile."""
        ...

    def beginning(self, part: str) -> Position | None:
        """Where a part is read from that was never read before; None if it cannot be read now."""
        ...

    def open(self, position: Position) -> None:
        """Read a part from a position on; everything before it was handled."""
        ...

    def read(self, limit: int, seconds: float) -> Batch | None:
        """The next deliveries of an open part; None if there are none within that time."""
        ...

    def settle(self, batch: Batch, outcomes: Sequence[Outcome]) -> None:
        """Everything about these is committed."""
        ...

    def gauge(self, part: str) -> Gauge:
        """How much of an open part is still to come."""
        ...

    def release(self, part: str) -> None:
        """Read a part no more; nothing of it is in our hands."""
        ...

    def is_finished(self, part: str, position: Position | None) -> bool:
        """Whether nothing will come from a part any more, if it was read up to this position."""
        ...

    def keeps(self) -> timedelta | None:
        """For how long it can deliver a message again; None where that cannot be told."""
        ...

    def close(self) -> None:
        """Give up everything."""
        ...
