"""Growth: whether a larger backlog slows the drain down."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from statistics import median

import psycopg

from bench.drain import load as loads
from bench.drain import oncebox
from bench.drain.contest import BATCH, Entrant, enter, line
from bench.drain.load import Load
from bench.drain.options import Options
from bench.place import Place

WITHIN = 1.3
PART = 20_000
"""Messages per figure."""
CHUNK = 250
"""So many messages come in at once."""


def backlog(place: Place, options: Options) -> Iterator[str]:
    """The same drain on backlogs of different sizes, which are kept at that size."""
    sizes = options.backlogs
    with ExitStack() as stack:
        entrants = enter(stack, place, options, [BATCH] * len(sizes))
        stores = [_Store(size, entrant) for size, entrant in zip(sizes, entrants, strict=True)]
        for number in range(1, options.rounds + 1):
            for store in stores:
                store.entrant.rates.append(store.drain())
            rates = ", ".join(f"{s.size:,}: {s.entrant.rates[-1]:,.0f}/s" for s in stores)
            options.progress(f"backlog: round {number} of {options.rounds}: {rates}")
        for store in stores:
            store.check()
    yield (
        f"backlog, oncebox with a batch handler; {PART:,} messages a round are drained while as "
        "many come in, so that the backlog stays as it is"
    )
    for store in stores:
        yield line(f"{store.size:,}", store.entrant.rates, stores[0].entrant.rates)
    rounds = zip(*(store.entrant.rates for store in stores), strict=True)
    apart = median(max(rates) / min(rates) for rates in rounds)
    medians = [store.entrant.rate for store in stores]
    between = max(medians) / min(medians)
    verdict = "ok" if between <= WITHIN else "MISSED"
    yield (
        f"  the fastest to the slowest: {between:.2f} between medians, {apart:.2f} within a round"
        f"  goal {WITHIN:g}: {verdict}"
    )


class _Store:
    """A backlog that is kept at its size."""

    def __init__(self, size: int, entrant: Entrant) -> None:
        self.size = size
        self.entrant = entrant
        self._filled = size
        self._done = 0
        oncebox.fill(entrant.url, Load(size))

    def drain(self) -> float:
        """The rate of a part."""
        crew = self.entrant.crew
        with psycopg.connect(self.entrant.url, autocommit=True) as connection:
            start = crew.begin(PART)
            while crew.done < PART:
                if self.size - (self._filled - self._done - crew.done) >= CHUNK:
                    more = Load(CHUNK, first=self._filled + 1)
                    connection.execute(oncebox.FILL, loads.parameters(more))
                    self._filled += CHUNK
                else:
                    time.sleep(0.002)
        run = crew.finish(PART, start)
        self._done += run.done
        return run.rate

    def check(self) -> None:
        """Nothing lost, nothing twice, in order."""
        url, load = self.entrant.url, Load(self._filled)
        loads.check(url, BATCH.label, load, done=self._done, left=oncebox.left(url))
