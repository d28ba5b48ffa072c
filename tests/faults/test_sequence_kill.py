"""Consumers of messages with sequence numbers are killed: each takes effect once, in order."""

from __future__ import annotations

import random
import signal
from typing import Any

import pytest

from faults.crashing_worker import delivery
from faults.worker_pool import SEEDS, WorkerPool
from support.services import read_lines, wait_until

pytestmark = [pytest.mark.crash, pytest.mark.only(("psycopg", "sqlite3"))]

KEYS = 5


@pytest.mark.parametrize("seed", range(1, SEEDS + 1) if SEEDS else [1])
def test_messages_with_sequence_numbers_survive_crashes_of_their_consumers(
    pool: WorkerPool, seed: int
) -> None:
    kills, chance = 40 if SEEDS else 8, random.Random(seed)
    messages = [numbered(key, n) for n in range(1, kills * 6) for key in range(KEYS)]
    shuffled = sorted(messages, key=lambda one: one["number"] + chance.uniform(0, 10))
    for share in (shuffled[::2], shuffled[1::2]):
        pool.hire("receive", batch=4, sequenced=True, deliveries=share)
    while pool.members and len(pool.dead) < kills:
        wait_for_progress(pool, chance.randint(4, 12))
        if not pool.members:
            break
        victim = chance.choice(pool.members)
        victim.send(signal.SIGKILL)
        wait_until(lambda: victim.end() is not None, "a worker survives")  # noqa: B023
        pool.look_after()
    pool.work_until(lambda: not pool.members, "not everything is received")
    with pool.inbox(sequenced=True) as inbox:

        def is_drained() -> bool:
            pool.wake()
            inbox.drain()
            return not pool.unfinished()

        wait_until(is_drained, "what the dead left is not finished")
        assert inbox.gaps.find() == []
    assert len(pool.dead) > kills / 2
    assert pool.letters() == []
    pool.check_done(messages)


def numbered(key: int, number: int) -> dict[str, Any]:
    return {**delivery(f"k{key}-{number}", f"k{key}"), "number": number}


def wait_for_progress(pool: WorkerPool, steps: int) -> None:
    """Wait until this many more messages were handed out, acked or took effect."""

    def progress() -> int:
        return len(read_lines(pool.folder / "journal")) + len(pool.ledger())

    enough = progress() + steps
    pool.work_until(lambda: not pool.members or progress() >= enough, "nothing is done")
