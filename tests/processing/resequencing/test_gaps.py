"""Gaps are found, and skipped by a worker or an operator."""

from __future__ import annotations

import logging
import threading
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest

import oncebox.operations.gaps
from oncebox import Gaps, Worker
from oncebox.errors import ConfigurationError, NotFound
from oncebox.operations.gaps import skip_gap
from oncebox.storage.drivers.transactions import run_transaction
from oncebox.storage.records import AuditEntry
from oncebox.storage.steps import run
from support.internals import database_of, store_of
from support.sequences import SequenceHarness, age_gaps, awaiting_sequence, make_keeper, step, steps
from support.tables import audit_entries, dead_letters
from support.worlds import BOTH, SOME, World


@pytest.mark.only(SOME, quick=BOTH)
def test_a_missing_sequence_number_is_skipped_after_the_limit(
    world: World, harness: SequenceHarness, caplog: pytest.LogCaptureFixture
) -> None:
    harness.process(*steps(3, 4, 7))
    age_gaps(world, 30)
    assert harness.drain() == {}, "it may still come"
    age_gaps(world, 31)
    assert harness.drain() == {"done": 2}
    assert harness.ran() == ["k3", "k4"]
    assert audit_entries(world) == [
        ("skip", "oncebox", "did not arrive within 60 seconds", None, "key 'k': numbers 1 to 2")
    ]
    assert (
        "key 'k': numbers 1 to 2 did not arrive within 60 s: skipped, the later messages of the "
        "key run"
    ) in caplog.text
    assert harness.missing() == [("k", "", 5, 7, 1)], "the next gap gets its own time"
    assert harness.drain() == {}
    assert harness.process(*steps(2, 5)) == ["quarantined", "done"]
    assert dead_letters(world)[0][2] == "late_sequence"
    age_gaps(world, 61)
    assert harness.drain() == {"done": 1}
    assert harness.ran() == ["k5", "k7"]


@pytest.mark.only(BOTH)
def test_the_limit_of_a_gap_begins_again_when_its_key_advances(
    world: World, harness: SequenceHarness
) -> None:
    harness.process(*steps(5, 7))
    age_gaps(world, 59)
    harness.process(*steps(8))
    age_gaps(world, 59)
    harness.process(*steps(1, 2))
    (gap,) = harness.gaps("find")
    assert gap.next == 3
    assert datetime.now(UTC) - gap.waiting_since < timedelta(seconds=50)
    assert harness.drain() == {}
    harness.process(*steps(9, 10))
    age_gaps(world, 61)
    harness.process(*steps(11))
    assert harness.drain() == {"done": 1}, "one more that waits gives it no time"
    assert harness.ran() == ["k1", "k2", "k5"]


@pytest.mark.only(BOTH)
def test_a_worker_skips_a_gap_after_the_limit(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oncebox.operations.gaps, "CHECK_INTERVAL", 0.01)
    harness = SequenceHarness(world, gaps=Gaps(limit=timedelta(seconds=0.2)))
    harness.process(*steps(2))
    drainer = Worker(harness.inbox, poll=0.05)
    drainer.on_beat = lambda waits: drainer.stop() if harness.runs else None
    drainer.run()
    assert harness.ran() == ["k2"]
    assert harness.process(*steps(1)) == ["quarantined"]


@pytest.mark.only(BOTH)
def test_a_gap_can_wait_for_an_operator(world: World, caplog: pytest.LogCaptureFixture) -> None:
    harness = SequenceHarness(world, gaps=Gaps(then="hold"))
    harness.process(*steps(3))
    age_gaps(world, 3600)
    keeper = make_keeper(harness, hurry=True)
    for _ in range(3):
        assert run(keeper.step()) is False
        keeper._next_check_at = 0
    told = [r.message for r in caplog.records if "did not arrive" in r.message]
    assert told == [
        "billing: key 'k': numbers 1 to 2 did not arrive, the key waits (Gaps(then=\"hold\")); "
        "skip it with `oncebox gaps APP --key KEY --skip`"
    ]
    assert caplog.records[-1].levelno == logging.ERROR
    assert awaiting_sequence(world) == ["k3"]
    assert audit_entries(world) == []
    harness.process(*steps(1, 2))
    assert harness.drain() == {"done": 3}
    assert harness.ran() == ["k1", "k2", "k3"]


