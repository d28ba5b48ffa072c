"""A drain is killed or suspended at any point: every effect is there once, in the order of its
key, and no innocent is a dead letter."""

from __future__ import annotations

import random
import signal
from typing import Any

import pytest

from faults.crashing_worker import ALONE_POINTS, FEEDING_POINTS, UNIT_POINTS, delivery
from faults.worker_pool import SEEDS, WorkerPool
from support.services import wait_until

pytestmark = [pytest.mark.crash, pytest.mark.only(("psycopg", "sqlite3"), quick=["psycopg"])]

MESSAGES = [delivery(f"m{n}", f"k{n % 3}" if n % 4 else None) for n in range(8)]
RISKY = [{**message, "redelivered": True} for message in MESSAGES]
"""Each of these runs isolated."""


# -- kill -9 at named points ----------------------------------------------------------------------


@pytest.mark.parametrize("point", UNIT_POINTS)
def test_a_drain_killed_at_this_point_of_a_batch_loses_nothing_and_repeats_nothing(
    pool: WorkerPool, point: str
) -> None:
    drain_and_die(pool, MESSAGES, point)


@pytest.mark.parametrize("point", ALONE_POINTS)
def test_a_drain_killed_at_this_point_of_an_isolated_run_loses_nothing_and_repeats_nothing(
    pool: WorkerPool, point: str
) -> None:
    drain_and_die(pool, RISKY, point)


def drain_and_die(pool: WorkerPool, messages: list[dict[str, Any]], point: str) -> None:
    pool.receive(messages)
    (member,) = pool.hire("drain once", point=point, batch=3)
    wait_until(lambda: member.end() is not None, "the drain does not die")
    assert member.end() == -signal.SIGKILL, member.log()
    assert len(pool.ledger()) < len(messages)  # it died in its first unit
    with pool.inbox() as inbox:

        def is_drained() -> bool:
            pool.wake()
            inbox.drain()
            return not pool.unfinished()

        wait_until(is_drained, "what the dead left is not finished")
    assert pool.letters() == []
    pool.check_done(messages)


@pytest.mark.parametrize("point", FEEDING_POINTS)
def test_a_drain_killed_at_this_point_of_a_replay_runs_each_message_once_more(
    pool: WorkerPool, point: str
) -> None:
    pool.receive(MESSAGES)
    with pool.inbox() as inbox:
        inbox.drain()
        inbox.replays.start("again", type="order", why="a test")
        (member,) = pool.hire("drain once", point=point, batch=3, feed=2)
        wait_until(lambda: member.end() is not None, "the drain does not die")
        assert member.end() == -signal.SIGKILL, member.log()
        assert not inbox.replays.get("again").is_over

        def is_over() -> bool:
            pool.wake()
            inbox.drain()
            return inbox.replays.get("again").is_over

        wait_until(is_over, "what the dead left is not finished")
        assert inbox.replays.get("again").done == len(MESSAGES)
    assert pool.letters() == []
    pool.check_done([*MESSAGES, *MESSAGES])


# -- kill -9 at random ----------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(1, SEEDS + 1) if SEEDS else [1])
def test_workers_killed_from_outside_make_no_dead_letters(pool: WorkerPool, seed: int) -> None:
    kills, chance = 50 if SEEDS else 12, random.Random(seed)
    messages = [delivery(f"m{n}", f"k{n % 17}" if n % 4 else None) for n in range(kills * 10)]
    pool.receive(messages)
    pool.hire("drain", 2, max_attempts=3, pace=0.005)
    for _ in range(kills):
        enough = len(pool.ledger()) + chance.randint(1, 5)
        pool.work_until(lambda: len(pool.ledger()) >= enough, "nothing is done")  # noqa: B023
        victim = chance.choice(pool.members)
        victim.send(signal.SIGKILL)
        wait_until(lambda: victim.end() is not None, "a worker survives")  # noqa: B023
    pool.work()
    assert len(pool.dead) == kills
    assert pool.letters() == []
    pool.check_done(messages)


