"""Purge: how much slower messages are processed while many old messages are purged."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Protocol

import msgspec
import psycopg

from bench.drain import load as loads
from bench.drain import oncebox
from bench.drain.comparison import line
from bench.drain.load import Load
from bench.drain.worker_pool import Run, WorkerPool
from bench.environment import Environment
from bench.retention import inline, maintenance, old_messages
from bench.retention.options import Options
from bench.retention.purger import Purge, Purger

GOAL = 0.7
"""How much of the throughput should be left."""
BRIEF = 100
"""Milliseconds that a step should not take longer than."""
WARM_UP = 3000
SETTLE = 3
"""Rounds before the measured ones, until plans and caches of the server are stable."""

ERRORS = """
SELECT coalesce(sum(failed + blocked + dead + quarantined), 0)
       + (SELECT count(*) FROM oncebox_dead_letter)
       + (SELECT deadlocks FROM pg_stat_database WHERE datname = current_database())
FROM oncebox_minute_counter"""


class Work(Protocol):
    """What is disturbed: processes on a database."""

    label: str
    url: str

    def pool(self, options: Options) -> WorkerPool: ...

    def fill(self, messages: int) -> None:
        """Called before this number of messages is processed."""
        ...

    def check(self) -> None:
        """Raise if a message was lost or done twice."""
        ...


class Inline:
    """As many processes as there are cores, a handler per message."""

    label = "inline"

    def __init__(self, environment: Environment, rows: int) -> None:
        self.url = environment.postgres()
        inline.create(self.url)
        old_messages.fill(self.url, rows)

    def pool(self, options: Options) -> WorkerPool:
        return WorkerPool(inline.open, self.url, batch=options.batch, workers=os.cpu_count() or 1)

    def fill(self, messages: int) -> None:
        """Payments are made as they are processed."""

    def check(self) -> None:
        inline.check(self.url)


class Drained:
    """What was stored is drained, a handler per batch."""

    label = "drain"

    def __init__(self, environment: Environment, rows: int) -> None:
        self.url = environment.database()
        oncebox.create(self.url)
        old_messages.fill(self.url, rows, stored=True)
        self._filled = 0

    def pool(self, options: Options) -> WorkerPool:
        return WorkerPool(
            oncebox.open_batch, self.url, batch=options.batch, workers=options.workers
        )

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
    """Rounds without the purge, rounds during the purge, and how many messages it removed."""

    without: list[Run] = msgspec.field(default_factory=list)
    during: list[Run] = msgspec.field(default_factory=list)
    purged: list[int] = msgspec.field(default_factory=list)


def purge(environment: Environment, options: Options) -> Iterator[str]:
    """Rounds with and without the purge take turns until nothing old is left."""
    yield (
        f"purge of {options.rows:,} old messages by another process while messages are processed, "
        f"{options.messages:,} a round; in every other round the purge pauses"
    )
    for kind in (Inline, Drained):
        work: Work = kind(environment, options.rows)
        options.progress(f"purge, {work.label}: {options.rows:,} old messages are in place")
        with work.pool(options) as pool, Purger(work.url) as purger:
            rounds = _disturb(work, pool, purger, options)
            purged = purger.result()
        work.check()
        _check(work, purged, options.rows)
        yield from _lines(work, rounds, purged)
    yield from _one_process(Drained(environment, options.rows), options)


def _disturb(work: Work, pool: WorkerPool, purger: Purger, options: Options) -> Rounds:
    rounds = Rounds()
    for _ in range(SETTLE):
        _play(work, pool, WARM_UP)
    while not purger.is_finished:
        without = _play(work, pool, options.messages)
        before = purger.purged
        purger.resume()
        during = _play(work, pool, options.messages)
        purger.pause()
        # The purge ends during the last round, so that round counts only if it is the only one.
        if purger.is_finished and rounds.without:
            break
        rounds.without.append(without)
        rounds.during.append(during)
        rounds.purged.append(purger.purged - before)
        options.progress(
            f"purge, {work.label}: {without.rate:,.0f}/s without, {during.rate:,.0f}/s during "
            f"the purge, {purger.purged:,} purged"
        )
    return rounds


def _play(work: Work, pool: WorkerPool, messages: int) -> Run:
    work.fill(messages)
    return pool.drain(messages)


def _one_process(work: Drained, options: Options) -> Iterator[str]:
    """One process that drains; in every other round it also purges between batches."""
    rounds = Rounds()
    batch, url = options.batch, work.url
    with (
        WorkerPool(oncebox.open_batch, url, batch=batch, workers=1) as plain,
        WorkerPool(maintenance.open, url, batch=batch, workers=1) as purging,
    ):
        _play(work, plain, WARM_UP)
        while len(rounds.without) < options.rounds and (before := old_messages.left(url)):
            rounds.without.append(_play(work, plain, options.messages))
            rounds.during.append(_play(work, purging, options.messages))
            rounds.purged.append(before - old_messages.left(url))
            options.progress(
                f"purge, a drain: {rounds.without[-1].rate:,.0f}/s, "
                f"{rounds.during[-1].rate:,.0f}/s "
                f"with the purge, {rounds.purged[-1]:,} purged"
            )
    work.check()
    rates = [run.rate for run in rounds.without]
    slowed = [run.rate for run in rounds.during]
    yield line("drain, one process", rates)
    yield line("the same, with the purge", slowed, rates, GOAL)
    seconds = sum(run.seconds for run in rounds.during)
    yield (
        f"    {sum(rounds.purged) / seconds:,.0f} purged per second; longest time between two "
        f"commits {_gap(rounds.without)} without, {_gap(rounds.during)} with the purge"
    )


class WrongPurge(Exception):
    """The purge left old messages, or removed others."""


def _check(work: Work, purged: Purge, rows: int) -> None:
    left = old_messages.left(work.url)
    if purged.purged != rows or left:
        raise WrongPurge(f"{purged.purged} of {rows} were purged, {left} are left")


def _lines(work: Work, rounds: Rounds, purged: Purge) -> Iterator[str]:
    rates = [run.rate for run in rounds.without]
    yield line(f"{work.label}, without purge", rates)
    yield line(f"{work.label}, during purge", [run.rate for run in rounds.during], rates, GOAL)
    errors = _errors(work.url)
    yield (
        f"    {errors} errors: {'ok' if not errors else 'MISSED'}; longest time between two "
        f"commits {_gap(rounds.without)} without, {_gap(rounds.during)} during the purge"
    )
    seconds = sum(run.seconds for run in rounds.during)
    steps = [step * 1000 for step in purged.steps]
    yield (
        f"    {sum(rounds.purged) / seconds:,.0f} purged per second; the first step, with the "
        f"search, {purged.first * 1000:,.0f} ms; {len(steps):,} more, each with the pause "
        f"before it, median {median(steps):,.0f} ms, longest {max(steps):,.0f} ms, "
        f"{sum(ms > BRIEF for ms in steps)} above {BRIEF} ms"
    )


def _gap(runs: Sequence[Run]) -> str:
    return f"{max(run.gap for run in runs) * 1000:,.0f} ms"


def _errors(url: str) -> int:
    """Failures, dead letters and deadlocks of the processing, as the database has counted them."""
    with psycopg.connect(url) as connection:
        return int(connection.execute(ERRORS).fetchall()[0][0])
