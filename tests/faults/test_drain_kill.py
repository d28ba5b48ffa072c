"""Whoever kills or stops a drain, and wherever: every effect is there once, in the order of its
key, and no innocent is a dead letter."""

from __future__ import annotations

import random
import signal
from typing import Any

import pytest

from faults.killer_worker import ALONE_POINTS, FEEDING_POINTS, UNIT_POINTS, delivery
from faults.staff import SEEDS, Staff
from services import wait_until

pytestmark = [pytest.mark.crash, pytest.mark.only(("psycopg", "sqlite3"))]

MESSAGES = [delivery(f"m{n}", f"k{n % 3}" if n % 4 else None) for n in range(8)]
RISKY = [{**message, "redelivered": True} for message in MESSAGES]
"""Each of these runs alone."""


# -- kill -9 at named points ----------------------------------------------------------------------


@pytest.mark.parametrize("point", UNIT_POINTS)
def test_a_drain_killed_at_this_point_of_a_batch_loses_nothing_and_repeats_nothing(
    staff: Staff, point: str
) -> None:
    drain_and_die(staff, MESSAGES, point)


@pytest.mark.parametrize("point", ALONE_POINTS)
def test_a_drain_killed_at_this_point_of_a_run_alone_loses_nothing_and_repeats_nothing(
    staff: Staff, point: str
) -> None:
    drain_and_die(staff, RISKY, point)


def drain_and_die(staff: Staff, messages: list[dict[str, Any]], point: str) -> None:
    staff.receive(messages)
    (member,) = staff.hire("drain once", point=point, batch=3)
    wait_until(lambda: member.end() is not None, "the drain does not die")
    assert member.end() == -signal.SIGKILL, member.log()
    assert len(staff.ledger()) < len(messages)  # it died in its first unit
    with staff.inbox() as inbox:

        def is_drained() -> bool:
            staff.wake()
            inbox.drain()
            return not staff.unfinished()

        wait_until(is_drained, "what the dead left is not finished")
    assert staff.letters() == []
    staff.check_done(messages)


@pytest.mark.parametrize("point", FEEDING_POINTS)
def test_a_drain_killed_at_this_point_of_a_replay_runs_each_message_once_more(
    staff: Staff, point: str
) -> None:
    staff.receive(MESSAGES)
    with staff.inbox() as inbox:
        inbox.drain()
        inbox.replays.start("again", type="order", why="a test")
        (member,) = staff.hire("drain once", point=point, batch=3, feed=2)
        wait_until(lambda: member.end() is not None, "the drain does not die")
        assert member.end() == -signal.SIGKILL, member.log()
        assert not inbox.replays.get("again").is_over

        def is_over() -> bool:
            staff.wake()
            inbox.drain()
            return inbox.replays.get("again").is_over

        wait_until(is_over, "what the dead left is not finished")
        assert inbox.replays.get("again").done == len(MESSAGES)
    assert staff.letters() == []
    staff.check_done([*MESSAGES, *MESSAGES])


# -- kill -9 at random ----------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(1, SEEDS + 1) if SEEDS else [1])
def test_workers_killed_from_outside_make_no_dead_letters(staff: Staff, seed: int) -> None:
    kills, chance = 50 if SEEDS else 12, random.Random(seed)
    messages = [delivery(f"m{n}", f"k{n % 17}" if n % 4 else None) for n in range(kills * 10)]
    staff.receive(messages)
    staff.hire("drain", 2, max_attempts=3, pace=0.005)
    for _ in range(kills):
        enough = len(staff.ledger()) + chance.randint(1, 5)
        staff.work_until(lambda: len(staff.ledger()) >= enough, "nothing is done")  # noqa: B023
        victim = chance.choice(staff.members)
        victim.send(signal.SIGKILL)
        wait_until(lambda: victim.end() is not None, "a worker survives")  # noqa: B023
    staff.work()
    assert len(staff.dead) == kills
    assert staff.letters() == []
    staff.check_done(messages)


def test_workers_killed_from_outside_do_not_keep_a_replay_from_its_end(staff: Staff) -> None:
    kills, chance = 5, random.Random(1)
    messages = [delivery(f"m{n}", f"k{n % 7}" if n % 4 else None) for n in range(60)]
    staff.receive(messages)
    with staff.inbox() as inbox:
        inbox.drain()
        inbox.replays.start("again", type="order", why="a test")
        staff.hire("drain", 2, max_attempts=3, pace=0.005, feed=4)
        for _ in range(kills):
            enough = len(staff.ledger()) + chance.randint(1, 5)
            staff.work_until(lambda: len(staff.ledger()) >= enough, "nothing is done")  # noqa: B023
            victim = chance.choice(staff.members)
            victim.send(signal.SIGKILL)
            wait_until(lambda: victim.end() is not None, "a worker survives")  # noqa: B023
        staff.work_until(lambda: inbox.replays.get("again").is_over, "the replay does not end")
        assert inbox.replays.get("again").done == len(messages)
    assert len(staff.dead) == kills
    assert staff.letters() == []
    staff.check_done([*messages, *messages])


def test_only_deaths_in_a_row_make_a_dead_letter(staff: Staff) -> None:
    """It dies in a batch, then twice alone, which is one less than too often; and again."""
    staff.in_hurry = True
    die = "out of memory"
    unlucky = delivery("unlucky", "k", moods=[die, die, die, "raise", die, die, "well"])
    messages = [unlucky, delivery("next", "k")]
    staff.receive(messages)
    staff.hire("drain", max_attempts=3)
    staff.work()
    assert len(staff.dead) == 5
    assert staff.letters() == []
    staff.check_done(messages)


# -- SIGSTOP --------------------------------------------------------------------------------------

# In a handler that has read something the session is idle; elsewhere a pipeline keeps it active.
BATCH_STOPS = UNIT_POINTS if SEEDS else ("after remove", "mid handler")
ALONE_STOPS = ALONE_POINTS if SEEDS else ("after take alone",)


@pytest.mark.only(("psycopg",))
@pytest.mark.parametrize("point", BATCH_STOPS)
def test_a_drain_stopped_in_its_batch_commits_nothing_when_it_wakes_up(
    staff: Staff, point: str
) -> None:
    stop_and_resume(staff, MESSAGES, point)


@pytest.mark.only(("psycopg",))
@pytest.mark.parametrize("point", ALONE_STOPS)
def test_a_drain_stopped_in_a_run_alone_commits_nothing_when_it_wakes_up(
    staff: Staff, point: str
) -> None:
    stop_and_resume(staff, RISKY, point)


def test_a_drain_stopped_before_a_run_alone_is_overtaken_and_lets_go(staff: Staff) -> None:
    """Its death is recorded, it has no lock, and when it wakes up its message is done."""
    stop_and_resume(staff, RISKY, "after commit 1")


def stop_and_resume(staff: Staff, messages: list[dict[str, Any]], point: str) -> None:
    staff.receive(messages)
    (sleeper,) = staff.hire("drain", point=point, signal=signal.SIGSTOP)
    wait_until(sleeper.is_stopped, "the drain does not stop")
    ahead = [id for id, _, _ in staff.ledger()]  # stopped after its commit, that stays
    staff.hire("drain")
    staff.work()
    sleeper.send(signal.SIGCONT)
    sleeper.send(signal.SIGTERM)
    staff.work_until(lambda: sleeper.end() is not None, "the drain does not end")
    assert sleeper.end() == 0, sleeper.log()
    assert [id for id, _, pid in staff.ledger() if pid == sleeper.pid] == ahead
    assert staff.dead == []
    assert staff.letters() == []
    staff.check_done(messages)
