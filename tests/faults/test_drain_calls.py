"""Whichever call of a drain to the database goes wrong, and however: once it is drained again,
everything took effect exactly once, in the order of its keys, and nothing is left."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from itertools import count
from typing import Any

import msgspec
import pytest

from faults.injection import AnswerBroken, Conflict, CutAfter, CutBefore, Fault, Injector, Refused
from faults.worker_pool import SEEDS
from oncebox import Delivery, Inbox, Retry
from support.worlds import World, order

# A connection whose opening was answered by an injected error is left to the garbage collector.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.only(("sqlite3", "psycopg")),
]

ON_POSTGRES = ("psycopg",)
PASSES = 10
"""How often is drained after a fault, until nothing is left."""

TOGETHER = {"a1": "a", "moody": "x", "behind": "x", "b": None, "a2": "a"}
"""Messages and their keys; one of them fails the first time."""

ALONE = {"risky": "y", "after": "y"}
"""One message runs isolated, and one waits for it."""

IN_ORDER = [("a1", "a2"), ("moody", "behind"), ("risky", "after")]


class Pass:
    """Messages that are drained, again and again, while another call goes wrong each time."""

    def __init__(self, world: World, injector: Injector, keys: dict[str, str | None]) -> None:
        self.world = world
        self.keys = keys
        self.injector = injector
        self.failed: set[str] = set()
        self.inbox: Inbox = world.inbox(
            retry=Retry(initial_delay=timedelta(0), max_delay=timedelta(0))
        )
        world.on(self.inbox, "order", self.handle)
        number = "bigserial" if world.is_postgres else "INTEGER"
        world.execute(f"CREATE TABLE ledger (n {number} PRIMARY KEY, id text)")

    def handle(self, payload: dict[str, Any], tx: Any) -> Iterator[Any]:
        id = payload["id"]
        yield tx.execute("INSERT INTO ledger (id) VALUES (:id)", id=id)
        if id.endswith("moody") and id not in self.failed:
            self.failed.add(id)
            raise ValueError("a bad mood")

    def fail_every_call(self, fault: Fault, step: int = 1) -> None:
        """Let each call fail in turn; or every n-th call, unless there is time for all."""
        for number in count(1, 1 if SEEDS else step):
            round = f"{number}/"
            self.world.receive(self.inbox, messages(self.keys, round))
            self.injector.arm(number, fault)
            with suppress(Exception):
                self.world.drain(self.inbox)
            self.injector.disarm()
            missed = self.injector.count < number
            self.drain_the_rest(round)
            self.check(round)
            if missed:
                assert number > 10
                return

    def drain_the_rest(self, round: str) -> None:
        """What comes after the fault; what it left behind may raise, but not forever."""
        for _ in range(PASSES):
            self.injector.query(
                "UPDATE oncebox_pending SET available_at = NULL "
                "WHERE available_at IS NOT NULL AND crashes > 0 RETURNING seq"
            )
            with suppress(Exception):
                self.world.drain(self.inbox)
            if not self.injector.query("SELECT 1 FROM oncebox_pending"):
                return
        self.world.drain(self.inbox)

    def check(self, round: str) -> None:
        found = self.injector.query(
            "SELECT id FROM ledger WHERE id LIKE %s ORDER BY n", f"{round}%"
        )
        ids = [id.removeprefix(round) for (id,) in found]
        assert Counter(ids) == dict.fromkeys(self.keys, 1), round
        for first, second in IN_ORDER:
            if first in self.keys:
                assert ids.index(first) < ids.index(second), round
        assert self.injector.query("SELECT message_id FROM oncebox_pending") == [], round
        assert self.injector.query("SELECT message_id, reason FROM oncebox_dead_letter") == [], (
            round
        )


def messages(keys: dict[str, str | None], round: str) -> list[Delivery]:
    return [
        msgspec.structs.replace(
            order(round + name, key=key and round + key), redelivered=name == "risky"
        )
        for name, key in keys.items()
    ]


@pytest.fixture(params=[TOGETHER, ALONE], ids=["together", "isolated"])
def drain(
    world: World, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[Pass]:
    injector = Injector(world, monkeypatch)
    yield Pass(world, injector, request.param)
    injector.close()


@pytest.mark.parametrize(
    "step", [4, pytest.param(1, marks=pytest.mark.slow)], ids=["some calls", "every call"]
)
def test_an_error_at_any_call_of_a_drain_neither_loses_nor_repeats_an_effect(
    drain: Pass, step: int
) -> None:
    drain.fail_every_call(Refused(), step=step)


@pytest.mark.slow
def test_an_error_after_any_call_of_a_drain_neither_loses_nor_repeats_an_effect(
    drain: Pass,
) -> None:
    drain.fail_every_call(AnswerBroken(), step=2)


def test_a_conflict_at_any_call_of_a_drain_neither_loses_nor_repeats_an_effect(
    drain: Pass,
) -> None:
    drain.fail_every_call(Conflict(), step=3)


@pytest.mark.only(ON_POSTGRES)
def test_a_connection_lost_before_any_call_of_a_drain_neither_loses_nor_repeats_an_effect(
    drain: Pass,
) -> None:
    drain.fail_every_call(CutBefore(), step=7)


@pytest.mark.slow
@pytest.mark.only(ON_POSTGRES)
def test_a_connection_lost_after_any_call_of_a_drain_neither_loses_nor_repeats_an_effect(
    drain: Pass,
) -> None:
    drain.fail_every_call(CutAfter(), step=6)
