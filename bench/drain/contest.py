"""Contests: four workers on the same messages, contender by contender, round by round."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from statistics import median

import msgspec

from bench.drain import load as loads
from bench.drain import oncebox, one_table
from bench.drain.crew import Crew, Open, Refill, Run
from bench.drain.load import Load
from bench.drain.options import Options
from bench.place import Place

WARM_UP = 3000


class Contender(msgspec.Struct, frozen=True):
    """A way to drain: its tables, what fills them, and what opens a worker's drain."""

    label: str
    create: Callable[[str], None]
    fill: Callable[[str, Load], None]
    left: Callable[[str], int]
    open: Open
    ordered: bool = True
    """Whether it keeps the order of keys."""


BY_HAND = Contender("one table", one_table.create, one_table.fill, one_table.left, one_table.open)
BATCH = Contender("oncebox, batch", oncebox.create, oncebox.fill, oncebox.left, oncebox.open_batch)
SINGLE = Contender(
    "oncebox, per message", oncebox.create, oncebox.fill, oncebox.left, oncebox.open_single
)


class Entrant(msgspec.Struct, frozen=True):
    """A contender with a database and a crew, and its rates so far."""

    contender: Contender
    url: str
    crew: Crew
    rates: list[float]

    def play(self, load: Load, limit: float) -> Run:
        """One round, checked: nothing lost, nothing twice, in the order of keys."""
        contender, url = self.contender, self.url
        contender.fill(url, load)
        run = self.crew.drain(load.messages, limit=limit)
        loads.check(
            url,
            contender.label,
            load,
            done=run.done,
            left=contender.left(url),
            ordered=contender.ordered,
        )
        return run

    @property
    def rate(self) -> float:
        return median(self.rates)


def enter(
    stack: ExitStack,
    place: Place,
    options: Options,
    contenders: Sequence[Contender],
    refill: Refill | None = None,
) -> list[Entrant]:
    """Databases and crews for all."""
    entrants = []
    for contender in contenders:
        url = place.database()
        contender.create(url)
        size = {"batch": options.batch, "workers": options.workers}
        crew = Crew(contender.open, url, **size, refill=refill)
        entrants.append(Entrant(contender, url, stack.enter_context(crew), []))
    return entrants


def warm_up(entrants: Sequence[Entrant]) -> None:
    """A round that does not count."""
    for entrant in entrants:
        entrant.play(Load(WARM_UP), limit=60)


def uniform(place: Place, options: Options) -> Iterator[str]:
    """Many keys, all alike."""
    load = Load(options.messages)
    yield from _contest(place, options, "uniform keys", load, goal=1.0)


def hot(place: Place, options: Options) -> Iterator[str]:
    """All messages have the same key."""
    load = Load(options.messages, keys="hot")
    yield from _contest(place, options, "one hot key", load, goal=10.0)


def wall(place: Place, options: Options) -> Iterator[str]:
    """Many keys, behind very many messages of one that fails."""
    load = Load(options.messages, wall=options.wall)
    yield from _contest(place, options, f"behind {options.wall:,} parked", load, goal=10.0)


def _contest(
    place: Place, options: Options, name: str, load: Load, *, goal: float
) -> Iterator[str]:
    with ExitStack() as stack:
        entrants = enter(stack, place, options, [BY_HAND, BATCH, SINGLE])
        warm_up(entrants)
        for number in range(1, options.rounds + 1):
            for entrant in entrants:
                entrant.rates.append(entrant.play(load, options.limit).rate)
            rates = ", ".join(f"{entrant.rates[-1]:,.0f}/s" for entrant in entrants)
            options.progress(f"{name}: round {number} of {options.rounds}: {rates}")
    yield f"{name}, {load.messages:,} messages"
    by_hand, batch, single = entrants
    yield line(by_hand.contender.label, by_hand.rates)
    yield line(batch.contender.label, batch.rates, by_hand.rates, goal)
    yield line(single.contender.label, single.rates, by_hand.rates)


def line(
    label: str, rates: Sequence[float], baseline: Sequence[float] = (), goal: float | None = None
) -> str:
    """The median and the spread of rates; and how many times as fast as the baseline that is."""
    text = f"  {label:<28}{median(rates):>10,.0f}/s  {min(rates):>9,.0f}-{max(rates):<9,.0f}"
    if baseline:
        ratios = [ours / max(theirs, 0.01) for ours, theirs in zip(rates, baseline, strict=True)]
        ratio = median(ratios)
        text += f" ratio {ratio:>7,.2f}  ({min(ratios):,.2f}-{max(ratios):,.2f})"
        if goal is not None:
            text += f"  goal {goal:g}: {'ok' if ratio >= goal else 'MISSED'}"
    return text.rstrip()
