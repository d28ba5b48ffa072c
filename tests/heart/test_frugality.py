"""Keeping house reads what it is about, however much else there is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from oncebox import Inbox, Retention
from oncebox.database.steps import run
from oncebox.store.sqlite.values import later
from worlds import World, order, write_effect

A_DAY = 86_400
SOME = """
WITH RECURSIVE s (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < {count})
INSERT INTO oncebox_inbox (consumer, origin, message_id, seq, type, version, payload, received_at)
SELECT 'billing', 'test', '{name}-' || n, {first} + n, 'order', 1, x'', {at} + n
FROM s"""


@pytest.mark.only(("sqlite3",))
@pytest.mark.parametrize("archived", [False, True], ids=["purge", "archive"])
def test_on_sqlite_what_is_kept_does_not_slow_a_purge_down(
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

    database: Any = run(inbox._database_for(False))
    work = run(database.acquire())
    work.connection.set_progress_handler(note, 1000)
    run(database.release(work))
    assert inbox.housekeeping.purge().forgotten == 2000
    assert worked > 10, "it was another connection"
    return worked