def test_workers_killed_from_outside_do_not_stop_a_replay(pool: WorkerPool) -> None:
    kills, chance = 5, random.Random(1)
    messages = [delivery(f"m{n}", f"k{n % 7}" if n % 4 else None) for n in range(60)]
    pool.receive(messages)
    with pool.inbox() as inbox:
        inbox.drain()
        inbox.replays.start("again", type="order", why="a test")
        pool.hire("drain", 2, max_attempts=3, pace=0.005, feed=4)
        for _ in range(kills):
            enough = len(pool.ledger()) + chance.randint(1, 5)
            pool.work_until(lambda: len(pool.ledger()) >= enough, "nothing is done")  # noqa: B023
            victim = chance.choice(pool.members)
            victim.send(signal.SIGKILL)
            wait_until(lambda: victim.end() is not None, "a worker survives")  # noqa: B023
        pool.work_until(lambda: inbox.replays.get("again").is_over, "the replay does not end")
        assert inbox.replays.get("again").done == len(messages)
    assert len(pool.dead) == kills
    assert pool.letters() == []
    pool.check_done([*messages, *messages])


def test_only_consecutive_crashes_make_a_dead_letter(pool: WorkerPool) -> None:
    """It crashes in a batch, then twice isolated, one less than the limit; and again."""
    pool.in_hurry = True
    die = "out of memory"
    unlucky = delivery("unlucky", "k", moods=[die, die, die, "raise", die, die, "well"])
    messages = [unlucky, delivery("next", "k")]
    pool.receive(messages)
    pool.hire("drain", max_attempts=3)
    pool.work()
    assert len(pool.dead) == 5
    assert pool.letters() == []
    pool.check_done(messages)


# -- SIGSTOP --------------------------------------------------------------------------------------

# In a handler that has read something the session is idle; elsewhere a pipeline keeps it active.
BATCH_STOPS = UNIT_POINTS if SEEDS else ("after remove", "mid handler")
ALONE_STOPS = ALONE_POINTS if SEEDS else ("after take alone",)


@pytest.mark.only(("psycopg",))
@pytest.mark.parametrize("point", BATCH_STOPS)
def test_a_drain_suspended_in_its_batch_commits_nothing_when_it_resumes(
    pool: WorkerPool, point: str
) -> None:
    stop_and_resume(pool, MESSAGES, point)


@pytest.mark.only(("psycopg",))
@pytest.mark.parametrize("point", ALONE_STOPS)
def test_a_drain_suspended_in_an_isolated_run_commits_nothing_when_it_resumes(
    pool: WorkerPool, point: str
) -> None:
    stop_and_resume(pool, RISKY, point)


def test_a_drain_suspended_before_an_isolated_run_is_overtaken_and_gives_up_the_message(
    pool: WorkerPool,
) -> None:
    """Its crash is recorded, it has no lock, and when it resumes its message is done."""
    stop_and_resume(pool, RISKY, "after commit 1")


def stop_and_resume(pool: WorkerPool, messages: list[dict[str, Any]], point: str) -> None:
    pool.receive(messages)
    (sleeper,) = pool.hire("drain", point=point, signal=signal.SIGSTOP)
    wait_until(sleeper.is_stopped, "the drain does not stop")
    ahead = [id for id, _, _ in pool.ledger()]  # stopped after its commit, that stays
    pool.hire("drain")
    pool.work()
    sleeper.send(signal.SIGCONT)
    sleeper.send(signal.SIGTERM)
    pool.work_until(lambda: sleeper.end() is not None, "the drain does not end")
    assert sleeper.end() == 0, sleeper.log()
    assert [id for id, _, pid in pool.ledger() if pid == sleeper.pid] == ahead
    assert pool.dead == []
    assert pool.letters() == []
    pool.check_done(messages)
