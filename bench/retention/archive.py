"""Archive: old messages into files and back, and whether they are the same afterwards."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TypeVar

import msgspec

from bench.drain.oncebox import NAME
from bench.environment import Environment
from bench.memory import resident
from bench.retention import footprint, old_messages
from bench.retention.options import Options
from oncebox import Inbox, Retention

T = TypeVar("T")

FLAT = 10.0
"""Megabytes by which memory may grow over the second half."""


class Chore(msgspec.Struct, frozen=True):
    """What a process did, how long it took, and the megabytes it had after each step."""

    done: int
    seconds: float
    at_first: float
    memory: list[float]

    @property
    def rate(self) -> float:
        return self.done / self.seconds

    @property
    def growth(self) -> float:
        """By how much the second half needed more than the first."""
        half = len(self.memory) // 2
        return max(self.memory[half:]) - max(self.memory[:half], default=self.at_first)


def archive(environment: Environment, options: Options) -> Iterator[str]:
    """On each database: a purge that archives, and a restoration."""
    yield (
        f"archive of {options.rows:,} old messages into a local folder, and back, without other "
        "load; each in a process of its own, whose memory is watched"
    )
    for label, url in (("PostgreSQL", environment.database()), ("SQLite", environment.sqlite())):
        Inbox(NAME, url).migrate()
        old_messages.fill(url, options.rows)
        options.progress(f"archive, {label}: {options.rows:,} old messages are in place")
        yield from _there_and_back(label, url, environment.folder(), options)


def _there_and_back(label: str, url: str, folder: Path, options: Options) -> Iterator[str]:
    before = footprint.take(url)
    archived = _elsewhere(_archive, url, str(folder))
    footprint.check_is_empty(label, url)
    yield _line(f"{label}, archive", archived)
    sizes = [file.stat().st_size for file in folder.rglob("*.jsonl.gz")]
    largest, total = max(sizes), sum(sizes)
    yield (
        f"    {len(sizes):,} files of {largest / 2**20:.1f} MB at most, {total / 2**20:.1f} MB in "
        f"all, {total / archived.done:.0f} bytes a message"
    )
    options.progress(f"archive, {label}: {archived.done:,} are archived")
    restored = _elsewhere(_restore, url, str(folder))
    yield _line(f"{label}, restore", restored)
    footprint.check_is_same(label, url, before)
    yield (
        f"    {before.messages.count:,} messages and {before.attempts.count:,} attempts are what "
        "they were, byte for byte: ok"
    )


def _line(label: str, chore: Chore) -> str:
    verdict = "ok" if chore.growth <= FLAT else "MISSED"
    return (
        f"  {label:<28}{chore.rate:>10,.0f}/s  {chore.seconds:>6,.1f} s; memory "
        f"{chore.at_first:.0f} MB at first, {max(chore.memory):.0f} MB at most, "
        f"{chore.growth:+.1f} MB over the second half  goal {FLAT:+g}: {verdict}"
    )


# -- in processes of their own ------------------------------------------------------------------


def _elsewhere(chore: Callable[[str, str], T], url: str, folder: str) -> T:
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(chore, url, folder).result()


def _archive(url: str, folder: str) -> Chore:
    with Inbox(NAME, url, retention=Retention(days=old_messages.DAYS, archive=folder)) as inbox:
        return _watched(lambda note: inbox.purge.run(progress=note).purged)


def _restore(url: str, folder: str) -> Chore:
    with Inbox(NAME, url) as inbox:
        return _watched(
            lambda note: inbox.archives.restore(why="bench", place=folder, progress=note).messages
        )


def _watched(work: Callable[[Callable[[int], None]], int]) -> Chore:
    memory: list[float] = []
    at_first, started = resident(), time.perf_counter()
    done = work(lambda _: memory.append(resident()))
    return Chore(done, time.perf_counter() - started, at_first, memory)
