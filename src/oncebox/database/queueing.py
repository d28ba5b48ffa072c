"""Queueing: statements of a psycopg pipeline, handed to libpq without waiting for the socket.

psycopg looks at the socket for every statement; in an event loop that costs more than the statement
itself. This skips the look: the next ordinary execute, or the next sync, sends and receives for
all. A BEGIN need not be waited for either, nor the end of a pipeline that is at rest. It needs
names that are private to psycopg, so it is done only with versions that it was tested with; with
others everything is done in the ordinary way, and a test tells us to look.
"""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg.abc import PQGen

EVERY = 16
"""Every so many statements one is executed in the ordinary way, so that nothing piles up."""

TESTED = ("3.3",)
SUPPORTED = psycopg.__version__.startswith(tuple(f"{version}." for version in TESTED))


def queue(cursor: Any, sql: str, params: tuple[Any, ...] | None) -> Any:
    """Execute in a pipeline, without looking whether answers have come."""
    if not SUPPORTED:
        return cursor.execute(sql, params)
    _exhaust(cursor._start_query(sql))
    _exhaust(cursor._maybe_prepare_gen(cursor._convert_query(sql, params)))
    cursor._last_query = sql
    hand_over(cursor.connection._pipeline)
    return cursor


async def aqueue(cursor: Any, sql: str, params: tuple[Any, ...] | None) -> Any:
    """The same for an async cursor."""
    if not SUPPORTED:
        return await cursor.execute(sql, params)
    return queue(cursor, sql, params)


def hand_over(pipeline: Any) -> None:
    """Put what is queued into libpq's buffer: from then on psycopg knows that it is under way."""
    commands = pipeline.command_queue
    while commands:
        commands.popleft()()


def rest(pipeline: Any) -> None:
    """Let a pipeline end without asking the server once more, if it has just been synced."""
    queued = pipeline.command_queue or pipeline.result_queue
    if SUPPORTED and pipeline.level == 1 and not queued:
        pipeline._exit_gen = _nothing


def _nothing() -> PQGen[None]:
    yield from ()


def _exhaust(steps: PQGen[Any]) -> None:
    """Run a generator of psycopg that has nothing to wait for inside of a pipeline."""
    for _ in steps:
        raise AssertionError("psycopg wants to wait inside of a pipeline")