@pytest.mark.only(BOTH)
def test_a_gap_that_is_too_long_is_not_skipped_and_does_not_hide_other_gaps(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """A number that is far off is rather wrong: those before it are not given up."""
    harness = SequenceHarness(world, gaps=Gaps(longest=5))
    far = [step(7, f"far {n}") for n in range(oncebox.operations.gaps.AT_ONCE + 3)]
    harness.process(*far)
    age_gaps(world, 600)
    harness.process(*steps(6))
    age_gaps(world, 61)
    assert harness.drain() == {"done": 1}
    assert harness.ran() == ["k6"]
    assert "numbers are missing" in caplog.text
    assert len(awaiting_sequence(world)) == len(far)
    harness.gaps("skip", "far 0", why="it is right after all")
    assert harness.drain() == {"done": 1}


@pytest.mark.only(BOTH)
def test_more_gaps_are_skipped_than_are_read_at_once(
    world: World, harness: SequenceHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oncebox.operations.gaps, "AT_ONCE", 2)
    harness.process(*(step(2, f"key {n}") for n in range(5)))
    age_gaps(world, 61)
    assert harness.drain() == {"done": 5}
    assert len(audit_entries(world)) == 5


@pytest.mark.only(BOTH)
def test_with_any_first_sequence_number_the_lowest_runs_first(world: World) -> None:
    harness = SequenceHarness(world, gaps=Gaps(first=None, longest=1))
    assert harness.process(*steps(42, 44, 43)) == ["blocked"] * 3
    assert harness.missing() == [("k", "", None, 42, 3)]
    (detail,) = harness.message("k43")
    assert detail.waits == "for earlier sequence numbers of its key; its own is 43"
    assert harness.drain() == {}
    age_gaps(world, 61)
    assert harness.drain() == {"done": 3}
    assert harness.ran() == ["k42", "k43", "k44"]
    assert audit_entries(world)[0][4] == "key 'k': all numbers before 42"
    assert harness.process(*steps(41, 45)) == ["quarantined", "done"]
    assert harness.process(*steps(1, key="l")) == ["blocked"], "it is not known to be the first"


@pytest.mark.only(BOTH)
def test_the_first_sequence_number_is_set_by_the_policy(world: World) -> None:
    harness = SequenceHarness(world, gaps=Gaps(first=0))
    assert harness.process(*steps(0, 1)) == ["done", "done"]
    assert harness.process(*steps(1, key="l")) == ["blocked"]


@pytest.mark.only(BOTH)
def test_gaps_are_found_the_oldest_first(world: World, harness: SequenceHarness) -> None:
    harness.process(step(1), step(4), step(3, "l"), step(9, "l"))
    age_gaps(world, 5, key="l")
    assert harness.missing() == [("l", "", 1, 3, 2), ("k", "", 2, 4, 1)]
    assert harness.missing(limit=1) == [("l", "", 1, 3, 2)]
    assert harness.missing(key="k") == [("k", "", 2, 4, 1)]
    assert harness.missing(key="m") == []
    (gap,) = harness.gaps("find", key="k")
    assert abs(datetime.now(UTC) - gap.waiting_since) < timedelta(hours=1)


@pytest.mark.only(SOME, quick=BOTH)
def test_an_operator_skips_the_gap_of_a_key(world: World, harness: SequenceHarness) -> None:
    harness.process(step(1), step(4), step(5), step(7), step(2, "l"))
    (skipped,) = harness.gaps("skip", "k", why="the producer lost it", by="ada")
    assert (skipped.key, skipped.next, skipped.lowest) == ("k", 2, 4)
    assert audit_entries(world) == [
        ("skip", "ada", "the producer lost it", None, "key 'k': numbers 2 to 3")
    ]
    assert harness.drain() == {"done": 2}
    assert harness.missing() == [("l", "", 1, 2, 1), ("k", "", 6, 7, 1)]
    assert harness.process(*steps(3, 6)) == ["quarantined", "stored"]
    harness.drain()
    assert harness.ran() == ["k1", "k4", "k5", "k6", "k7"]
    with pytest.raises(NotFound, match="key 'k' has no missing sequence number"):
        harness.gaps("skip", "k", why="again")
    with pytest.raises(ConfigurationError, match="is missing: the audit log"):
        harness.gaps("skip", "l", why=" ")
    assert len(audit_entries(world)) == 1


@pytest.mark.only(("psycopg",))
def test_the_gap_of_a_locked_key_is_not_skipped(world: World, harness: SequenceHarness) -> None:
    harness.process(*steps(2))
    age_gaps(world, 61)
    began, go_on = threading.Event(), threading.Event()

    def slow(payload: dict[str, Any]) -> None:
        began.set()
        assert go_on.wait(30)

    world.on(harness.inbox, "slow", slow)
    thread = threading.Thread(target=harness.process, args=[step(1, type="slow", era="other")])
    thread.start()
    try:
        assert began.wait(30)
        assert harness.gaps("skip", "k", why="now") == []
        assert harness.drain() == {}
        assert audit_entries(world) == []
    finally:
        go_on.set()
        thread.join()
    assert len(harness.gaps("skip", "k", why="now")) == 1


@pytest.mark.only(BOTH)
def test_a_gap_that_changed_before_the_lock_is_not_skipped(
    world: World, harness: SequenceHarness
) -> None:
    """Between the look and the lock of the key the number came, and another one is missing."""
    harness.process(*steps(2))
    (gap,) = harness.gaps("find")
    harness.process(*steps(1, 4))
    inbox = harness.inbox
    skip = partial(
        skip_gap,
        store=store_of(inbox),
        consumer=inbox.name,
        gap=gap,
        audit=AuditEntry("skip", "x", "y"),
    )
    assert run(run_transaction(database_of(inbox), skip)) is False
    assert harness.missing() == [("k", "", 3, 4, 1)]
    assert audit_entries(world) == []
