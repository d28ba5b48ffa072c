"""Dead letters are found by their properties, and each action is audited."""

from __future__ import annotations

import getpass
from typing import Any

import pytest

import oncebox.operations.dead_letters
from oncebox import Delivery, Reject
from oncebox.errors import ConfigurationError, NotFound
from support.inboxes import InboxHarness, keyed, make_dead_letters
from support.tables import audit_entries, dead_letters
from support.worlds import BOTH, SOME, World, order


@pytest.mark.only(SOME)
def test_a_dead_letter_has_its_reason_and_error(world: World, harness: InboxHarness) -> None:
    make_dead_letters(harness, keyed("1", time="2026-01-02T03:04:05Z"))
    (letter,) = harness.dead("find")
    assert (letter.state, letter.reason, letter.attempts) == ("dead", "out_of_attempts", 1)
    assert (letter.origin, letter.message_id, letter.type) == ("test", "1", "order")
    assert (letter.key, letter.blocks_key, letter.crashes) == ("k", True, 0)
    assert letter.error == "ValueError: once"
    assert letter.fingerprint
    assert b'"id":"1"' in letter.payload
    assert letter.occurred_at.isoformat() == "2026-01-02T03:04:05+00:00"
    assert letter.dead_at.tzinfo is not None
    assert letter.headers["content-type"] == "application/cloudevents+json"


@pytest.mark.only(BOTH)
def test_dead_letters_are_found_by_every_filter(world: World, harness: InboxHarness) -> None:
    make_dead_letters(harness, keyed("1", "a"), keyed("2", "b"))
    harness.bad["3"] = Reject("no")
    harness.process(keyed("3", "c"), order("4", type="strange"), Delivery(b"?"))

    def found(**filter: Any) -> list[str | None]:
        return [letter.message_id for letter in harness.dead("find", **filter)]

    assert found() == ["1", "2", "3", "4", None]
    assert found(state="quarantined") == [None]
    assert found(reason="rejected") == ["3"]
    assert found(type="order") == ["1", "2", "3"]
    assert found(key="b") == ["2"]
    assert found(origin="test", state="dead", key="a") == ["1"]
    assert found(message_id="4") == ["4"]
    assert found(key="b", message_id="1") == []
    first = harness.dead("find", limit=2)
    assert found(fingerprint=first[0].fingerprint) == ["1", "2"]
    assert found(after=first[-1].id, limit=2) == ["3", "4"]
    assert harness.dead("find", first[1].id) == [first[1]]


@pytest.mark.only(BOTH)
def test_an_inbox_finds_only_its_own_dead_letters(world: World, harness: InboxHarness) -> None:
    make_dead_letters(harness, keyed("1"))
    other = InboxHarness(world, name="shipping")
    (letter,) = harness.dead("find")
    assert other.dead("find") == []
    with pytest.raises(NotFound):
        other.dead("retry", letter.id, why="not mine")
    assert other.dead("discard", everything=True, why="not mine").done == 0
    assert len(dead_letters(world)) == 1


@pytest.mark.only(SOME)
def test_dead_letters_are_acted_on_in_chunks(
    world: World, harness: InboxHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oncebox.operations.dead_letters, "CHUNK", 3)
    make_dead_letters(
        harness, *[keyed(str(n), f"key {n % 8}") for n in range(8)], order("other", type="x")
    )
    harness.receive(*[keyed(f"{n}b", f"key {n}") for n in range(8)])
    steps: list[int] = []
    acted = harness.dead("retry", type="order", why="fixed", progress=steps.append)
    assert (acted.done, acted.left) == (8, 0)
    assert steps == [3, 6, 8]
    assert len(audit_entries(world)) == 8
    assert harness.drain() == {"done": 16}
    assert [letter.message_id for letter in harness.dead("find")] == ["other"]


@pytest.mark.only(BOTH)
def test_a_chunk_that_is_exactly_full_is_not_the_last(
    world: World, harness: InboxHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oncebox.operations.dead_letters, "CHUNK", 2)
    make_dead_letters(harness, *[order(str(n)) for n in range(4)])
    assert harness.dead("discard", everything=True, why="a test").done == 4
    assert dead_letters(world) == []
    assert harness.dead("discard", everything=True, why="a test").done == 0


@pytest.mark.only(BOTH)
def test_dead_letters_that_appear_during_an_action_are_left_for_the_next_one(
    world: World, harness: InboxHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oncebox.operations.dead_letters, "CHUNK", 1)
    make_dead_letters(harness, order("1"), order("2"))
    extra = iter([order("3"), order("4")])

    def die_meanwhile(done: int) -> None:
        harness.bad |= {"3": ValueError(), "4": ValueError()}
        harness.process(next(extra))

    acted = harness.dead("retry", everything=True, why="fixed", progress=die_meanwhile)
    assert acted.done == 2
    assert [letter.message_id for letter in harness.dead("find")] == ["3", "4"]


@pytest.mark.only(("sqlite3", "psycopg-async"))
@pytest.mark.parametrize("act", ["retry", "discard"])
def test_an_action_needs_a_filter_and_a_reason(
    world: World, harness: InboxHarness, act: str
) -> None:
    make_dead_letters(harness, keyed("1"))
    with pytest.raises(ConfigurationError, match="needs ids or filters, or everything=True"):
        harness.dead(act, why="because")
    with pytest.raises(ConfigurationError, match="needs ids or filters"):
        harness.dead(act, why="because", key=None)
    with pytest.raises(ConfigurationError, match="is missing: the audit log"):
        harness.dead(act, everything=True, why=" ")
    with pytest.raises(ConfigurationError, match="unknown filter 'topic', known: "):
        harness.dead(act, topic="orders", why="because")
    with pytest.raises(ConfigurationError, match="id of a dead letter is an integer"):
        harness.dead(act, "1", why="because")
    with pytest.raises(ConfigurationError, match="id of a dead letter is an integer"):
        harness.dead(act, True, why="because")
    with pytest.raises(NotFound, match="no dead letter 404"):
        harness.dead(act, 404, why="because")
    with pytest.raises(ConfigurationError, match="unknown filter"):
        harness.dead("find", topic="orders")
    assert audit_entries(world) == []
    assert len(dead_letters(world)) == 1


@pytest.mark.only(BOTH)
def test_the_default_operator_is_the_user_of_the_process(
    world: World, harness: InboxHarness
) -> None:
    make_dead_letters(harness, order("1"))
    harness.dead("discard", everything=True, why="a test")
    assert audit_entries(world)[0][:3] == ("discard", getpass.getuser(), "a test")
    now = "clock_timestamp() - interval '1 minute'" if world.is_postgres else "0"
    assert world.query(f"SELECT count(*) FROM oncebox_audit WHERE acted_at > {now}") == [(1,)]


@pytest.mark.only(("sqlalchemy-aiosqlite", "django-sqlite"))
def test_an_async_inbox_acts_on_dead_letters_with_async_methods(
    world: World, harness: InboxHarness
) -> None:
    make_dead_letters(harness, order("1"))
    with pytest.raises(ConfigurationError, match="this inbox is"):
        if world.is_async:
            harness.inbox.dead_letters.find()
        else:
            _awaited(harness.inbox.dead_letters.afind())


def _awaited(coroutine: Any) -> None:
    try:
        coroutine.send(None)
    finally:
        coroutine.close()
