"""Payloads of finished messages are erased."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

import oncebox.operations.archive.format
import oncebox.operations.archive.location
import oncebox.operations.erase
import oncebox.operations.purge
from oncebox import CloudEvents, Reject, RetryAfter
from oncebox.errors import ConfigurationError
from support.archives import ArchiveHarness
from support.inboxes import produced
from support.tables import age, message_ids
from support.worlds import BOTH, World, order

pytestmark = pytest.mark.only((*BOTH, "sqlalchemy-asyncpg"), quick=BOTH)


def test_an_erased_message_loses_its_payload_and_keeps_its_id(
    world: World, harness: ArchiveHarness
) -> None:
    harness.bad |= {"a"}
    harness.process(produced("a", key="k"), produced("b"))
    assert world.drain(harness.inbox) == {"done": 1}
    assert "secret" in harness.attempts("a")[0][1]
    secrets = "payload IS NOT NULL OR headers IS NOT NULL"
    before = harness.truth("message_id = 'b'")
    count = harness.call("messages", "count_erasable", key="k")
    told: list[int] = []
    erased = harness.erase(key="k", progress=told.append)
    assert (count, told, erased.done, erased.left) == (1, [1], 1, 0)
    assert harness.rows("inbox", f"message_id = 'a' AND ({secrets})") == []
    assert harness.attempts("a") == [("failed", None), ("done", None)]
    assert harness.truth("message_id = 'b'") == before
    assert harness.actions() == [("erase", "ada", "they asked", "a")]
    assert world.states() == {"a": "done", "b": "done"}
    again = harness.erase(key="k")
    assert (again.done, again.left) == (0, 0)
    assert len(harness.actions()) == 1
    with pytest.raises(AssertionError):
        harness.replay("a")
    # The same is a duplicate, other bytes under its id are quarantined: as before.
    assert harness.process(order("a", key="k", data={"id": "a"})) == ["duplicate"]
    assert harness.process(order("a", key="k", data={"id": "a", "more": 1})) == ["quarantined"]
    assert world.effects() == ["a", "b"]


@pytest.mark.only(BOTH)
def test_a_message_without_a_stored_payload_loses_its_headers_and_errors(
    world: World, harness: ArchiveHarness
) -> None:
    """Without a payload there are still headers and error texts."""
    harness.bad |= {"a"}
    unkept = harness.another(keep_payload=False)
    harness.process(produced("a"), produced("b"), inbox=unkept)
    erased = harness.erase(ids=["a", "b"])
    assert (erased.done, erased.left) == (1, 1), "one is pending, with its payload"
    assert world.drain(harness.inbox) == {"done": 1}
    erased = harness.erase(ids=["a", "b"])
    assert (erased.done, erased.left) == (1, 0)
    assert harness.rows("inbox", "headers IS NOT NULL") == []
    assert [error for _, error in harness.attempts("a")] == [None, None]


def make_pending(harness: ArchiveHarness) -> None:
    assert harness.world.receive(harness.inbox, [order("x", key="k")]) == ["stored"]


def make_dead(harness: ArchiveHarness) -> None:
    assert harness.process(order("rejected", key="k")) == ["dead"]


def make_early(harness: ArchiveHarness) -> None:
    inbox = harness.another(identity=CloudEvents(sequence="number"))
    assert harness.process(order("x", key="k", number=5), inbox=inbox) == ["blocked"]
    assert harness.world.states() == {"x": "awaiting_sequence"}


def make_wanted(harness: ArchiveHarness) -> None:
    """It is to be replayed."""
    harness.process(order("x", key="k"))
    harness.replay("x", run=False)


def make_retried(harness: ArchiveHarness) -> None:
    """Its replay failed, and will be tried again."""
    make_wanted(harness)
    harness.mood = RetryAfter(timedelta(hours=1))
    assert harness.world.drain(harness.inbox) == {"failed": 1}


def make_dead_again(harness: ArchiveHarness) -> None:
    """Its replay is a dead letter."""
    make_wanted(harness)
    harness.mood = Reject("not again")
    assert harness.world.drain(harness.inbox) == {"dead": 1}


Make = Callable[[ArchiveHarness], None]
unfinished = pytest.mark.parametrize(
    "make", [make_pending, make_dead, make_early, make_wanted, make_retried, make_dead_again]
)


@pytest.mark.only(BOTH)
@unfinished
def test_an_unfinished_message_is_not_erased_but_counted(
    world: World, harness: ArchiveHarness, make: Make
) -> None:
    make(harness)
    tables = ("inbox", "pending", "dead_letter", "awaiting_sequence", "attempt")
    before = [world.query(f"SELECT * FROM oncebox_{table}") for table in tables]
    acted = harness.actions()
    assert any(before)
    erased = harness.erase(key="k")
    assert (erased.done, erased.left) == (0, 1)
    assert [world.query(f"SELECT * FROM oncebox_{table}") for table in tables] == before
    assert harness.actions() == acted


@pytest.mark.only(BOTH)
def test_a_quarantined_delivery_with_an_erased_id_is_counted(
    world: World, harness: ArchiveHarness
) -> None:
    harness.process(order("x", key="k"))
    assert harness.process(order("x", key="k", data={"id": "other"})) == ["quarantined"]
    for which in ({"key": "k"}, {"ids": ["x"]}):
        assert harness.erase(**which).left == 1
    (letter,) = harness.call("dead_letters", "find")
    harness.call("dead_letters", "discard", letter.id, why="they asked")
    assert harness.erase(key="k").left == 0


@pytest.mark.only(BOTH)
def test_an_erasure_needs_a_filter(world: World, harness: ArchiveHarness) -> None:
    for which, complaint in (
        ({}, "without a filter would erase every finished message"),
        ({"ids": "x"}, "ids must be a list"),
        ({"kye": "k"}, "unknown filter 'kye'"),
        ({"key": "k", "why": ""}, "is missing: the audit log"),
    ):
        with pytest.raises(ConfigurationError, match=complaint):
            harness.erase(**which)


@pytest.mark.only(BOTH)
def test_many_messages_are_erased_in_chunks(
    world: World, harness: ArchiveHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oncebox.operations.erase, "BATCH", 2)
    harness.process(*(produced(f"m{n}", key="k") for n in range(5)), produced("other", key="o"))
    told: list[int] = []
    assert harness.erase(key="k", progress=told.append).done == 5
    assert told == [2, 4, 5]
    assert world.query("SELECT message_id FROM oncebox_inbox WHERE payload IS NOT NULL") == [
        ("other",)
    ]


@pytest.mark.only(BOTH)
@unfinished
def test_an_unfinished_message_is_neither_archived_nor_purged(
    world: World, harness: ArchiveHarness, make: Make
) -> None:
    make(harness)
    harness.mood = None
    harness.process(produced("old"))
    age(world, 8)
    harness.process(produced("new"))
    left = [id for id in message_ids(world) if id != "old"]
    assert harness.purge().purged == 1
    assert message_ids(world) == left
    assert harness.archived() == {"old": 1}
