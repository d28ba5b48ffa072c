"""Pass the statements of a psycopg pipeline to libpq without polling the socket.

psycopg polls the socket for every statement; in an event loop that costs more than the statement.
This module skips the poll: the next ordinary execute or sync sends and receives for all. BEGIN, and
the end of a pipeline that was just synced, need no poll either. The module uses private names of
psycopg, so it works only with tested versions. With other versions the ordinary methods are used,
and a test fails as a reminder.
"""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg.abc import PQGen

EVERY = 16
"""Every 16th statement is executed in the ordinary way, so that results do not pile up."""

TESTED = ("3.3",)
SUPPORTED = psycopg.__version__.startswith(tuple(f"{version}." for version in TESTED))


def queue(cursor: Any, sql: str, params: tuple[Any, ...] | None) -> Any:
    """Execute in a pipeline, without polling for results."""
    if not SUPPORTED:
        return cursor.execute(sql, params)
    _exhaust(cursor._start_query(sql))
    _exhaust(cursor._maybe_prepare_gen(cursor._convert_query(sql, params)))
    cursor._last_query = sql
    hand_over(cursor.connection._pipeline)
    return cursor


async def aqueue(cursor: Any, sql: str, params: tuple[Any, ...] | None) -> Any:
    """Execute in a pipeline with an async cursor, without polling for results."""
    if not SUPPORTED:
        return await cursor.execute(sql, params)
    return queue(cursor, sql, params)


def hand_over(pipeline: Any) -> None:
    """Put the queued commands into libpq's buffer, so that psycopg knows that they were sent."""
    commands = pipeline.command_queue
    while commands:
        commands.popleft()()


def skip_last_sync(pipeline: Any) -> None:
    """Let a pipeline end without another round trip, if it has just been synced."""
    queued = pipeline.command_queue or pipeline.result_queue
    if SUPPORTED and pipeline.level == 1 and not queued:
        pipeline._exit_gen = _nothing


def _nothing() -> PQGen[None]:
    yield from ()


def _exhaust(steps: PQGen[Any]) -> None:
    """Run a generator of psycopg that never waits inside a pipeline."""
    for _ in steps:
        raise AssertionError("psycopg wants to wait inside a pipeline")
