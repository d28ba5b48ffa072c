"""Bloat: how large the table of pending messages grows while messages pass through it."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator
from typing import Any

import msgspec
import psycopg

from bench.drain import load as loads
from bench.drain import oncebox
from bench.drain.load import KEYS, Load, Payment
from bench.drain.options import Options
from bench.drain.worker_pool import WorkerPool
from bench.environment import Environment
from oncebox import Delivery

STEPS = 10
AHEAD = 2_000
"""Messages that may be received and not yet drained."""
INTERVAL = "1s"
LONG = 2_000_000
"""From this number of messages on, autovacuum keeps its settings."""
WITHIN = 1.5
SIZES = """
SELECT pg_relation_size('oncebox_pending'), pg_indexes_size('oncebox_pending'),
       s.n_dead_tup, s.autovacuum_count
FROM pg_stat_user_tables s WHERE s.relname = 'oncebox_pending'"""


def bloat(environment: Environment, options: Options) -> Iterator[str]:
    """One process receives while the others drain."""
    url = environment.database()
    oncebox.create(url)
    faster = options.through < LONG and environment.set_autovacuum_interval(INTERVAL)
    yield (
        f"bloat, {options.through:,} messages received by one process and drained by "
        f"{options.workers} at the same time; autovacuum on, "
        + (
            f"every {INTERVAL} instead of 1 min because the run is short"
            if faster
            else "as it is set"
        )
        + ("" if options.through >= 5_000_000 else "; the goal speaks of 5,000,000: --through")
    )
    with WorkerPool(oncebox.open_batch, url, batch=options.batch, workers=options.workers) as pool:
        start = pool.begin(options.through, limit=86_400)
        feeder = _Feeder(url, options)
        sizes = []
        for step in range(1, STEPS + 1):
            target = options.through * step // STEPS
            while pool.done < target:
                feeder.allow(pool.done + AHEAD)
                time.sleep(0.02)
            sizes.append(_sizes(url))
            heap, indexes, dead, vacuums = sizes[-1]
            yield (
                f"  {pool.done:>12,} through: table {heap / 2**20:>7.1f} MB, indexes "
                f"{indexes / 2**20:>7.1f} MB, {dead:>9,} dead rows, {vacuums} autovacuums"
            )
        run = pool.finish(options.through, start)
        feeder.close()
    load = Load(options.through)
    loads.check(url, "oncebox", load, done=run.done, left=oncebox.left(url))
    half = max(heap + indexes for heap, indexes, *_ in sizes[: STEPS // 2])
    end = max(heap + indexes for heap, indexes, *_ in sizes[STEPS // 2 :])
    verdict = "ok" if end <= half * WITHIN else "MISSED"
    yield f"  {run.rate:,.0f}/s received and drained"
    yield (
        f"  largest of the second half to largest of the first: {end / half:.2f}  "
        f"goal {WITHIN:g}: {verdict}"
    )


def _sizes(url: str) -> tuple[int, int, int, int]:
    with psycopg.connect(url) as connection:
        heap, indexes, dead, vacuums = connection.execute(SIZES).fetchall()[0]
        return int(heap), int(indexes), int(dead), int(vacuums)


class _Feeder:
    """A process that receives as many messages as it is allowed to."""

    def __init__(self, url: str, options: Options) -> None:
        context = multiprocessing.get_context("spawn")
        self._allowed = context.Value("q", AHEAD)
        arguments = (url, options.through, options.batch, self._allowed)
        self._process = context.Process(target=_feed, args=arguments, daemon=True)
        self._process.start()

    def allow(self, messages: int) -> None:
        self._allowed.value = messages

    def close(self) -> None:
        self._process.join(10)


def _feed(url: str, messages: int, batch: int, allowed: Any) -> None:
    inbox = oncebox.inbox_for_batches(url)
    with inbox:
        for first in range(1, messages + 1, batch):
            while allowed.value < first:
                time.sleep(0.005)
            inbox.receive([_delivery(n) for n in range(first, min(first + batch, messages + 1))])


def _delivery(n: int) -> Delivery:
    key = f"account-{n * 7919 % KEYS:05}"
    id = f"019b0000-0000-7000-8000-{n:012x}"
    event = {
        "specversion": "1.0",
        "id": id,
        "source": "bank",
        "type": "payment",
        "data": Payment(id, key, n, n % 100),
    }
    return Delivery(msgspec.json.encode(event), key=key)
