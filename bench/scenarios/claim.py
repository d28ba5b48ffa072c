"""claim() in the caller's transaction, against the bare INSERT of the same columns.

Both insert into a table of the same schema on the same connection settings, and both compute the
hash of the payload, because it is one of the columns. Every message is new.
"""

from __future__ import annotations

import gc
import sqlite3
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from statistics import median
from typing import Any

import msgspec
import psycopg

from bench.environment import Environment
from bench.scenarios.sqlite import connect
from oncebox import Inbox

NAME = "claim"
GOAL = 0.9
MESSAGES = 2000
PAYLOAD = b"x" * 200
WIDTHS = (12, 20, 10, 11, 7, 13, 6)
TITLES = ("claim", "transaction", "insert/s", "claim()/s", "ratio", "min-max", "goal")

COLUMNS = (
    "consumer, origin, message_id, type, version, key, payload, content_hash, headers, source, "
    "coordinates, occurred_at, produced_at, by_caller"
)
POSTGRES = f"""
INSERT INTO oncebox_inbox ({COLUMNS})
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, true)
ON CONFLICT (consumer, origin, message_id) DO NOTHING RETURNING seq"""
SQLITE = f"""
INSERT INTO oncebox_inbox ({COLUMNS}, received_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 1, ?)
ON CONFLICT (consumer, origin, message_id) DO NOTHING RETURNING seq"""

Claim = Callable[[str], bool]


class Pair(msgspec.Struct, frozen=True):
    """The two ways to claim on one database, each with its connection."""

    name: str
    connections: tuple[Any, Any]
    claims: tuple[Claim, Claim]


def measure(
    environment: Environment, messages: int | None, rounds: int, progress: Callable[[str], None]
) -> Iterator[str]:
    """A line per database and size of the transactions: medians of interleaved rounds."""
    for pair in (_postgres(environment), _sqlite(environment)):
        for size in (1, 100):
            count = messages or (MESSAGES if size > 1 else MESSAGES // 4)
            _play(pair, 50, size)  # opens connections, and lets the driver prepare the statements
            rates = [_play(pair, count, size) for _ in range(rounds)]
            progress(f"{pair.name}, {size} per transaction: {rounds} rounds of {count}")
            yield _line(pair.name, size, rates)
        for connection in pair.connections:
            connection.close()


def _play(pair: Pair, count: int, size: int) -> tuple[float, float]:
    """One round: the messages per second of each way. They take turns after every transaction,
    and each is first in half of them."""
    seconds = [0.0, 0.0]
    gc.collect()
    wanted = [str(uuid.uuid4()) for _ in range(count)]
    for start in range(0, count, size):
        ids = wanted[start : start + size]
        for n in (0, 1) if start // size % 2 else (1, 0):
            seconds[n] += _seconds(pair.connections[n], pair.claims[n], ids)
    return count / seconds[0], count / seconds[1]


def _seconds(connection: Any, claim: Claim, ids: Sequence[str]) -> float:
    started = time.perf_counter()
    for id in ids:
        if not claim(id):
            raise AssertionError(f"message {id} is new, but was not claimed")
    connection.commit()
    return time.perf_counter() - started


def _postgres(environment: Environment) -> Pair:
    connections = []
    for _ in range(2):
        url = environment.database()
        inbox = Inbox("bench", url)
        inbox.migrate()
        connections.append(psycopg.connect(url))
    bare, ours = connections

    def insert(id: str) -> bool:
        return bare.execute(POSTGRES, _row(id)).fetchone() is not None

    return Pair("psycopg", (bare, ours), (insert, _claim(inbox, ours)))


def _sqlite(environment: Environment) -> Pair:
    connections = []
    for _ in range(2):
        url = environment.sqlite()
        inbox = Inbox("bench", url)
        inbox.migrate()
        connection = connect(url)
        connection.isolation_level = "IMMEDIATE"
        connections.append(connection)
    bare, ours = connections

    def insert(id: str) -> bool:
        row = (*_row(id), time.time_ns() // 1000)
        return bare.execute(SQLITE, row).fetchone() is not None

    return Pair("sqlite3", (bare, ours), (insert, _claim(inbox, ours)))


def _row(id: str) -> tuple[Any, ...]:
    hashed = blake2b(PAYLOAD, digest_size=16).digest()
    nothing = (None, None, None)
    return ("bench", "default", id, "", 1, None, PAYLOAD, hashed, None, "default", *nothing)


def _claim(inbox: Inbox, connection: psycopg.Connection | sqlite3.Connection) -> Claim:
    return lambda id: inbox.claim(connection, id, payload=PAYLOAD)


def title() -> str:
    """The first line of the table."""
    return _cells(TITLES)


def _line(name: str, size: int, rates: Sequence[tuple[float, float]]) -> str:
    bare, ours = (median(rate) for rate in zip(*rates, strict=True))
    ratios = [claim / insert for insert, claim in rates]
    ratio = median(ratios)
    cells = (
        name,
        "one claim" if size == 1 else f"{size} claims",
        f"{bare:,.0f}",
        f"{ours:,.0f}",
        f"{ratio:.2f}",
        f"{min(ratios):.2f}-{max(ratios):.2f}",
        f"{GOAL:.1f}",
    )
    return f"{_cells(cells)}  {'ok' if ratio >= GOAL else 'MISSED'}"


def _cells(cells: Sequence[str]) -> str:
    """Text to the left, figures to the right."""
    columns = zip(cells, WIDTHS, strict=True)
    return "".join(
        cell.ljust(width) if n < 2 else cell.rjust(width) for n, (cell, width) in enumerate(columns)
    )
