"""Replay: messages that are run once more, against the first time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from statistics import median

import msgspec
import psycopg

from bench.drain import load as loads
from bench.drain import oncebox
from bench.drain.comparison import line
from bench.drain.load import Load
from bench.drain.worker_pool import Run, WorkerPool
from bench.environment import Environment
from bench.retention.options import Options
from oncebox import Inbox

WARM_UP = 3000


class Pair(msgspec.Struct, frozen=True):
    """The same messages for the first time and once more."""

    ordinary: Run
    replayed: Run
    noted: float
    """Seconds until it was noted what is to be replayed."""


def replay(environment: Environment, options: Options) -> Iterator[str]:
    """Messages are stored and drained; then a replay of all of them is started, and drained."""
    url = environment.database()
    oncebox.create(url)
    pool = WorkerPool(oncebox.open_batch, url, batch=options.batch, workers=options.workers)
    pairs = []
    with Inbox(oncebox.NAME, url) as inbox, pool:
        _play(url, pool, inbox, "warm-up", Load(WARM_UP))
        for number in range(1, options.rounds + 1):
            pair = _play(url, pool, inbox, f"round {number}", Load(options.replayed))
            pairs.append(pair)
            options.progress(
                f"replay: round {number} of {options.rounds}: {pair.ordinary.rate:,.0f}/s, "
                f"{pair.replayed.rate:,.0f}/s when replayed"
            )
    yield f"replay of {options.replayed:,} messages, {options.rounds} rounds"
    rates = [pair.ordinary.rate for pair in pairs]
    yield line("stored, then drained", rates)
    yield line("replayed", [pair.replayed.rate for pair in pairs], rates)
    noted = median(pair.noted for pair in pairs)
    yield f"    the start of a replay notes what is to be run in {noted:.1f} s"


def _play(url: str, pool: WorkerPool, inbox: Inbox, name: str, load: Load) -> Pair:
    oncebox.fill(url, load)
    ordinary = _drain(url, pool, load)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("TRUNCATE ledger")
        connection.execute("VACUUM ANALYZE")
        connection.execute("CHECKPOINT")
    started = time.perf_counter()
    inbox.replays.start(name, why="bench", type="payment")
    noted = time.perf_counter() - started
    return Pair(ordinary, _drain(url, pool, load), noted)


def _drain(url: str, pool: WorkerPool, load: Load) -> Run:
    """Checked: each message applied once, in the order of its key."""
    run = pool.drain(load.messages)
    loads.check(url, "drain", load, done=run.done, left=oncebox.left(url))
    return run
