"""Sequencing: which messages may run if producers number the messages of a key.

A message that arrives before its predecessors waits until they arrive or are skipped. From then on
it is processed like any other message, and its number does not matter.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import timedelta
from typing import Any, Literal

import msgspec

from oncebox.errors import ConfigurationError

_SOONEST = timedelta(milliseconds=100)
_LATEST = timedelta(days=36_500)
"""The longest limit: databases cannot subtract more than some millennia from a date."""
_LARGEST = 2**63 - 1


class Gaps(msgspec.Struct, frozen=True):
    """What happens if a sequence number does not arrive.

    While a source lags, nothing is skipped: the missing number may still come.
    """

    limit: timedelta = timedelta(minutes=1)
    """How long later messages of the key wait for the missing number."""
    then: Literal["skip", "hold"] = "skip"
    """skip: run without the missing number, and record the gap. hold: wait until it arrives, or
    until an operator skips it."""
    first: int | None = 1
    """The first number of every key; None if keys may begin with any number."""
    longest: int = 1_000
    """The most missing numbers that are skipped at once. A larger gap waits for an operator: a
    wrong sequence number is more likely than that many lost messages."""

    def __post_init__(self) -> None:
        if not isinstance(self.limit, timedelta) or not _SOONEST <= self.limit < _LATEST:
            raise ConfigurationError(
                f"limit must be a timedelta from 0.1 seconds to 100 years, got {self.limit!r}"
            )
        if self.then not in ("skip", "hold"):
            raise ConfigurationError(f"then must be 'skip' or 'hold', got {self.then!r}")
        for name in ("first", "longest"):
            value = getattr(self, name)
            if name == "first" and value is None:
                continue
            number = isinstance(value, int) and not isinstance(value, bool)
            if not number or not 0 <= value < _LARGEST:
                raise ConfigurationError(f"{name} must be an integer of at least 0, got {value!r}")


A_MINUTE = Gaps()


def checked_gaps(gaps: Any) -> Gaps:
    """The gap policy of an inbox. Raises ConfigurationError."""
    if not isinstance(gaps, Gaps):
        raise ConfigurationError(f"gaps must be Gaps(limit=...), got {gaps!r}")
    return gaps


class SequenceState(msgspec.Struct, frozen=True):
    """The state of the sequence numbers of a key, within an epoch."""

    next: int | None
    """The next number to admit; None if none was admitted and the first is unknown."""
    early: Sequence[int] = ()
    """The lowest numbers that wait."""
    is_cut: bool = False
    """True if more numbers wait than are listed."""


class Admission(msgspec.Struct, frozen=True):
    """The decision on messages of one key that arrived together. A place is an index among them."""

    next: int | None
    late: Collection[int]
    """Places of messages whose numbers were admitted or skipped before."""
    taken: Collection[int]
    """Places of messages whose number another waiting message has."""
    early: Collection[int]
    """Places of messages that have to wait."""
    admitted: Sequence[int]
    """The numbers that may run now, in order. Their messages have just arrived or were waiting."""
    in_order: bool
    """True if all messages that may run have just arrived, in this order."""
    has_early: bool
    """True if messages of the key wait from now on."""


def admit(known: SequenceState, arrived: Sequence[tuple[int, int]]) -> Admission:
    """Decide on arrived messages, given as (place, number) in the order of arrival."""
    late, taken = set(), set()
    places: dict[int, int | None] = dict.fromkeys(known.early)
    for place, number in arrived:
        if known.next is not None and number < known.next:
            late.add(place)
        elif number in places:
            taken.add(place)
        else:
            places[number] = place
    upcoming = known.next
    admitted = []
    while upcoming is not None and upcoming in places:
        admitted.append(upcoming)
        upcoming += 1
    found = [places.pop(number) for number in admitted]
    came = [place for place in found if place is not None]
    return Admission(
        next=upcoming,
        late=late,
        taken=taken,
        early={place for place in places.values() if place is not None},
        admitted=admitted,
        in_order=len(came) == len(found) and came == sorted(came),
        has_early=bool(places) or known.is_cut,
    )
