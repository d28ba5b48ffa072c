"""Purge: how much slower messages are processed while very many old ones are forgotten."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Protocol

import msgspec
import psycopg

from bench.drain import load as loads
from bench.drain import oncebox
from bench.drain.contest import line
from bench.drain.crew import Crew, Run
from bench.drain.load import Load
from bench.house import inline, keeper, old
from bench.house.options import Options
from bench.house.purger import Purge, Purger
from bench.place import Place

GOAL = 0.7
"""How much of the throughput should be left."""
BRIEF = 100
"""Milliseconds that a step should not take longer than."""
WARM_UP = 3000
SETTLE = 3
"""Rounds before those that count: the server settles its plans and its caches."""

ERRORS = """
SELECT coalesce(sum(failed + parked + dead + quarantined), 0)
       + (SELECT count(*) FROM oncebox_dead)
       + (SELECT deadlocks FROM pg_stat_database WHERE datname = current_database())
FROM oncebox_minute"""


class Work(Protocol):
    """What is disturbed: processes on a database."""

    label: str
    url: str

    def crew(self, options: Options) -> Crew: ...

    def fill(self, messages: int) -> None:
        """Called before so many messages are processed."""
        ...

    def check(self) -> None:
        """Raise where anything was lost or done twice."""
        ...


class Inline:
    """As many processes as there are cores, a handler per message."""

    label = "inline"

    def __init__(self, place: Place, rows: int) -> None:
        self.url = place.postgres()
        inline.create(self.url)
        old.fill(self.url, rows)

    def crew(self, options: Options) -> Crew:
        return Crew(inline.open, self.url, batch=options.batch, workers=os.cpu_count() or 1)

    def fill(self, messages: int) -> None:
        """Payments are made as they are processed."""

    def check(self) -> None:
        inline.check(self.url)


class Drained:
    """What was stored is drained, a handler per batch."""

    label = "drain"

    def __init__(self, place: Place, rows: int) -> None:
        self.url = place.database()
        oncebox.create(self.url)
        old.fill(self.url, rows, stored=True)
        self._filled = 0

    def crew(self, options: Options) -> Crew:
        return Crew(oncebox.open_batch, self.url, batch=options.batch, workers=options.workers)

    def fill(self, messages: int) -> None:
        load = Load(messages, first=self._filled + 1)
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(oncebox.FILL, loads.parameters(load))
            connection.execute("VACUUM ANALYZE oncebox_pending")
        self._filled += messages

    def check(self) -> None:
        left, load = oncebox.left(self.url), Load(self._filled)
        loads.check(self.url, self.label, load, done=self._filled - left, left=left)


class Rounds(msgspec.Struct):
    """Rounds with nobody else, rounds beside the purge, and what was forgotten in these."""

    alone: list[Run] = msgspec.field(default_factory=list)
    beside: list[Run] = msgspec.field(default_factory=list)
    forgotten: list[int] = msgspec.field(default_factory=list)


def purge(place: Place, options: Options) -> Iterator[str]:
    """Rounds with and without the purge take turns until nothing old is left."""
    yield (
        f"purge of {options.rows:,} old messages by another process while messages are processed, "
        f"{options.messages:,} a round; in every other round the purge rests"
    )
    for kind in (Inline, Drained):
        work: Work = kind(place, options.rows)
        options.progress(f"purge, {work.label}: {options.rows:,} old messages are there")
        with work.crew(options) as crew, Purger(work.url) as purger:
            rounds = _disturb(work, crew, purger, options)
            purged = purger.result()
        work.check()
        _check(work, purged, options.rows)
        yield from _told(work, rounds, purged)
    yield from _keep(Drained(place, options.rows), options)


def _disturb(work: Work, crew: Crew, purger: Purger, options: Options) -> Rounds:
    rounds = Rounds()
    for _ in range(SETTLE):
        _play(work, crew, WARM_UP)
    while not purger.is_over:
        alone = _play(work, crew, options.messages)
        before = purger.forgotten
        purger.go_on()
        beside = _play(work, crew, options.messages)
        purger.rest()
        # The last round, in which the purge comes to its end, counts only if it is all there is.
        if purger.is_over and rounds.alone:
            break
        rounds.alone.append(alone)
        rounds.beside.append(beside)
        rounds.forgotten.append(purger.forgotten - before)
        options.progress(
            f"purge, {work.label}: {alone.rate:,.0f}/s alone, {beside.rate:,.0f}/s beside the "
            f"purge, {purger.forgotten:,} forgotten"
        )
    return rounds


def _play(work: Work, crew: Crew, messages: int) -> Run:
    work.fill(messages)
    return crew.drain(messages)


def _keep(work: Drained, options: Options) -> Iterator[str]:
    """One process that drains, and keeps house between two batches in every other round."""
    rounds = Rounds()
    batch, url = options.batch, work.url
    with (
        Crew(oncebox.open_batch, url, batch=batch, workers=1) as plain,
        Crew(keeper.open, url, batch=batch, workers=1) as keeping,
    ):
        _play(work, plain, WARM_UP)
        while len(rounds.alone) < options.rounds and (before := old.left(url)):
            rounds.alone.append(_play(work, plain, options.messages))
            rounds.beside.append(_play(work, keeping, options.messages))
            rounds.forgotten.append(before - old.left(url))
            options.progress(
                f"purge, a drain: {rounds.alone[-1].rate:,.0f}/s, {rounds.beside[-1].rate:,.0f}/s "
                f"when it keeps house, {rounds.forgotten[-1]:,} forgotten"
            )
    work.check()
    rates = [run.rate for run in rounds.alone]
    kept = [run.rate for run in rounds.beside]
    yield line("drain, one process", rates)
    yield line("the same, keeping house", kept, rates, GOAL)
    seconds = sum(run.seconds for run in rounds.beside)
    yield (
        f"    {sum(rounds.forgotten) / seconds:,.0f} forgotten per second; from one commit to the "
        f"next at most {_gap(rounds.alone)} alone, {_gap(rounds.beside)} with the house to keep"
    )


class Left(Exception):
    """A purge left something old, or forgot something else."""


def _check(work: Work, purged: Purge, rows: int) -> None:
    left = old.left(work.url)
    if purged.forgotten != rows or left:
        raise Left(f"{purged.forgotten} of {rows} were forgotten, {left} are left")


def _told(work: Work, rounds: Rounds, purged: Purge) -> Iterator[str]:
    rates = [run.rate for run in rounds.alone]
    yield line(f"{work.label}, alone", rates)
    yield line(f"{work.label}, beside the purge", [run.rate for run in rounds.beside], rates, GOAL)
    errors = _errors(work.url)
    yield (
        f"    {errors} errors: {'ok' if not errors else 'MISSED'}; from one commit of a process to "
        f"its next at most {_gap(rounds.alone)} alone, {_gap(rounds.beside)} beside the purge"
    )
    seconds = sum(run.seconds for run in rounds.beside)
    steps = [step * 1000 for step in purged.steps]
    yield (
        f"    {sum(rounds.forgotten) / seconds:,.0f} forgotten per second; the first step, which "
        f"looks for them, {purged.first * 1000:,.0f} ms; {len(steps):,} more, each with the rest "
        f"before it, median {median(steps):,.0f} ms, longest {max(steps):,.0f} ms, "
        f"{sum(ms > BRIEF for ms in steps)} above {BRIEF} ms"
    )


def _gap(runs: Sequence[Run]) -> str:
    return f"{max(run.gap for run in runs) * 1000:,.0f} ms"


def _errors(url: str) -> int:
    """Failures, dead letters and deadlocks of the processing, as the database has counted them."""
    with psycopg.connect(url) as connection:
        return int(connection.execute(ERRORS).fetchall()[0][0])
