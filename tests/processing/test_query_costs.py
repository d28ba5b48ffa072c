"""Background statements read only the rows they concern, in tables of any size."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

import oncebox.operations.purge
import oncebox.operations.purge_pass
from oncebox import Inbox, Retention
from oncebox.storage.drivers.transactions import run_transaction
from oncebox.storage.sqlite.values import BLOCKED, later
from oncebox.storage.steps import run
from support.internals import database_of, store_of
from support.services import wait_until
from support.tables import read_rows
from support.worlds import World, order, write_effect

pytestmark = pytest.mark.empty_database

A_DAY = 86_400
# Four of them fill a page.
OLD = """
INSERT INTO oncebox_inbox (consumer, origin, message_id, seq, type, version, payload, received_at)
SELECT 'billing', 'test', 'old-' || seq, seq, 'order', 1, decode(repeat('00', 1700), 'hex'),
       now() - interval '8 days'
FROM (SELECT nextval('oncebox_seq') AS seq FROM generate_series(1, %s)) s"""
YOUNG = """
INSERT INTO oncebox_inbox (consumer, origin, message_id, seq, type, version, payload)
SELECT 'billing', 'test', 'young-' || n, -1000000 - n, 'order', 1, '{}'
FROM generate_series(1, 20000) n"""
FILL = {
    "pending": "INSERT INTO oncebox_pending (consumer, lane, seq, origin, message_id, type, "
    "version, key, payload, available_at, replay) SELECT 'billing', 0, -n, 'test', 'other-' || n, "
    "'', 1, n, '', 'infinity', n % 2 * 99 FROM generate_series(1, 50000) n",
    "dead_letter": "INSERT INTO oncebox_dead_letter (consumer, state, reason, seq, origin, "
    "message_id, payload, "
    "replay) SELECT 'billing', 'dead', '', -n, 'test', 'other-' || n, '', n % 2 * 99 "
    "FROM generate_series(1, 50000) n",
    "awaiting_sequence": "INSERT INTO oncebox_awaiting_sequence (consumer, key, epoch, number, "
    "seq, lane, origin, "
    "message_id, type, version, payload, isolated) SELECT 'billing', n, '', 1, -n, 0, 'test', "
    "'other-' || n, '', 1, '', false FROM generate_series(1, 50000) n",
    "replay_item": "INSERT INTO oncebox_replay_item (replay, seq, consumer, origin, message_id) "
    "SELECT 99, -n, 'billing', 'test', 'other-' || n FROM generate_series(1, 50000) n",
    "attempt": "INSERT INTO oncebox_attempt (consumer, origin, message_id, number, outcome, "
    "worker) SELECT 'billing', 'test', 'other-' || n, 1, 'done', '' "
    "FROM generate_series(1, 50000) n",
}
LASTING = ("psycopg", "sqlalchemy-asyncpg")
"""They keep plans for some steps of a purge, and for as long as a session lasts."""


def begin(world: World, **options: Any) -> Inbox:
    """An inbox, and a planner that takes its tables for empty, but for what is kept."""
    inbox = world.inbox(**options)
    world.on(inbox, "order", write_effect)
    world.execute(YOUNG)
    for table in FILL:
        world.execute(f"ALTER TABLE oncebox_{table} SET (autovacuum_enabled = off)")
    world.execute("ANALYZE")
    world.process(inbox, [order("new")])
    return inbox


def purge(world: World, inbox: Inbox, **options: Any) -> int:
    keeping = inbox.purge
    purged = world.run(keeping.arun(**options)) if world.is_async else keeping.run(**options)
    return int(purged.purged)


def all_that_was_read(world: World, inbox: Inbox) -> dict[str, int]:
    """How many rows of each table were read; a session reports that when it ends, at the latest."""
    if world.is_async:
        world.run(inbox.aclose())
        world.run(world.database().dispose())
    inbox.close()
    others = (
        "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() "
        "AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
    )
    wait_until(lambda: not world.query(others), "a session does not end")
    return {table: read_rows(world, table) + read_entries(world, table) for table in FILL}


def read_entries(world: World, table: str) -> int:
    """How many entries of the indexes of a table were read so far."""
    ((entries,),) = world.query(
        "SELECT sum(idx_tup_read) FROM pg_stat_user_indexes WHERE relname = %s", f"oncebox_{table}"
    )
    return int(entries)


@pytest.mark.slow
@pytest.mark.only(LASTING)
@pytest.mark.parametrize("archived", [False, True], ids=["purge", "archive"])
def test_a_purge_planned_on_empty_tables_does_not_scan_full_ones(
    world: World, archived: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It keeps the plans of its first steps, made before the tables were filled."""
    monkeypatch.setattr(oncebox.operations.purge_pass, "AT_ONCE", 100)
    archive = str(tmp_path) if archived else None
    inbox = begin(world, retention=Retention(days=7, archive=archive))
    world.execute(OLD % 4000)
    full = False

    def fill(purged: int) -> None:
        nonlocal full
        if purged >= 3200 and not full:  # by then plans are general
            full = True
            for statement in FILL.values():
                world.execute(statement)

    assert purge(world, inbox, progress=fill) == 4000
    assert full
    world.execute(OLD % 200)
    assert purge(world, inbox) == 200
    read = all_that_was_read(world, inbox)
    assert max(read.values()) < 10_000, f"1,000 messages must not read whole tables: {read}"


