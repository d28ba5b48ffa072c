"""A message that crashes its process ends as a dead letter, and all others are done."""

from __future__ import annotations

from typing import Any

import pytest

from faults.crashing_worker import delivery
from faults.worker_pool import SEEDS, PoolWorker, WorkerPool
from oncebox.model.ordering import lane

pytestmark = [pytest.mark.crash, pytest.mark.only(("psycopg", "sqlite3"))]

WORKERS = (1, 4)
CRASHING = [
    delivery("abort", "x", moods=["abort"]),
    delivery("oom", moods=["out of memory"]),
]
POISON = [delivery("poison", "p", type="poison")]
BEHIND = delivery("behind", "x")


def innocents(number: int = 12) -> list[dict[str, Any]]:
    return [delivery(f"m{n}", f"k{n % 5}" if n % 4 else None) for n in range(number)]


def among(crashing: list[dict[str, Any]], others: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The crashing messages, each between others."""
    mixed = list(others)
    for number, message in enumerate(crashing):
        mixed.insert(3 + 5 * number, message)
    return mixed


def check_crashed(pool: WorkerPool, crashing: list[dict[str, Any]]) -> None:
    """The crashing messages are dead, and nothing else is."""
    assert {(letter.message_id, letter.state, letter.reason) for letter in pool.letters()} == {
        (message["id"], "dead", "crashed") for message in crashing
    }


def bury_crashing(pool: WorkerPool) -> None:
    """Discard the dead letters as an operator does, so that their keys continue."""
    with pool.inbox() as inbox:
        inbox.dead_letters.discard(reason="crashed", why="fixed")


# -- stored ---------------------------------------------------------------------------------------


@pytest.mark.only(("psycopg", "sqlite3", "sqlalchemy-pysqlite"))
def test_stored_crashing_messages_end_dead_and_all_others_are_done(pool: WorkerPool) -> None:
    pool.in_hurry = True
    others = innocents()
    pool.receive([*among(CRASHING, others), BEHIND])
    pool.hire("drain")
    pool.work()
    check_crashed(pool, CRASHING)
    pool.check_done(others)
    bury_crashing(pool)
    pool.work()
    pool.check_done([*others, BEHIND])


def test_stored_crashing_messages_end_dead_among_four_workers(pool: WorkerPool) -> None:
    others = innocents()
    pool.receive(among(CRASHING, others))
    pool.hire("drain", 4)
    pool.work()
    check_crashed(pool, CRASHING)
    pool.check_done(others)


def test_a_message_that_crashes_its_decoder_ends_dead(pool: WorkerPool) -> None:
    pool.in_hurry = True
    others = innocents()
    pool.receive(among(POISON, others))
    pool.hire("drain")
    pool.work()
    check_crashed(pool, POISON)
    pool.check_done(others)


# -- inline ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("consumers", WORKERS)
def test_redelivered_crashing_messages_end_dead_and_all_others_are_done(
    pool: WorkerPool, consumers: int
) -> None:
    pool.in_hurry = True
    others = innocents(12 * consumers)
    crashing = [*CRASHING, *POISON]
    queue = among(crashing, others)
    for share in shares(queue, consumers):
        pool.hire("consume", deliveries=share, batch=5)
    pool.hire("drain")
    pool.work()
    check_crashed(pool, crashing)
    pool.check_done(others)


def shares(queue: list[dict[str, Any]], number: int) -> list[list[dict[str, Any]]]:
    """The partitions of a queue, by key."""
    parts: list[list[dict[str, Any]]] = [[] for _ in range(number)]
    for one in queue:
        parts[lane(one["key"] or one["id"]) % number].append(one)
    return parts


# -- too slow -------------------------------------------------------------------------------------


@pytest.mark.only(("psycopg",))
def test_a_message_that_exceeds_the_transaction_timeout_ends_dead_and_its_worker_survives(
    pool: WorkerPool,
) -> None:
    if pool.server_version() < 17:
        pytest.skip("before PostgreSQL 17 only another worker can end a transaction")
    others = run_a_slow_message(pool, 1, max_attempts=1)
    (letter,) = pool.letters()
    assert (letter.message_id, letter.reason) == ("slow", "out_of_attempts")
    assert letter.attempts >= 1
    assert letter.error is not None
    assert "transaction_timeout" in letter.error
    pool.check_done(others)


@pytest.mark.only(("psycopg",))
def test_a_message_that_exceeds_the_transaction_timeout_ends_dead_among_four_workers(
    pool: WorkerPool,
) -> None:
    others = run_a_slow_message(pool, 4, max_attempts=2)
    # Whether it counts as slow or as crashing depends on which process looks first: its worker, or
    # one that cannot know why its time is over.
    (letter,) = pool.letters()
    assert letter.message_id == "slow"
    assert letter.reason in ("out_of_attempts", "crashed")
    assert letter.attempts + letter.crashes >= 2
    pool.check_done(others)


def run_a_slow_message(pool: WorkerPool, workers: int, **details: Any) -> list[dict[str, Any]]:
    """Returns those that are not slow."""
    others, slow = innocents(), delivery("slow", "s", moods=["hang"])
    pool.receive(among([slow], others))
    # Before 17 the time is given in full seconds, and peers do not look all the time.
    hang = 1.5 if pool.server_version() >= 17 else 3.5
    pool.hire("drain", workers, hang=hang, **details)
    pool.work()
    assert pool.dead == []
    return others


@pytest.mark.only(("sqlite3",))
@pytest.mark.parametrize("workers", WORKERS if SEEDS else [1])
def test_a_worker_that_hangs_is_killed_by_its_supervisor_and_its_message_ends_dead(
    pool: WorkerPool, workers: int
) -> None:
    pool.is_strict = True
    others, stuck = innocents(), delivery("stuck", "s", moods=["hang"])
    pool.receive(among([stuck], others))
    pool.hire("drain", workers, hang=3600)
    pool.work()
    check_crashed(pool, [stuck])
    pool.check_done(others)


# -- the brake ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_drain_slows_down_and_logs_it_if_every_message_crashes(pool: WorkerPool) -> None:
    """Six crashing messages: one more than the drain tolerates without a delay."""
    messages = [delivery(f"m{n}", moods=["abort"]) for n in range(6)]
    pool.receive(messages)
    pool.hire("drain", max_attempts=10)
    pool.work_until(lambda: sum(map(complaints, pool.dead)) == 2, "the drain never complains")
    first = next(n for n, member in enumerate(pool.dead) if complaints(member))
    # From there on, every worker has said so before it ran a suspect; and once, for all that it
    # put off meanwhile.
    assert [complaints(member) for member in pool.dead[first:]] == [1, 1]
    pool.fix_handlers()
    pool.work()
    assert pool.letters() == []
    pool.check_done(messages)


def complaints(member: PoolWorker) -> int:
    """How often a worker said that it slows down."""
    return member.log().count("before it runs the next isolated message")
