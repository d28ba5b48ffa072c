"""Sequence: which messages may run where producers number the messages of a key. Pure.

Whoever comes early waits in a buffer until the numbers before it have come, or until nobody expects
them any more. What is admitted goes the usual way: from there on its number does not matter.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import timedelta
from typing import Any, Literal

import msgspec

from oncebox.errors import ConfigurationError

_SOONEST = timedelta(milliseconds=100)
_LATEST = timedelta(days=36_500)
"""No database can look back further than some millennia."""
_LARGEST = 2**63 - 1


class Gaps(msgspec.Struct, frozen=True):
    """What is done where a number does not come, as long as nothing lags behind."""

    limit: timedelta = timedelta(minutes=1)
    """How long it is waited for."""
    then: Literal["go on", "hold"] = "go on"
    """Go on without it and write that down; or hold the key until it comes or somebody skips it."""
    first: int | None = 1
    """The number that every key begins with; None where it may be any."""
    longest: int = 1_000
    """A gap of more numbers is never skipped: one of them is rather wrong."""

    def __post_init__(self) -> None:
        if not isinstance(self.limit, timedelta) or not _SOONEST <= self.limit < _LATEST:
            raise ConfigurationError(
                f"limit is a timedelta from 0.1 seconds to 100 years, not {self.limit!r}"
            )
        if self.then not in ("go on", "hold"):
            raise ConfigurationError(f"then is 'go on' or 'hold', not {self.then!r}")
        for name in ("first", "longest"):
            value = getattr(self, name)
            if name == "first" and value is None:
                continue
            number = isinstance(value, int) and not isinstance(value, bool)
            if not number or not 0 <= value < _LARGEST:
                raise ConfigurationError(f"{name} is a number from 0, not {value!r}")


A_MINUTE = Gaps()


def checked_gaps(gaps: Any) -> Gaps:
    """A policy, and not something else."""
    if not isinstance(gaps, Gaps):
        raise ConfigurationError(f"gaps is Gaps(limit=...), not {gaps!r}")
    return gaps


class Numbers(msgspec.Struct, frozen=True):
    """What is known of the numbers of a key, within an epoch."""

    next: int | None
    """The next to admit; None where nothing was admitted yet, and nobody knows the first."""
    early: Sequence[int] = ()
    """The lowest of those that wait."""
    is_cut: bool = False
    """Whether more wait than are told of."""


class Admission(msgspec.Struct, frozen=True):
    """What becomes of the messages of a key that have arrived together, by their places."""

    next: int | None
    late: Collection[int]
    """Their numbers were admitted, or given up, before."""
    taken: Collection[int]
    """Another message waits under the same number."""
    early: Collection[int]
    """They have to wait."""
    admitted: Sequence[int]
    """The numbers that may run now, in order: of messages that arrived, and of some that waited."""
    in_order: bool
    """Whether all that may run arrived just now, and in this order."""
    has_early: bool
    """Whether anybody waits from now on."""


def admit(known: Numbers, arrived: Sequence[tuple[int, int]]) -> Admission:
    """Decide on messages given by place and number, in the order of their arrival."""
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
