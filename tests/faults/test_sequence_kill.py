"""Whoever brings numbered messages and is killed: each takes effect once, in order."""

from __future__ import annotations

import random
import signal
from typing import Any

import pytest

from faults.killer_worker import delivery
from faults.staff import SEEDS, Staff
from services import read_lines, wait_until

pytestmark = [pytest.mark.crash, pytest.mark.only(("psycopg", "sqlite3"))]

KEYS = 5


@pytest.mark.parametrize("seed", range(1, SEEDS + 1) if SEEDS else [1])
def test_numbered_messages_survive_the_death_of_those_who_bring_them(
    staff: Staff, seed: int
) -> None:
    kills, chance = 40 if SEEDS else 8, random.Random(seed)
    messages = [numbered(key, n) for n in range(1, kills * 6) for key in range(KEYS)]
    shuffled = sorted(messages, key=lambda one: one["number"] + chance.uniform(0, 10))
    for share in (shuffled[::2], shuffled[1::2]):
        staff.hire("receive", batch=4, sequenced=True, deliveries=share)
    while staff.members and len(staff.dead) < kills:
        wait_for_progress(staff, chance.randint(4, 12))
        if not staff.members:
            break
        victim = chance.choice(staff.members)
        victim.send(signal.SIGKILL)
        wait_until(lambda: victim.end() is not None, "a worker survives")  # noqa: B023
        staff.look_after()
    staff.work_until(lambda: not staff.members, "not everything is received")
    with staff.inbox(sequenced=True) as inbox:

        def is_drained() -> bool:
            staff.wake()
            inbox.drain()
            return not staff.unfinished()

        wait_until(is_drained, "what the dead left is not finished")
        assert inbox.gaps.find() == []
    assert len(staff.dead) > kills / 2
    assert staff.letters() == []
    staff.check_done(messages)


def numbered(key: int, number: int) -> dict[str, Any]:
    return {**delivery(f"k{key}-{number}", f"k{key}"), "number": number}


def wait_for_progress(staff: Staff, steps: int) -> None:
    """Until so many more messages were handed out, were settled or took effect."""

    def progress() -> int:
        return len(read_lines(staff.folder / "journal")) + len(staff.ledger())

    enough = progress() + steps
    staff.work_until(lambda: not staff.members or progress() >= enough, "nothing is done")
