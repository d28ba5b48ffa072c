"""Many messages wait for a sequence number."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

import pytest

from oncebox import Delivery
from oncebox.storage.sql.sequences import SqlSequences
from oncebox.storage.steps import run
from support.sequences import SequenceHarness, age_gaps, make_keeper, step, steps
from support.services import wait_until
from support.tables import audit_entries, dead_letters, read_rows
from support.worlds import BOTH, World

pytestmark = pytest.mark.empty_database


def limit_waiting_messages(monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    """Limit how many waiting messages of a key are stored at once."""
    monkeypatch.setattr(SqlSequences, "at_once", limit)


@pytest.mark.only(BOTH)
@pytest.mark.parametrize("count", [8, 9, 10, 11])
def test_many_waiting_messages_of_a_key_are_stored_in_chunks(
    world: World, harness: SequenceHarness, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    limit_waiting_messages(monkeypatch, 3)
    numbers = list(range(2, count + 1))
    random.Random(count).shuffle(numbers)
    assert set(harness.process(*steps(*numbers))) == {"blocked"}
    assert harness.process(*steps(1)) == ["stored"]
    assert len(world.pending()) == 4
    assert harness.drain() == {"done": count}
    assert harness.ran() == [f"k{n}" for n in range(1, count + 1)]
    assert harness.missing() == []
    assert harness.look("status").gaps == 0
    assert harness.process(step(count + 1)) == ["done"]


@pytest.mark.only(BOTH)
def test_stored_parts_of_a_long_gap_continue_with_new_messages(
    world: World, harness: SequenceHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit_waiting_messages(monkeypatch, 2)
    harness.process(*steps(2, 3, 4, 5, 6, 8))
    harness.process(*steps(1))
    assert harness.process(*steps(9)) == ["blocked"]
    assert len(world.pending()) == 5
    harness.drain()
    assert harness.process(*steps(7)) == ["stored"]
    harness.drain()
    assert harness.ran() == [f"k{n}" for n in range(1, 10)]


@pytest.mark.only(BOTH)
def test_a_sequence_number_is_taken_also_by_a_waiting_message_that_was_not_read(
    world: World, harness: SequenceHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit_waiting_messages(monkeypatch, 2)
    harness.process(*steps(2, 3, 4, 6))
    assert harness.process(step(6, id="rival"), step(4, id="rogue"), step(1)) == [
        "quarantined",
        "quarantined",
        "stored",
    ]
    assert {row[2] for row in dead_letters(world)} == {"sequence_taken"}
    harness.drain()
    assert harness.ran() == ["k1", "k2", "k3", "k4"]
    assert harness.missing() == [("k", "", 5, 6, 1)]


@pytest.mark.only(BOTH)
def test_a_completed_sequence_is_not_a_gap(
    world: World, harness: SequenceHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More messages waited than were read, and all of them were admitted."""
    limit_waiting_messages(monkeypatch, 2)
    harness.process(*steps(2, 3, 4))
    harness.process(step(4, id="rival"), step(1))
    age_gaps(world, 61)
    assert harness.missing() == []
    harness.drain()
    assert harness.ran() == ["k1", "k2", "k3", "k4"]
    assert audit_entries(world) == []


@pytest.mark.only(BOTH)
@pytest.mark.parametrize("seed", [1, 2])
def test_messages_from_several_threads_run_in_sequence_order(world: World, seed: int) -> None:
    """Threads bring messages of few keys, one by one and in batches, with duplicates."""
    harness, chance = SequenceHarness(world), random.Random(seed)
    everything = [step(n, key) for key in "abc" for n in range(1, 31)]
    chance.shuffle(everything)
    copies = [*everything, *chance.sample(everything, 20)]
    shares = [copies[n::3] for n in range(3)]
    errors: list[BaseException] = []

    def bring(share: list[Delivery], take: Callable[..., Any]) -> None:
        try:
            while share:
                batch = [share.pop() for _ in range(min(len(share), 5))]
                take(*batch)
        except BaseException as error:
            errors.append(error)

    takes = [harness.process, harness.receive, harness.process]
    threads = [
        threading.Thread(target=bring, args=pair) for pair in zip(shares, takes, strict=True)
    ]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        harness.drain()
    harness.drain()
    assert errors == []
    ran = harness.ran()
    for key in "abc":
        assert [id for id in ran if id[0] == key] == [f"{key}{n}" for n in range(1, 31)]
    assert dead_letters(world) == []
    assert set(world.states().values()) == {"done"}


FILL = {
    "sequence": "INSERT INTO oncebox_sequence (consumer, key, epoch, next) "
    "SELECT 'billing', 'old ' || n, '', 2 FROM generate_series(1, 50000) n",
    "awaiting_sequence": "INSERT INTO oncebox_awaiting_sequence (consumer, key, epoch, number, "
    "seq, lane, origin, "
    "message_id, type, version, payload, isolated) SELECT 'billing', 'old ' || n, '', 9, -n, "
    "0, '', "
    "n, '', 1, '', false FROM generate_series(1, 50000) n",
    "inbox": "INSERT INTO oncebox_inbox (consumer, origin, message_id, seq, type, version) "
    "SELECT 'billing', '', n, -n, '', 1 FROM generate_series(1, 50000) n",
    "pending": "INSERT INTO oncebox_pending (consumer, lane, seq, origin, message_id, type, "
    "version, key, payload) SELECT 'billing', 0, -n, '', n, '', 1, 'old ' || n, '' "
    "FROM generate_series(1, 50000) n",
}


@pytest.mark.only(("psycopg",))
@pytest.mark.parametrize("table", FILL)
def test_sequence_statements_planned_on_an_empty_table_do_not_scan_a_full_one(
    world: World, harness: SequenceHarness, table: str
) -> None:
    """A session keeps the plans that it made when there was nothing to scan."""

    def play(*keys: str) -> None:
        harness.process(*(step(n, key) for key in keys for n in (3, 2, 5)))
        harness.process(*(step(1, key) for key in keys))
        run(keeper.step())
        keeper._next_check_at = 0

    keeper = make_keeper(harness, hurry=True)
    world.execute(f"ALTER TABLE oncebox_{table} SET (autovacuum_enabled = off)")
    world.execute(FILL[table].replace("50000", "1"))
    world.execute("ANALYZE")  # now the planner knows how small the tables are
    for number in range(12):  # long enough for a generic plan
        play(f"warm {number}")
    world.execute(FILL[table].replace("(1, 50000)", "(2, 50000)"))
    play(*(f"new {number}" for number in range(50)))
    harness.inbox.close()  # a session reports what it read when it ends, at the latest
    wait_until(lambda: read_rows(world, table) > 0, "nothing was read")
    assert read_rows(world, table) < 10_000, "200 messages must not read the whole table"