SOME = """
WITH RECURSIVE s (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < {count})
INSERT INTO oncebox_inbox (consumer, origin, message_id, seq, type, version, payload, received_at)
SELECT 'billing', 'test', '{name}-' || n, {first} + n, 'order', 1, x'', {at} + n
FROM s"""


@pytest.mark.only(("sqlite3",))
@pytest.mark.parametrize("archived", [False, True], ids=["purge", "archive"])
def test_on_sqlite_kept_messages_do_not_slow_a_purge_down(
    world: World, archived: bool, tmp_path: Path
) -> None:
    archive = str(tmp_path) if archived else None
    inbox = world.inbox(retention=Retention(days=7, archive=archive))
    world.on(inbox, "order", write_effect)
    world.process(inbox, [order("new")])
    old = SOME.format(count=2000, name="old", first=10_000, at=later(-8 * A_DAY))
    world.execute(old)
    before = count_work(inbox)
    world.execute(SOME.format(count=20_000, name="young", first=100_000, at=later(-A_DAY)))
    world.execute(old)
    assert count_work(inbox) < before * 2


def count_work(inbox: Inbox) -> int:
    """How much SQLite does for a purge of 2000 messages, in thousands of its instructions."""
    worked = 0

    def note() -> None:
        nonlocal worked
        worked += 1

    database: Any = database_of(inbox)
    work = database.work()
    run(database.acquire(work))
    work.connection.set_progress_handler(note, 1000)
    run(database.release(work))
    assert inbox.purge.run().purged == 2000
    assert worked > 10, "it was another connection"
    return worked


# -- the tail of a key ----------------------------------------------------------------------------

TAIL = """
WITH RECURSIVE s (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < {count})
INSERT INTO oncebox_pending (consumer, lane, seq, origin, message_id, type, version, key, payload,
                             source, available_at)
SELECT 'billing', 0, n, 'test', 'm' || n, 'order', 1, 'k', {payload}, '', {blocked} FROM s"""
READ = """
SELECT sum(pg_stat_get_xact_tuples_returned(i)) FROM (
  SELECT indexrelid AS i FROM pg_index WHERE indrelid = 'oncebox_pending'::regclass
  UNION ALL SELECT 'oncebox_pending'::regclass) r"""


@pytest.mark.only(("psycopg", "sqlite3"))
def test_releasing_a_long_key_reads_each_message_once(world: World) -> None:
    inbox = world.inbox()
    first, longer = (cost_of_release(world, inbox, messages) for messages in (200, 800))
    assert first > 0
    assert longer < first * 8, "it is more than linear"


def cost_of_release(world: World, inbox: Inbox, messages: int) -> int:
    """How much the database reads to release a key with this many waiting messages."""
    world.execute("DELETE FROM oncebox_pending")
    payload, blocked = ("''", "'infinity'") if world.is_postgres else ("x''", BLOCKED)
    world.execute(TAIL.format(count=messages, payload=payload, blocked=blocked))
    worked = 0

    def note() -> None:
        nonlocal worked
        worked += 1

    def release(work: Any) -> Generator[Any, Any, Any]:
        store: Any = store_of(inbox)
        if not world.is_postgres:
            work.connection.set_progress_handler(note, 10)
        yield from store._release(work, "billing", ["k"])
        if not world.is_postgres:
            work.connection.set_progress_handler(None, 0)
            return worked
        return int((yield from work.fetch(READ, {}))[0][0])

    cost: int = run(run_transaction(database_of(inbox), release))
    waiting = "SELECT count(*) FROM oncebox_pending WHERE available_at IS NOT NULL"
    assert world.query(waiting) == [(0,)]
    return cost
