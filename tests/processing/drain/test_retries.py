"""A message that failed is retried by its policy."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import pytest

from oncebox import Reject, Retry, RetryAfter
from support.inboxes import LATER, InboxHarness, keyed
from support.tables import attempts, dead_letters, make_retries_due
from support.worlds import BOTH, SOME, World, order


def test_a_failed_message_runs_again_and_its_followers_after_it(
    world: World, harness: InboxHarness
) -> None:
    harness.bad["1"] = ValueError("not yet")
    batch = [keyed("1"), keyed("2"), keyed("3", "other")]
    assert harness.process(*batch) == ["failed", "blocked", "done"]
    harness.bad.clear()
    assert harness.drain() == {"done": 2}
    assert world.effects() == ["1", "2", "3"]
    assert harness.runs[-2:] == ["1", "2"]
    assert world.pending() == []


@pytest.mark.only(SOME)
def test_a_message_that_keeps_failing_becomes_a_dead_letter(
    world: World, harness: InboxHarness
) -> None:
    harness.bad["1"] = ValueError("never")
    harness.receive(order("1"), order("2"))
    assert harness.drain() == {"done": 1, "failed": 2, "dead": 1}
    assert harness.ran().count("1") >= 3
    assert dead_letters(world) == [("1", "dead", "out_of_attempts", 3, "ValueError: never")]
    assert sorted(attempts(world)) == [
        ("1", 1, "failed"),
        ("1", 2, "failed"),
        ("1", 3, "dead"),
        ("2", 1, "done"),
    ]
    assert world.states() == {"1": "dead", "2": "done"}
    assert world.effects() == ["2"]


@pytest.mark.only(BOTH)
def test_attempts_inline_and_stored_are_counted_together(
    world: World, harness: InboxHarness
) -> None:
    harness.bad["1"] = ValueError("never")
    assert harness.process(order("1")) == ["failed"]
    assert harness.drain() == {"failed": 1, "dead": 1}
    assert [number for _, number, _ in attempts(world)] == [1, 2, 3]


@pytest.mark.only(BOTH)
def test_a_retry_waits_for_its_time(world: World) -> None:
    harness = InboxHarness(world, retry=LATER)
    harness.bad["1"] = ValueError("not yet")
    harness.receive(keyed("1"), keyed("2"))
    assert harness.drain() == {"failed": 1, "blocked": 1}
    harness.bad.clear()
    assert harness.drain() == {}
    assert world.pending() == [("1", 1, "retrying"), ("2", 0, "blocked")]
    make_retries_due(world)
    assert harness.drain() == {"done": 2}


@pytest.mark.only(BOTH)
def test_a_handler_has_a_retry_of_its_own(world: World, harness: InboxHarness) -> None:
    def fail(payload: Any) -> None:
        raise ValueError

    world.on(harness.inbox, "once", fail, retry=Retry(max_attempts=1))
    world.on(harness.inbox, "later", fail, retry=LATER)
    harness.receive(order("1", type="once"), order("2", type="later"))
    assert harness.drain() == {"dead": 1, "failed": 1}
    assert world.pending() == [("2", 1, "retrying")]
    assert [letter[0] for letter in dead_letters(world)] == ["1"]


@pytest.mark.only(BOTH)
def test_an_error_may_name_the_time_of_the_next_attempt(
    world: World, harness: InboxHarness
) -> None:
    harness.bad["1"] = RetryAfter(timedelta(hours=2))
    harness.receive(order("1"))
    assert harness.drain() == {"failed": 1}
    assert world.pending() == [("1", 1, "retrying")]
    time_of = "extract(epoch FROM available_at)" if world.is_postgres else "available_at / 1000000"
    ((due,),) = world.query(f"SELECT {time_of} FROM oncebox_pending")
    assert 7100 < float(due) - time.time() <= 7201


@pytest.mark.only(SOME)
def test_a_rejected_message_is_dead_at_once(world: World, harness: InboxHarness) -> None:
    harness.bad["1"] = Reject("no such customer")
    harness.receive(keyed("1"), keyed("2"))
    assert harness.drain() == {"dead": 1, "blocked": 1}
    assert dead_letters(world) == [("1", "dead", "rejected", 1, "Reject: no such customer")]


@pytest.mark.only(BOTH)
def test_dead_letters_of_one_error_have_one_fingerprint(
    world: World, harness: InboxHarness
) -> None:
    def reject(payload: Any) -> None:
        raise Reject(payload["id"])

    world.on(harness.inbox, "other", reject)
    harness.bad |= {id: Reject(id) for id in ("1", "2")}
    harness.receive(order("1"), order("2"), order("3", type="other"))
    harness.drain()
    prints = dict(world.query("SELECT message_id, fingerprint FROM oncebox_dead_letter"))
    assert prints["1"] == prints["2"]
    assert prints["3"] not in (None, prints["1"])
