"""Whichever call to the database goes wrong, and however: once delivered again, every message has
taken effect exactly once, or waits for its turn with no effect at all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from faults.injection import (
    AnswerBroken,
    Conflict,
    CutAfter,
    CutBefore,
    Fault,
    Injector,
    Refused,
)
from oncebox import Delivery, Inbox, Outcome
from support.worlds import BOTH, World, order

# A connection whose opening was answered by an injected error is left to the garbage collector.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

ADAPTERS = ("sqlite3", "psycopg", "psycopg-async", "sqlalchemy-psycopg", "aiosqlite")
ON_POSTGRES = ("psycopg", "psycopg-async", "sqlalchemy-psycopg")
SYNC = ("sqlite3", "psycopg", "psycopg-unpiped", "sqlalchemy-psycopg")

REDELIVERIES = 3
GOOD = ("a1", "a2", "b", "c")
BAD = "bad"
BEHIND = "behind"


def handle(payload: dict[str, Any], tx: Any) -> Iterator[Any]:
    yield tx.execute("INSERT INTO effects (id, body) VALUES (:id, '')", id=payload["id"])
    if payload["id"].endswith(BAD):
        raise ValueError("a bad message")


def batch(round: str) -> list[Delivery]:
    """Two keys with two messages, one that always fails, one without a key, and a duplicate."""
    names = [("a1", "a"), ("b", None), (BAD, "x"), ("a1", "a"), ("a2", "a"), (BEHIND, "x")]
    return [
        order(f"{round}/{name}", key=key and f"{round}/{key}") for name, key in [*names, ("c", "c")]
    ]


@pytest.fixture
def injector(world: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[Injector]:
    injector = Injector(world, monkeypatch)
    yield injector
    injector.close()


def fail_every_call(world: World, injector: Injector, fault: Fault) -> Iterator[Trial]:
    """Let each call of a batch fail in turn, deliver everything again, and hand out the truth."""
    first = count_calls(world, injector, inbox := new_inbox(world))
    later = count_calls(world, injector, inbox)
    for number in range(1, first - later + 1):
        newcomer = new_inbox(world, migrate=False)
        yield Trial(world, injector, newcomer, f"opening-{number}").play(number, fault)
        close(world, newcomer)
    for number in range(1, later + 1):
        yield Trial(world, injector, inbox, f"call-{number}").play(number, fault)


def new_inbox(world: World, *, migrate: bool = True) -> Inbox:
    """An inbox that has not been opened yet."""
    inbox = world.inbox(migrate=migrate)
    world.on(inbox, "order", handle)
    return inbox


def close(world: World, inbox: Inbox) -> None:
    world.inboxes.remove(inbox)
    world.run(inbox.aclose()) if world.is_async else inbox.close()


def count_calls(world: World, injector: Injector, inbox: Inbox) -> int:
    """How many calls a batch takes when all goes well."""
    before = injector.count
    trial = Trial(world, injector, inbox, f"well-{before}")
    trial.check_answers(trial.deliver())
    assert trial.states() == EXPECTED
    return injector.count - before


EXPECTED = {**dict.fromkeys(GOOD, "done"), BAD: "pending", BEHIND: "pending"}


class Trial:
    """One batch, one fault at one call, and what became of it."""

    def __init__(self, world: World, injector: Injector, inbox: Inbox, name: str) -> None:
        self.world = world
        self.injector = injector
        self.inbox = inbox
        self.name = name

    def play(self, number: int, fault: Fault) -> Trial:
        self.injector.arm(number, fault)
        try:
            self.check_answers(self.deliver())
        except AssertionError:
            raise
        except Exception:
            pass  # nothing may be settled then, and everything is delivered again
        self.injector.disarm()
        assert self.injector.count >= number, f"{self.name} was never made"
        self.check_answers(self._redeliver())
        return self

    def _redeliver(self) -> list[Outcome]:
        """What comes after the fault; what it left behind may raise, but not forever."""
        for _ in range(REDELIVERIES):
            with suppress(Exception):
                return self.deliver()
        return self.deliver()

    def deliver(self) -> list[Outcome]:
        return self.world.process(self.inbox, batch(self.name))

    def states(self) -> dict[str, str]:
        return dict(self._ask("SELECT message_id, state FROM oncebox_message", "message_id"))

    def effects(self) -> Counter[str]:
        return Counter(name for name, _ in self._ask("SELECT id, body FROM effects", "id"))

    def attempts(self) -> dict[str, int]:
        return dict(self._ask("SELECT message_id, attempts FROM oncebox_pending", "message_id"))

    def _ask(self, query: str, id: str) -> list[tuple[str, Any]]:
        found = self.injector.query(f"{query} WHERE {id} LIKE %s", f"{self.name}/%")
        return [(self._short(id), value) for id, value in found]

    def _short(self, id: str) -> str:
        return id.partition("/")[2]

    # -- what must hold ---------------------------------------------------------------------------

    def check_answers(self, outcomes: list[Outcome]) -> None:
        """Every message with an outcome may be acked: it is in the database."""
        states, effects = self.states(), self.effects()
        for outcome in outcomes:
            assert outcome.message is not None
            name, kind = self._short(outcome.message.id), outcome.kind.value
            where = f"{self.name}: {name} is {kind}"
            if kind == "done":
                assert states.get(name) == "done", where
                assert effects[name] == 1, where
            elif kind in ("failed", "blocked", "stored"):
                assert states.get(name) == "pending", where
            else:
                assert kind == "duplicate", where
                assert name in states, where

    def check_truth(self) -> None:
        """Everything took effect once or waits, and nothing overtook what waits."""
        states, effects = self.states(), self.effects()
        where = f"{self.name}: {states} {effects}"
        assert states.keys() == EXPECTED.keys(), where
        assert states[BAD] == states[BEHIND] == "pending", where
        for name, state in states.items():
            assert effects[name] == (1 if state == "done" else 0), where
        assert (states["a1"], states["a2"]) != ("pending", "done"), where

    def check_no_message_failed(self) -> None:
        """Only the bad message failed, and that was counted once."""
        assert self.states() == EXPECTED, self.name
        assert self.attempts() == {BAD: 1, BEHIND: 0}, self.name


@pytest.mark.only(ADAPTERS, quick=BOTH)
def test_an_error_at_any_call_neither_loses_nor_repeats_an_effect(
    world: World, injector: Injector
) -> None:
    for trial in fail_every_call(world, injector, Refused()):
        trial.check_truth()


@pytest.mark.only(SYNC, quick=BOTH)
def test_an_error_after_any_call_neither_loses_nor_repeats_an_effect(
    world: World, injector: Injector
) -> None:
    for trial in fail_every_call(world, injector, AnswerBroken()):
        trial.check_truth()


@pytest.mark.only(SYNC, quick=BOTH)
def test_a_conflict_at_any_call_fails_no_message(world: World, injector: Injector) -> None:
    for trial in fail_every_call(world, injector, Conflict()):
        trial.check_truth()
        trial.check_no_message_failed()


@pytest.mark.only(ON_POSTGRES, quick=BOTH)
def test_a_connection_lost_before_any_call_fails_no_message(
    world: World, injector: Injector
) -> None:
    for trial in fail_every_call(world, injector, CutBefore()):
        trial.check_truth()
        trial.check_no_message_failed()


@pytest.mark.only(ON_POSTGRES, quick=BOTH)
def test_a_connection_lost_after_any_call_fails_no_message(
    world: World, injector: Injector
) -> None:
    for trial in fail_every_call(world, injector, CutAfter()):
        trial.check_truth()
        trial.check_no_message_failed()
