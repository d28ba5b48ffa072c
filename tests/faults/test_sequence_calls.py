"""Whichever call to the database goes wrong while numbered messages come and are drained: once they
are delivered again, each took effect exactly once, in the order of numbers, and nothing waits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from itertools import count
from typing import Any

import pytest

from faults.injection import AnswerBroken, Conflict, CutAfter, CutBefore, Fault, Injector, Refused
from faults.worker_pool import SEEDS
from oncebox import CloudEvents, Delivery, Gaps, Inbox, Retry
from support.worlds import World, order

# A connection whose opening was answered by an injected error is left to the garbage collector.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.only(("sqlite3", "psycopg")),
]

PASSES = 10
"""How often is delivered and drained after a fault, until nothing is left."""

NUMBERS = range(1, 8)


class SequenceFaults:
    """A line of messages that comes again and again, while another call goes wrong each time."""

    def __init__(self, world: World, injector: Injector) -> None:
        self.world = world
        self.injector = injector
        self.inbox: Inbox = world.inbox(
            retry=Retry(initial_delay=timedelta(0), max_delay=timedelta(0)),
            identity=CloudEvents(sequence="number"),
            gaps=Gaps(then="hold"),
        )
        world.on(self.inbox, "order", self.handle)
        number = "bigserial" if world.is_postgres else "INTEGER"
        world.execute(f"CREATE TABLE ledger (n {number} PRIMARY KEY, id text)")

    def handle(self, payload: dict[str, Any], tx: Any) -> Iterator[Any]:
        yield tx.execute("INSERT INTO ledger (id) VALUES (:id)", id=payload["id"])

    def fail_every_call(self, fault: Fault, step: int) -> None:
        """Let each call fail in turn; or every n-th call, unless there is time for all."""
        for number in count(1, 1 if SEEDS else step):
            self.injector.arm(number, fault)
            with suppress(Exception):
                self.deliver(f"{number}/")
            self.injector.disarm()
            missed = self.injector.count < number
            self.deliver_until_all_is_well(f"{number}/")
            self.check(f"{number}/")
            if missed:
                assert number > 30
                return

    def deliver(self, round: str) -> None:
        """Early ones, a batch out of order, one that was missed, and one in order."""

        def messages(*numbers: int) -> list[Delivery]:
            return [order(f"{round}{n}", key=round, number=n) for n in numbers]

        self.inbox.receive(messages(2))
        self.inbox.process(messages(4, 6, 3))
        self.inbox.process(messages(1))
        self.inbox.drain()
        self.inbox.receive(messages(7, 5))
        self.inbox.drain()

    def deliver_until_all_is_well(self, round: str) -> None:
        """What comes after the fault; what it left behind may raise, but not forever."""
        for _ in range(PASSES):
            self.injector.query(
                "UPDATE oncebox_pending SET available_at = NULL "
                "WHERE available_at IS NOT NULL AND crashes > 0 RETURNING seq"
            )
            with suppress(Exception):
                self.deliver(round)
                if not self.injector.query("SELECT 1 FROM oncebox_pending"):
                    return
        self.deliver(round)

    def check(self, round: str) -> None:
        ran = self.injector.query("SELECT id FROM ledger WHERE id LIKE %s ORDER BY n", f"{round}%")
        assert [id for (id,) in ran] == [f"{round}{n}" for n in NUMBERS]
        assert self.injector.query("SELECT message_id FROM oncebox_pending") == [], round
        assert self.injector.query("SELECT message_id FROM oncebox_awaiting_sequence") == [], round
        assert self.injector.query("SELECT message_id, reason FROM oncebox_dead_letter") == [], (
            round
        )
        waiting = "SELECT key FROM oncebox_sequence WHERE waiting_since IS NOT NULL OR next <> 8"
        assert self.injector.query(waiting) == [], round


@pytest.fixture
def faults(world: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[SequenceFaults]:
    injector = Injector(world, monkeypatch)
    yield SequenceFaults(world, injector)
    injector.close()


def test_an_error_at_any_call_neither_loses_nor_repeats_a_sequence_number(
    faults: SequenceFaults,
) -> None:
    faults.fail_every_call(Refused(), step=5)


@pytest.mark.slow
def test_an_error_after_any_call_neither_loses_nor_repeats_a_sequence_number(
    faults: SequenceFaults,
) -> None:
    faults.fail_every_call(AnswerBroken(), step=4)


@pytest.mark.slow
def test_a_conflict_at_any_call_neither_loses_nor_repeats_a_sequence_number(
    faults: SequenceFaults,
) -> None:
    faults.fail_every_call(Conflict(), step=5)


@pytest.mark.slow
@pytest.mark.only(("psycopg",))
@pytest.mark.parametrize("fault", [CutBefore(), CutAfter()], ids=["before", "after"])
def test_a_connection_lost_at_any_call_neither_loses_nor_repeats_a_sequence_number(
    faults: SequenceFaults, fault: Fault
) -> None:
    faults.fail_every_call(fault, step=12)
