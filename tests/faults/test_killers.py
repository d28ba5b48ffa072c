"""A message that kills its process ends as a dead letter, and all others are done."""

from __future__ import annotations

from typing import Any

import pytest

from faults.killer_worker import delivery
from faults.staff import SEEDS, Member, Staff
from oncebox.ordering import lane

pytestmark = [pytest.mark.crash, pytest.mark.only(("psycopg", "sqlite3"))]

WORKERS = (1, 4)
KILLERS = [
    delivery("abort", "x", moods=["abort"]),
    delivery("oom", moods=["out of memory"]),
]
POISON = [delivery("poison", "p", type="poison")]
BEHIND = delivery("behind", "x")


def innocents(number: int = 12) -> list[dict[str, Any]]:
    return [delivery(f"m{n}", f"k{n % 5}" if n % 4 else None) for n in range(number)]


def among(killers: list[dict[str, Any]], others: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The killers, each in the midst of others."""
    mixed = list(others)
    for number, killer in enumerate(killers):
        mixed.insert(3 + 5 * number, killer)
    return mixed


def check_killed(staff: Staff, killers: list[dict[str, Any]]) -> None:
    """The killers are dead, and nothing else is."""
    assert {(letter.message_id, letter.state, letter.reason) for letter in staff.letters()} == {
        (killer["id"], "dead", "killed its process") for killer in killers
    }


def bury_killers(staff: Staff) -> None:
    """What an operator does, so that their keys go on."""
    with staff.inbox() as inbox:
        inbox.dead.discard(reason="killed its process", why="mended")


# -- stored ---------------------------------------------------------------------------------------


@pytest.mark.only(("psycopg", "sqlite3", "sqlalchemy-pysqlite"))
def test_stored_killers_end_dead_and_all_others_are_done(staff: Staff) -> None:
    staff.in_hurry = True
    others = innocents()
    staff.receive([*among(KILLERS, others), BEHIND])
    staff.hire("drain")
    staff.work()
    check_killed(staff, KILLERS)
    staff.check_done(others)
    bury_killers(staff)
    staff.work()
    staff.check_done([*others, BEHIND])


def test_stored_killers_end_dead_among_four_workers(staff: Staff) -> None:
    others = innocents()
    staff.receive(among(KILLERS, others))
    staff.hire("drain", 4)
    staff.work()
    check_killed(staff, KILLERS)
    staff.check_done(others)


def test_what_kills_while_it_is_decoded_ends_dead_too(staff: Staff) -> None:
    staff.in_hurry = True
    others = innocents()
    staff.receive(among(POISON, others))
    staff.hire("drain")
    staff.work()
    check_killed(staff, POISON)
    staff.check_done(others)


# -- inline ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("consumers", WORKERS)
def test_killers_that_are_delivered_again_end_dead_and_all_others_are_done(
    staff: Staff, consumers: int
) -> None:
    staff.in_hurry = True
    others = innocents(12 * consumers)
    killers = [*KILLERS, *POISON]
    queue = among(killers, others)
    for share in shares(queue, consumers):
        staff.hire("consume", deliveries=share, batch=5)
    staff.hire("drain")
    staff.work()
    check_killed(staff, killers)
    staff.check_done(others)


def shares(queue: list[dict[str, Any]], number: int) -> list[list[dict[str, Any]]]:
    """The partitions of a queue, by key."""
    parts: list[list[dict[str, Any]]] = [[] for _ in range(number)]
    for one in queue:
        parts[lane(one["key"] or one["id"]) % number].append(one)
    return parts


# -- too slow -------------------------------------------------------------------------------------


@pytest.mark.only(("psycopg",))
def test_a_handler_that_outlasts_its_transaction_ends_dead_and_its_worker_lives(
    staff: Staff,
) -> None:
    if staff.server_version() < 17:
        pytest.skip("before PostgreSQL 17 only another worker can end a transaction")
    others = run_a_slow_message(staff, 1, max_attempts=1)
    (letter,) = staff.letters()
    assert (letter.message_id, letter.reason) == ("slow", "out of attempts")
    assert letter.attempts >= 1
    assert letter.error is not None
    assert "transaction_timeout" in letter.error
    staff.check_done(others)


@pytest.mark.only(("psycopg",))
def test_a_handler_that_outlasts_its_transaction_ends_dead_among_four_workers(
    staff: Staff,
) -> None:
    others = run_a_slow_message(staff, 4, max_attempts=2)
    # Whether it is counted as slow or as a killer depends on who looks first: its own worker, or
    # one that cannot know why its time is over.
    (letter,) = staff.letters()
    assert letter.message_id == "slow"
    assert letter.reason in ("out of attempts", "killed its process")
    assert letter.attempts + letter.deaths >= 2
    staff.check_done(others)


def run_a_slow_message(staff: Staff, workers: int, **details: Any) -> list[dict[str, Any]]:
    """Returns those that are not slow."""
    others, slow = innocents(), delivery("slow", "s", moods=["hang"])
    staff.receive(among([slow], others))
    # Before 17 the time is given in full seconds, and peers do not look all the time.
    hang = 1.5 if staff.server_version() >= 17 else 3.5
    staff.hire("drain", workers, hang=hang, **details)
    staff.work()
    assert staff.dead == []
    return others


@pytest.mark.only(("sqlite3",))
@pytest.mark.parametrize("workers", WORKERS if SEEDS else [1])
def test_a_worker_that_hangs_is_killed_by_its_supervisor_and_its_message_ends_dead(
    staff: Staff, workers: int
) -> None:
    staff.is_strict = True
    others, stuck = innocents(), delivery("stuck", "s", moods=["hang"])
    staff.receive(among([stuck], others))
    staff.hire("drain", workers, hang=3600)
    staff.work()
    check_killed(staff, [stuck])
    staff.check_done(others)


# -- the brake ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_where_every_message_kills_the_drain_slows_down_and_says_so(staff: Staff) -> None:
    """Six killers: one more than what the drain takes for an accident."""
    messages = [delivery(f"m{n}", moods=["abort"]) for n in range(6)]
    staff.receive(messages)
    staff.hire("drain", max_attempts=10)
    staff.work_until(lambda: sum(map(complaints, staff.dead)) == 2, "the drain never complains")
    first = next(n for n, member in enumerate(staff.dead) if complaints(member))
    # From there on, every worker has said so before it ran a suspect; and once, for all that it
    # put off meanwhile.
    assert [complaints(member) for member in staff.dead[first:]] == [1, 1]
    staff.mend()
    staff.work()
    assert staff.letters() == []
    staff.check_done(messages)


def complaints(member: Member) -> int:
    """How often a worker said that it slows down."""
    return member.log().count("the drain slows down")
