"""Four workers drain the same messages, contender by contender, round by round."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from statistics import median

import msgspec

from bench.drain import load as loads
from bench.drain import oncebox, one_table
from bench.drain.load import Load
from bench.drain.options import Options
from bench.drain.worker_pool import Open, Refill, Run, WorkerPool
from bench.environment import Environment

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


class RunningContender(msgspec.Struct, frozen=True):
    """A contender with its database, its pool of workers, and its rates so far."""

    contender: Contender
    url: str
    pool: WorkerPool
    rates: list[float]

    def play(self, load: Load, limit: float) -> Run:
        """One round, checked: nothing lost, nothing twice, in the order of keys."""
        contender, url = self.contender, self.url
        contender.fill(url, load)
        run = self.pool.drain(load.messages, limit=limit)
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


def start(
    stack: ExitStack,
    environment: Environment,
    options: Options,
    contenders: Sequence[Contender],
    refill: Refill | None = None,
) -> list[RunningContender]:
    """Create a database and a pool of workers for each contender."""
    contenders_running = []
    for contender in contenders:
        url = environment.database()
        contender.create(url)
        size = {"batch": options.batch, "workers": options.workers}
        pool = WorkerPool(contender.open, url, **size, refill=refill)
        contenders_running.append(RunningContender(contender, url, stack.enter_context(pool), []))
    return contenders_running


def warm_up(contenders_running: Sequence[RunningContender]) -> None:
    """A round that does not count."""
    for running in contenders_running:
        running.play(Load(WARM_UP), limit=60)


def uniform(environment: Environment, options: Options) -> Iterator[str]:
    """Many keys, all alike."""
    load = Load(options.messages)
    yield from _compare(environment, options, "uniform keys", load, goal=1.0)


def hot(environment: Environment, options: Options) -> Iterator[str]:
    """All messages have the same key."""
    load = Load(options.messages, keys="hot")
    yield from _compare(environment, options, "one hot key", load, goal=10.0)


def blocked(environment: Environment, options: Options) -> Iterator[str]:
    """Many keys, behind very many messages of one that fails."""
    load = Load(options.messages, blocked=options.blocked)
    yield from _compare(
        environment, options, f"behind {options.blocked:,} blocked", load, goal=10.0
    )


def _compare(
    environment: Environment, options: Options, name: str, load: Load, *, goal: float
) -> Iterator[str]:
    with ExitStack() as stack:
        contenders_running = start(stack, environment, options, [BY_HAND, BATCH, SINGLE])
        warm_up(contenders_running)
        for number in range(1, options.rounds + 1):
            for running in contenders_running:
                running.rates.append(running.play(load, options.limit).rate)
            rates = ", ".join(f"{running.rates[-1]:,.0f}/s" for running in contenders_running)
            options.progress(f"{name}: round {number} of {options.rounds}: {rates}")
    yield f"{name}, {load.messages:,} messages"
    by_hand, batch, single = contenders_running
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
