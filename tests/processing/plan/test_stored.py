"""Batches of stored messages."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
import pytest

from oncebox.model.outcome import Kind, Reason
from oncebox.processing.routing import select_batch
from support.plans import ERROR, cut_ids, ids, kinds, resumed, stored


def test_a_batch_ends_in_each_lane_before_a_message_that_runs_separately() -> None:
    assert cut_ids() == []
    assert cut_ids(
        stored("1", 1, lane=7),
        stored("2", 2, lane=7),
        stored("failed", 3, lane=7, attempts=1),
        stored("4", 4, lane=7),
        stored("5", 5, lane=8),
        stored("suspect", 6, lane=8, isolated=True),
        stored("7", 7, lane=8),
        stored("8", 8, lane=9),
    ) == ["1", "2", "5", "8"]


@pytest.mark.parametrize("special", [{"attempts": 2}, {"isolated": True}])
def test_a_message_that_failed_or_may_crash_runs_separately(special: dict[str, Any]) -> None:
    assert cut_ids(stored("1", 1, **special), stored("2", 2), stored("3", 3, lane=1)) == ["1"]


def test_a_batch_never_contains_one_message_of_two_replays() -> None:
    """Its lane ends before the second: what follows must not overtake it."""
    rows = [
        stored("1", 1, lane=7, replay=1),
        stored("2", 2, lane=7, replay=1),
        stored("3", 3, lane=7, replay=2),
        stored("1", 4, lane=7, replay=2),
        stored("4", 5, lane=7, replay=2),
        stored("5", 6, lane=7),
        stored("6", 7, lane=8, replay=2),
        stored("7", 8, lane=8, replay=1),
        stored("6", 9, lane=8, replay=3),
        stored("8", 10, lane=8),
    ]
    assert [row.seq for row in select_batch(rows)] == [1, 2, 3, 7, 8]
    assert [row.seq for row in select_batch(rows[3:])] == [4, 5, 6, 7, 8]


def test_in_a_batch_a_message_that_was_left_out_may_come_in_another_lane() -> None:
    rows = [
        stored("failed", 1, lane=8, attempts=1),
        stored("1", 2, lane=7, replay=1),
        stored("suspect", 3, lane=7, replay=1, isolated=True),
        stored("2", 4, lane=7, replay=1),
        stored("2", 5, lane=9, replay=2),
    ]
    assert [row.seq for row in select_batch(rows[1:])] == [2, 5]
    assert [row.seq for row in select_batch(rows)] == [1]


def test_a_batch_distinguishes_messages_by_origin() -> None:
    """Live messages are not compared: each is unique by its claim."""
    other = msgspec.structs.replace(stored("1", 2, replay=1).message, origin="elsewhere")
    rows = [
        stored("1", 1, replay=1),
        msgspec.structs.replace(stored("1", 2, replay=1), message=other),
        stored("2", 3),
        stored("2", 4),
        stored("3", 5, replay=1),
    ]
    assert [row.seq for row in select_batch(rows)] == [1, 2, 3, 4, 5]


def test_stored_messages_run_in_key_order_and_keep_their_seq() -> None:
    made, runnable = resumed(stored("1", 11, key="b"), stored("2", 12, key="a"), stored("3", 13))
    assert ids(runnable) == ["3", "2", "1"]
    made.done(runnable)
    assert [(entry.seq, entry.ran) for entry in made.entries] == [
        (11, True),
        (12, True),
        (13, True),
    ]
    assert [outcome.attempts for outcome in made.outcomes] == [1, 1, 1]


def test_a_stored_message_that_runs_again_continues_its_attempt_count() -> None:
    made, (item,) = resumed(stored("1", 5, key="k", attempts=3))
    made.fail(item, ERROR)
    (outcome,) = made.outcomes
    assert (outcome.kind, outcome.attempts) == (Kind.failed, 4)
    assert outcome.retry_in == timedelta(seconds=8)
    made, (item,) = resumed(stored("1", 5, key="k", attempts=4))
    made.fail(item, ERROR)
    (entry,) = made.entries
    assert (entry.outcome.kind, entry.outcome.attempts, entry.blocks_key) == (Kind.dead, 5, True)
    made, (item,) = resumed(stored("1", 5, key="k", attempts=4))
    made.done([item])
    assert made.outcomes[0].attempts == 5


def test_a_stored_message_without_a_handler_gets_its_outcome_from_resume() -> None:
    made, runnable = resumed(
        stored("1", 1, key="a", type_="gone"),
        stored("2", 2, key="a"),
        stored("3", 3, key="b", version=2),
        stored("4", 4, key="b"),
        stored("5", 5, key="c", type_="ignored.x"),
        stored("6", 6, key="c"),
    )
    assert ids(runnable) == ["2", "6"]
    made.done(runnable)
    assert kinds(made) == ["dead", "done", "dead", "blocked", "ignored", "done"]
    assert [entry.blocks_key for entry in made.entries] == [False, False, True, False, False, False]
    assert made.outcomes[0].attempts == 0


def test_a_stored_message_that_failed_before_is_failed_without_a_run() -> None:
    made, runnable = resumed(stored("1", 1, key="k"), stored("2", 2, key="k"), failed=ERROR)
    assert runnable == []
    assert kinds(made) == ["failed", "blocked"]


def test_a_message_out_of_crashes_is_dead_and_blocks_its_key() -> None:
    made, (first, second) = resumed(
        stored("1", 1, key="k", isolated=True, crashes=5, attempts=1), stored("2", 2, key="k")
    )
    made.make_dead(first, Reason.crashed, ERROR)
    assert made.unblocked([second]) == []
    entry = made.entries[0]
    assert (entry.outcome.reason, entry.outcome.attempts, entry.blocks_key) == (
        Reason.crashed,
        1,
        True,
    )
    assert not entry.ran


def test_messages_out_of_time_block_what_follows_them() -> None:
    made, (first, second, third) = resumed(
        stored("1", 1, key="k"), stored("2", 2, key="k"), stored("3", 3, key="l")
    )
    made.fail(third, ERROR)
    made.store_isolated([first])
    assert made.unblocked([second]) == []
    assert kinds(made) == ["stored", "blocked", "failed"]
    assert (made.entries[0].ready, made.entries[0].isolated) == (True, True)
