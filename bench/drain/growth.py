"""Growth: whether a larger backlog slows the drain down."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from statistics import median

import psycopg

from bench.drain import load as loads
from bench.drain import oncebox
from bench.drain.comparison import BATCH, RunningContender, line, start
from bench.drain.load import Load
from bench.drain.options import Options
from bench.environment import Environment

WITHIN = 1.3
PART = 20_000
"""Messages per figure."""


def backlog(environment: Environment, options: Options) -> Iterator[str]:
    """The same drain on backlogs of different sizes, which are kept at that size."""
    sizes = options.backlogs
    with ExitStack() as stack:
        contenders_running = start(
            stack, environment, options, [BATCH] * len(sizes), refill=refilling
        )
        stores = [
            _Store(size, running) for size, running in zip(sizes, contenders_running, strict=True)
        ]
        for number in range(1, options.rounds + 1):
            for store in stores:
                store.running.rates.append(store.drain())
            rates = ", ".join(f"{s.size:,}: {s.running.rates[-1]:,.0f}/s" for s in stores)
            options.progress(f"backlog: round {number} of {options.rounds}: {rates}")
        for store in stores:
            store.check()
    yield (
        f"backlog, oncebox with a batch handler, {PART:,} messages a round; after each batch its "
        "worker stores as many again, so that the backlog stays as it is; that time does not "
        "count, so compare these rates with each other only"
    )
    for store in stores:
        yield line(f"{store.size:,}", store.running.rates, stores[0].running.rates)
    rounds = zip(*(store.running.rates for store in stores), strict=True)
    apart = median(max(rates) / min(rates) for rates in rounds)
    medians = [store.running.rate for store in stores]
    between = max(medians) / min(medians)
    verdict = "ok" if between <= WITHIN else "MISSED"
    yield (
        f"  the fastest to the slowest: {between:.2f} between medians, {apart:.2f} within a round"
        f"  goal {WITHIN:g}: {verdict}"
    )


@contextmanager
def refilling(url: str) -> Iterator[Callable[[int], None]]:
    """Stores new messages in place of those that were drained."""
    number = (os.getpid() % 2**15 + 1) << 32  # of this worker alone, as are those that follow
    with psycopg.connect(url, autocommit=True) as connection:

        def refill(messages: int) -> None:
            nonlocal number
            more = Load(messages, first=number)
            connection.execute(oncebox.FILL, loads.parameters(more))
            number += messages

        yield refill


class _Store:
    """A backlog that is kept at its size."""

    def __init__(self, size: int, running: RunningContender) -> None:
        self.size = size
        self.running = running
        self._done = 0
        oncebox.fill(running.url, Load(size))
        self.drain()  # to warm up

    def drain(self) -> float:
        """The rate of a part."""
        run = self.running.pool.drain(PART)
        self._done += run.done
        return run.rate

    def check(self) -> None:
        """Nothing lost, nothing twice. New messages of a key are numbered by several workers."""
        url, load = self.running.url, Load(self.size + self._done)
        left = oncebox.left(url)
        loads.check(url, BATCH.label, load, done=self._done, left=left, ordered=False)
