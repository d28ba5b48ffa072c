"""Dead letters are found by their properties, and each action is audited."""

from __future__ import annotations

import getpass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import oncebox.operations.dead_letters
from oncebox import DeadLetter, Delivery, Reject
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
    assert found(message_id=["2", "4", "x"]) == ["2", "4"]
    hour = timedelta(hours=1)
    assert found(since=datetime.now(UTC) - hour) == ["1", "2", "3", "4", None]
    assert found(until=datetime.now(UTC) - hour) == []


@pytest.mark.only(BOTH)
def test_the_groups_of_dead_letters_match_the_same_filters(
    world: World, harness: InboxHarness
) -> None:
    make_dead_letters(harness, keyed("1", "a"), keyed("2", "b"))
    harness.process(order("3", type="strange"))
    assert [(g.reason, g.count) for g in harness.dead("groups", key="b")] == [
        ("out_of_attempts", 1)
    ]
    assert [g.reason for g in harness.dead("groups", reason="unknown_type")] == ["unknown_type"]
    numbers = [letter.id for letter in harness.dead("find")]
    assert [g.count for g in harness.dead("groups", *numbers[:2])] == [2]


def two_errors(harness: InboxHarness) -> tuple[DeadLetter, DeadLetter]:
    """Two dead letters with different errors."""
    make_dead_letters(harness, keyed("1", "a"))
    harness.process(order("2", type="strange"))
    first, second = harness.dead("find")
    return first, second


@pytest.mark.only(BOTH)
def test_a_fingerprint_is_recognised_by_its_first_characters(
    world: World, harness: InboxHarness
) -> None:
    first, second = two_errors(harness)
    assert first.fingerprint is not None
    for length in (8, 15, 16):
        prefix = first.fingerprint[:length]
        assert harness.dead("find", fingerprint=prefix) == [first]
        assert harness.dead("find", fingerprint=prefix.upper()) == [first]
        (group,) = harness.dead("groups", fingerprint=prefix)
        assert (group.fingerprint, group.count) == (first.fingerprint, 1)
    unknown = "f" * 8 if first.fingerprint[0] != "f" else "0" * 8
    assert harness.dead("find", fingerprint=unknown) == []
    assert harness.dead("discard", fingerprint=first.fingerprint[:8], why="noise").done == 1
    assert harness.dead("find") == [second]


@pytest.mark.only(("sqlite3", "psycopg-async"))
def test_an_ambiguous_fingerprint_is_refused_with_its_candidates(
    world: World, harness: InboxHarness
) -> None:
    first, second = two_errors(harness)
    world.query(f"UPDATE oncebox_dead_letter SET fingerprint = 'abcd1234{'0' * 8}' WHERE id = 1")
    world.query(f"UPDATE oncebox_dead_letter SET fingerprint = 'abcd9876{'0' * 8}' WHERE id = 2")
    for act in ("retry", "discard"):
        with pytest.raises(ConfigurationError, match="'abcd' is ambiguous") as refused:
            harness.dead(act, fingerprint="abcd", why="fixed")
        assert f"abcd123400000000 ({first.error})" in str(refused.value)
        assert f"abcd987600000000 ({(second.error or '')[:50]}" in str(refused.value)
    assert len(dead_letters(world)) == 2
    for wrong in ("", "xyz", "%", "0" * 17):
        with pytest.raises(ConfigurationError, match="a fingerprint has 1 to 16 "):
            harness.dead("find", fingerprint=wrong)


@pytest.mark.only(("sqlite3", "psycopg-async"))
def test_an_unknown_reason_or_state_is_met_with_the_nearest_one(
    world: World, harness: InboxHarness
) -> None:
    with pytest.raises(ConfigurationError, match="'rejectd', did you mean 'rejected'"):
        harness.dead("find", reason="rejectd")
    with pytest.raises(ConfigurationError, match="unknown state 'done', known: dead, quarantined"):
        harness.dead("groups", state="done")


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
    with pytest.raises(NotFound, match="no dead letter 404 in this inbox: it was retried"):
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


@pytest.mark.only(("sqlite3", "psycopg-async"))
def test_a_filter_takes_any_iterable_of_ids(world: World, harness: InboxHarness) -> None:
    harness.process(*[order(f"{n}", type="strange", key=f"{n}") for n in range(450)])
    ids = (f"{n}" for n in range(450))
    assert harness.dead("discard", message_id=ids, why="noise").done == 450
    assert harness.dead("find") == []
    states = (state for state in ("dead", "discarded"))
    messages: Any = harness.inbox.messages
    found = (messages.afind if world.is_async else messages.find)(state=states, limit=1)
    assert len(world.run(found) if world.is_async else found) == 1
