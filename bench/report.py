"""The report: a header with versions and conditions, the tables, and the memory."""

from __future__ import annotations

import os
import platform
import sqlite3
from collections.abc import Iterable, Sequence
from importlib.metadata import version

from bench.drain.load import KEYS
from bench.drain.options import Options
from bench.kafka.options import Options as KafkaOptions
from bench.measure import Measured
from bench.retention.options import Options as RetentionOptions

WIDTHS = (18, 14, 10, 11, 7, 13, 6)
TITLES = ("library", "handler", "naive/s", "oncebox/s", "ratio", "min-max", "goal")


def header(*, postgres: str | None, fsync: float, rounds: int) -> list[str]:
    """Versions, machine, and what is compared."""
    libraries = ("oncebox", "psycopg", "SQLAlchemy", "Django")
    software = [f"Python {platform.python_version()}"]
    software += [f"{name} {version(name)}" for name in libraries]
    software += [f"SQLite {sqlite3.sqlite_version}"]
    if postgres is not None:
        software += [f"PostgreSQL {postgres} (fsync on)"]
    load = os.getloadavg()[0]
    return [
        ", ".join(software),
        f"{os.cpu_count()} cores, load {load:.1f}, an fdatasync takes {fsync * 1000:.2f} ms",
        f"Inline: two statements per message, 20 % duplicates; medians of {rounds} interleaved "
        "rounds.",
        "naive: a loop written by hand in the same library, with one transaction per message; "
        "ratio: oncebox to naive. Every round is checked: each payment booked once.",
    ]


def drain_header(*, postgres: str, fsync: float, options: Options) -> list[str]:
    """The header of the drain."""
    return [
        f"Python {platform.python_version()}, oncebox {version('oncebox')}, "
        f"psycopg {version('psycopg')}, PostgreSQL {postgres} (fsync on)",
        f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, an fdatasync takes "
        f"{fsync * 1000:.2f} ms",
        f"Drain: {options.workers} worker processes, batches of {options.batch}, one insert into a "
        f"ledger per message; medians and spread of {options.rounds} interleaved rounds of at most "
        f"{options.limit:g} s; uniform: {KEYS:,} keys.",
        "one table: status column, NOT EXISTS (an earlier unfinished row of my key), FOR UPDATE "
        "SKIP LOCKED, by hand in psycopg's pipeline, planned as nested loops.",
        "Every round is checked: each message applied once, in the order of its key.",
    ]


def kafka_header(*, postgres: str, kafka: str, fsync: float, options: KafkaOptions) -> list[str]:
    """The header of Kafka."""
    return [
        f"Python {platform.python_version()}, oncebox {version('oncebox')}, "
        f"psycopg {version('psycopg')}, confluent-kafka {version('confluent-kafka')}, "
        f"Kafka {kafka}, PostgreSQL {postgres} (fsync on)",
        f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, an fdatasync takes "
        f"{fsync * 1000:.2f} ms",
        f"Kafka: one process each, inline, batches of {options.batch}, two statements per message; "
        f"medians and spread of {options.rounds} interleaved rounds.",
        "The clock runs from the assignment of partitions to the last commit, for all alike. Every "
        "round is checked: each payment booked once.",
    ]


def retention_header(*, postgres: str, fsync: float, options: RetentionOptions) -> list[str]:
    """The header of retention."""
    return [
        f"Python {platform.python_version()}, oncebox {version('oncebox')}, "
        f"psycopg {version('psycopg')}, SQLite {sqlite3.sqlite_version}, "
        f"PostgreSQL {postgres} (fsync on)",
        f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, an fdatasync takes "
        f"{fsync * 1000:.2f} ms",
        f"Retention: inline a process per core, a handler per message with two statements, 20 % "
        f"duplicates; drain {options.workers} processes, a handler per batch; batches of "
        f"{options.batch}. Medians and spread of interleaved rounds.",
        "Every part is checked: each payment booked once, nothing else purged, everything "
        "restored.",
    ]


def title(batch: int) -> str:
    """The first lines of a table."""
    return f"batches of {batch}\n{_line(TITLES)}"


def lines(library: str, results: Sequence[Measured], *, has_goals: bool) -> list[str]:
    """The lines of one library: its baseline against each of the others."""
    baseline, *others = results
    return [_line(_cells(library, baseline, other, has_goals)) for other in others]


def memory(points: Iterable[tuple[int, float]]) -> list[str]:
    """Resident memory after each step, and its growth over the second half."""
    seen = list(points)
    growth = seen[-1][1] - seen[len(seen) // 2][1]
    return [
        *(f"{done:>12,} messages {megabytes:>8.1f} MB" for done, megabytes in seen),
        f"growth over the second half: {growth:+.1f} MB",
    ]


def _cells(library: str, baseline: Measured, other: Measured, has_goals: bool) -> tuple[str, ...]:
    ratios = other.ratios(baseline)
    return (
        library,
        other.contender.label,
        f"{baseline.rate:,.0f}",
        f"{other.rate:,.0f}",
        f"{other.ratio(baseline):.2f}",
        f"{min(ratios):.2f}-{max(ratios):.2f}",
        *_verdict(other.ratio(baseline), other.contender.goal if has_goals else None),
    )


def _verdict(ratio: float, goal: float | None) -> tuple[str, ...]:
    if goal is None:
        return ("-",)
    return f"{goal:.1f}", "ok" if ratio >= goal else "MISSED"


def _line(cells: Sequence[str]) -> str:
    """Text on the left, figures on the right, then the verdict."""
    padded = [
        cell.ljust(width) if number < 2 else cell.rjust(width)
        for number, (cell, width) in enumerate(zip(cells, WIDTHS, strict=False))
    ]
    return "  ".join(("".join(padded), *cells[len(WIDTHS) :])).rstrip()
