"""Archived messages are restored as they were."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from oncebox import Retention
from oncebox.errors import ArchiveError, ConfigurationError, NotFound
from support.archives import ArchiveHarness, insert, insert_many
from support.inboxes import produced, purge
from support.internals import store_of
from support.tables import age, message_ids
from support.worlds import BOTH, SOME, World, order

pytestmark = pytest.mark.only((*BOTH, "sqlalchemy-asyncpg"), quick=BOTH)


def fill(harness: ArchiveHarness) -> None:
    """Messages with every kind of past."""
    harness.bad |= {"failed"}
    assert harness.process(
        order("inline", key="k", time="2026-01-02T03:04:05.678901Z"),
        order("failed", data={"id": "failed", "text": "Grüße \U0001f600 \x00"}),
    ) == ["done", "failed"]
    assert harness.world.receive(harness.inbox, [produced("drained")]) == ["stored"]
    assert harness.world.drain(harness.inbox) == {"done": 2}
    harness.process(order("replayed", key="r"))
    harness.replay("replayed")
    harness.process(produced("unkept"), inbox=harness.another(keep_payload=False))
    harness.process(order("rejected"))
    letter = harness.call("dead_letters", "find")[0]
    harness.call("dead_letters", "discard", letter.id, why="noise")
    insert(harness.world, "bare")
    insert(harness.world, "empty", payload=b"", content_hash=b"", key="", source="", coordinates="")
    headers = '{"b":  1, "a": "\\u00e9",\n "a": null}'
    insert(harness.world, "binary", payload=bytes(range(256)), headers=headers, version=-3)
    age(harness.world, 8)


OLD = sorted(
    ["inline", "failed", "drained", "replayed", "unkept", "rejected", "bare", "empty", "binary"]
)


@pytest.mark.only(SOME, quick=BOTH)
def test_messages_are_restored_byte_for_byte_with_their_attempts(
    world: World, harness: ArchiveHarness
) -> None:
    fill(harness)
    harness.process(produced("new"))
    before, states = harness.truth(), world.states()
    assert {row[0] for row in world.query("SELECT outcome FROM oncebox_attempt")} > {"failed"}
    purged = harness.purge()
    assert (purged.purged, list(purged.held_back_by)) == (len(OLD), [])
    assert message_ids(world) == ["new"]
    assert harness.truth() == ([], [])
    assert harness.archived() == dict.fromkeys(OLD, 1)
    (manifest,) = harness.files()
    assert (manifest.consumer, manifest.count) == ("billing", len(OLD))
    restored = harness.restore(by="ada")
    assert (restored.files, restored.messages, restored.known) == (1, len(OLD), 0)
    assert harness.truth() == before
    assert world.states() == states
    assert ("restore", "ada", "to look at it", None) in harness.actions()
    # What is known again is a duplicate again.
    assert harness.process(order("inline", key="k", time="2026-01-02T03:04:05.678901Z")) == [
        "duplicate"
    ]
    assert world.effects().count("inline") == 1


def test_a_restored_message_can_be_replayed(world: World, harness: ArchiveHarness) -> None:
    harness.process_and_purge("a", "b")
    harness.restore()
    harness.replay("a")
    assert world.effects() == ["a", "a", "b", "new"]


def test_an_archive_is_restored_into_an_empty_database(
    world: World, harness: ArchiveHarness, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """File by file, however many there are; what arrives then has numbers of its own."""
    fill(harness)
    before = harness.truth()
    harness.process(produced("new"))
    harness.purge()
    insert_many(world, 3)
    harness.purge()
    assert len(harness.files()) == 2
    fresh = ArchiveHarness(world, place, prefix="fresh_")
    assert fresh.restore().messages == len(OLD) + 3
    assert fresh.truth("message_id NOT LIKE 'old%%'" if world.is_postgres else OLDER) == before
    assert fresh.restore().known == len(OLD) + 3
    fresh.process(produced("next"), produced("another"))
    last = world.query("SELECT max(seq) FROM fresh_inbox WHERE message_id <> 'another'")[0][0]
    seqs = world.query("SELECT seq FROM fresh_inbox ORDER BY seq")
    assert len(seqs) == len(set(seqs)) == len(OLD) + 5
    assert last > max(manifest.last_seq for manifest in harness.files())


OLDER = "message_id NOT LIKE 'old%'"


@pytest.mark.only(BOTH)
def test_a_database_that_is_in_use_refuses_the_archive_of_another_database(
    world: World, harness: ArchiveHarness, place: Path
) -> None:
    harness.process_and_purge("a", "b", "c")
    other = ArchiveHarness(world, place, prefix="other_")
    other.process(produced("mine"))
    with pytest.raises(ArchiveError, match="comes from another database"):
        other.restore()
    assert world.query("SELECT message_id FROM other_inbox") == [("mine",)]
    assert other.actions() == []
    assert (
        world.query(
            "SELECT purge_paused_until FROM other_consumer WHERE purge_paused_until IS NOT NULL"
        )
        == []
    )


@pytest.mark.only(("sqlite3",))
def test_seqs_that_other_messages_have_mean_another_database(
    world: World, harness: ArchiveHarness, place: Path
) -> None:
    harness.process_and_purge("a", "b")
    other = ArchiveHarness(world, place, prefix="other_")
    other.process(*(produced(f"mine{n}") for n in range(9)))
    with pytest.raises(ArchiveError, match="comes from another database"):
        other.restore()
    assert len(world.query("SELECT message_id FROM other_inbox")) == 9


def test_restoring_twice_changes_nothing(world: World, harness: ArchiveHarness) -> None:
    harness.process_and_purge("a", "b")
    harness.restore()
    before = harness.truth()
    restored = harness.restore()
    assert (restored.messages, restored.known) == (0, 2)
    assert harness.truth() == before


@pytest.mark.only(BOTH)
def test_a_restore_does_not_change_existing_messages(world: World, harness: ArchiveHarness) -> None:
    """It may have been released from the quarantine, and run once more, since it was archived."""
    harness.process_and_purge("a", "b")
    insert(world, "a", origin="test", payload=b"other", key="other")
    insert(world, "b", origin="test", payload=b"other")
    before = harness.truth()
    restored = harness.restore()
    assert (restored.messages, restored.known) == (0, 2)
    assert harness.truth() == before


@pytest.mark.only(BOTH)
def test_files_are_chosen_by_time(world: World, harness: ArchiveHarness, place: Path) -> None:
    harness.process_and_purge("recent")
    insert_many(world, 2)
    assert harness.purge().purged == 2
    recent = harness.files()[-1].first_received_at
    assert harness.restore(since=recent - timedelta(days=1)).messages == 1
    assert message_ids(world) == ["new", "recent"]
    assert harness.restore(until=recent).messages == 2
    after = recent + timedelta(days=1)
    with pytest.raises(NotFound, match=re.escape(f"no file with messages from {after} to now")):
        harness.restore(since=after)
    with pytest.raises(ConfigurationError, match="time zone"):
        harness.restore(since=datetime(2026, 1, 1))
    with pytest.raises(ConfigurationError, match="is missing: the audit log"):
        harness.restore(why=" ")


@pytest.mark.only(BOTH)
def test_without_an_archive_there_is_nothing_to_find(world: World, place: Path) -> None:
    inbox = world.inbox()
    with pytest.raises(ConfigurationError, match="has no archive"):
        inbox.archives.find()
    assert inbox.archives.find(place=str(place)) == []
    with pytest.raises(NotFound, match="no file with messages from the beginning to now"):
        inbox.archives.restore(place=str(place), why="to see")


def test_restored_messages_are_kept_for_some_time_and_then_purged(
    world: World, harness: ArchiveHarness
) -> None:
    old = harness.process_and_purge("a", "b")
    harness.restore()
    purged = harness.purge()
    assert (purged.watermark, purged.purged) == (None, 0)
    assert "messages were restored and are kept until" in purged.held_back_by[0]
    assert message_ids(world) == [*old, "new"]
    world.execute(
        "UPDATE oncebox_consumer SET purge_paused_until = "
        + ("clock_timestamp()" if world.is_postgres else "purge_paused_until - 86400000000")
    )
    assert harness.purge().purged == 2
    assert message_ids(world) == ["new"]
    assert harness.archived() == dict.fromkeys(old, 2)


@pytest.mark.only(BOTH)
def test_a_longer_purge_pause_is_not_shortened(world: World, harness: ArchiveHarness) -> None:
    harness.process_and_purge("a")
    harness.restore(keep=timedelta(days=3))
    held = world.query("SELECT purge_paused_until FROM oncebox_consumer")
    harness.restore(keep=timedelta(0))
    assert world.query("SELECT purge_paused_until FROM oncebox_consumer") == held


@pytest.mark.only(BOTH)
def test_a_purge_without_an_archive_respects_a_pause_that_began_later(
    world: World, harness: ArchiveHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both kinds of purge check the pause again in the statement that deletes."""
    harness.process_and_purge("a")
    plain = world.inbox(retention=Retention(days=7))
    old_windows = store_of(plain).old_windows

    def restoring(*args: Any) -> Any:
        harness.restore()
        return (yield from old_windows(*args))

    monkeypatch.setattr(store_of(plain), "old_windows", restoring)
    assert purge(world, plain).purged == 0
    assert message_ids(world) == ["a", "new"]


def test_an_erased_message_stays_erased_when_its_file_is_restored(
    world: World, harness: ArchiveHarness
) -> None:
    harness.bad |= {"a"}
    harness.process(produced("a"), produced("b"))
    assert world.drain(harness.inbox) == {"done": 1}
    age(world, 8)
    harness.process(produced("new"))
    assert harness.purge().purged == 2
    harness.restore(keep=timedelta(0))
    assert len([error for _, error in harness.attempts("a") if "secret" in (error or "")]) == 1
    keyed = harness.truth("message_id = 'b'")
    assert harness.erase(ids=["a"]).done == 1
    erased = harness.truth()
    assert purge(world, world.inbox()).purged == 2
    assert harness.archived() == {"a": 1, "b": 1}, "only as they were before"
    harness.restore()
    assert harness.truth() == erased
    assert harness.truth("message_id = 'b'") == keyed
    assert [error for _, error in harness.attempts("a")] == [None, None]
    assert harness.rows("inbox", "message_id = 'a' AND payload IS NOT NULL") == []
