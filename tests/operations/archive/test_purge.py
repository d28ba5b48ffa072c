"""A message is archived before it is purged."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import oncebox.operations.archive.format
import oncebox.operations.archive.location
import oncebox.operations.purge
import oncebox.operations.purge_pass
from oncebox.errors import ArchiveError
from oncebox.operations.archive.format import Manifest, Writer
from oncebox.storage.records import ArchivedRef
from support.archives import ArchiveHarness, insert_many
from support.inboxes import produced
from support.internals import store_of
from support.tables import age, message_ids
from support.worlds import BOTH, World

pytestmark = pytest.mark.only((*BOTH, "sqlalchemy-asyncpg"), quick=BOTH)


@pytest.mark.usefixtures("small_files")
def test_many_messages_are_archived_and_purged_file_by_file(
    world: World, harness: ArchiveHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = insert_many(world, 1_200)
    harness.process(produced("new"))
    purge_archived, seen = store_of(harness.inbox).purge_archived, []

    def watched(connection: Any, consumer: str, messages: list[ArchivedRef]) -> Any:
        archived = harness.archived()
        assert all(archived[message.id] for message in messages)
        seen.append((len(harness.files()) if not world.is_async else 0, len(messages)))
        return (yield from purge_archived(connection, consumer, messages))

    monkeypatch.setattr(store_of(harness.inbox), "purge_archived", watched)
    assert harness.purge().purged == 1_200
    monkeypatch.undo()
    files = harness.files()
    assert len(files) > 2
    assert sum(manifest.count for manifest in files) == sum(count for _, count in seen) == 1_200
    assert harness.archived() == dict.fromkeys(old, 1)
    assert message_ids(world) == ["new"]
    if not world.is_async:
        assert seen[0][0] == 1, "the first are purged before the second file is written"
    told: list[int] = []
    assert harness.restore(progress=told.append).messages == told[-1] == 1_200
    assert message_ids(world) == ["new", *old]


def test_large_messages_are_read_a_few_at_a_time(
    world: World, harness: ArchiveHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oncebox.operations.purge_pass, "PORTION", 50)
    read, seen = store_of(harness.inbox).old_messages, []

    def watched(*args: Any, **options: Any) -> Any:
        found = yield from read(*args, **options)
        seen.append(len(found))
        return found

    monkeypatch.setattr(store_of(harness.inbox), "old_messages", watched)
    old = harness.process_and_purge(*(f"m{n:02}" for n in range(20)))
    assert sum(seen) == 20
    assert max(seen) < 10
    assert harness.archived() == dict.fromkeys(old, 1)


@pytest.mark.usefixtures("small_files")
def test_nothing_is_purged_before_its_manifest_is_written(
    world: World, harness: ArchiveHarness, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.process(produced("a"), produced("b"))
    age(world, 8)
    harness.process(produced("new"))

    class Ill(oncebox.operations.archive.location.Directory):
        def create(self, name: str) -> Any:
            if name.endswith(oncebox.operations.archive.format.MANIFEST):
                raise OSError("no room for manifests")
            return super().create(name)

    monkeypatch.setattr(oncebox.operations.archive.location, "Directory", Ill)
    with pytest.raises(
        ArchiveError, match=r"no room for manifests\); no message of this file was purged"
    ):
        harness.purge()
    assert message_ids(world) == ["a", "b", "new"]
    assert [path for path in place.rglob("*") if path.is_file()] == []
    monkeypatch.undo()
    assert harness.purge().purged == 2
    assert harness.archived() == {"a": 1, "b": 1}


@pytest.mark.only(BOTH)
def test_a_file_that_reads_back_differently_is_not_used(
    world: World, harness: ArchiveHarness, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.process(produced("a"))
    age(world, 8)
    harness.process(produced("new"))

    class Ill(oncebox.operations.archive.location.Directory):
        def open(self, name: str) -> Any:
            (self._root / name).write_bytes(gzip.compress(b"")[:10] + b"\xff" * 20)
            return super().open(name)

    monkeypatch.setattr(oncebox.operations.archive.location, "Directory", Ill)
    with pytest.raises(ArchiveError, match="cannot be written"):
        harness.purge()
    assert message_ids(world) == ["a", "new"]
    assert [path for path in place.rglob("*") if path.is_file()] == []


Change = Callable[[ArchiveHarness], Any]


def run_again(harness: ArchiveHarness) -> None:
    harness.replay("a")


def be_replayed(harness: ArchiveHarness) -> None:
    harness.replay("a", run=False)


def be_erased(harness: ArchiveHarness) -> None:
    assert harness.erase(ids=["a"]).done == 1


def be_restored(harness: ArchiveHarness) -> None:
    harness.restore()


def during_finish(monkeypatch: pytest.MonkeyPatch, change: Callable[[], Any]) -> None:
    """Run a function between the archiving and the purge, once."""
    finish = Writer.finish

    def changing(writer: Writer) -> Manifest:
        made = finish(writer)
        monkeypatch.setattr(Writer, "finish", finish)
        change()
        return made

    monkeypatch.setattr(Writer, "finish", changing)


@pytest.mark.only(BOTH)
@pytest.mark.parametrize(
    ("change", "left"),
    [
        (run_again, ["a"]),
        (be_replayed, ["a"]),
        (be_erased, ["a"]),
        (be_restored, ["a", "b"]),
    ],
)
def test_a_message_that_changed_after_it_was_archived_is_not_purged(
    world: World,
    harness: ArchiveHarness,
    monkeypatch: pytest.MonkeyPatch,
    change: Change,
    left: list[str],
) -> None:
    harness.process(produced("a"), produced("b"))
    age(world, 8)
    harness.process(produced("new"))
    during_finish(monkeypatch, lambda: change(harness))
    assert harness.purge().purged == 2 - len(left)
    assert message_ids(world) == [*left, "new"]
    assert harness.archived() == {"a": 1, "b": 1}


@pytest.mark.only(BOTH)
def test_the_last_copy_of_a_message_that_was_archived_twice_is_restored(
    world: World, harness: ArchiveHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the names of the files."""
    for id in ("a", "b", "c", "d"):
        harness.process(produced(id))
        age(world, 8, f"message_id = '{id}'")
        harness.process(produced(f"new {id}"))
        during_finish(monkeypatch, partial(harness.replay, id))
        harness.purge()
        before = harness.truth(f"message_id = '{id}'")
        assert [len(rows) for rows in before] == [1, 1]
        harness.purge()
        assert harness.truth(f"message_id = '{id}'") == ([], [])
        assert harness.archived()[id] == 2
        harness.restore(keep=timedelta(0))
        assert harness.truth(f"message_id = '{id}'") == before
