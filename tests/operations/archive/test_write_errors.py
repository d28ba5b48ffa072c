"""An archive that cannot be written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from oncebox.errors import ArchiveError
from support.archives import ArchiveHarness, insert_many
from support.inboxes import produced
from support.internals import store_of
from support.tables import age, message_ids
from support.worlds import BOTH, World

pytestmark = pytest.mark.only((*BOTH, "sqlalchemy-asyncpg"), quick=BOTH)


def test_an_archive_that_cannot_be_written_loses_nothing_and_is_written_later(
    world: World, harness: ArchiveHarness, place: Path
) -> None:
    place.write_text("a file where a directory should be")
    harness.process(produced("a"))
    age(world, 8)
    harness.process(produced("new"))
    with pytest.raises(ArchiveError, match="no message of this file was purged"):
        harness.purge()
    assert message_ids(world) == ["a", "new"]
    place.unlink()
    assert harness.purge().purged == 1
    assert harness.archived() == {"a": 1}


class Whimsical(MemoryFileSystem):  # type: ignore[misc]
    """A file system of another library, which raises the errors of that library."""

    protocol = "whimsical"
    is_ill = False

    def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        if self.is_ill:
            raise RuntimeError("the token has expired")
        return super()._open(path, mode, **options)


@pytest.mark.only(("sqlite3", "sqlalchemy-asyncpg"))
def test_every_error_of_a_file_system_becomes_an_archive_error(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsspec.register_implementation("whimsical", Whimsical, clobber=True)
    harness = ArchiveHarness(world, "whimsical://archive")
    monkeypatch.setattr(Whimsical, "store", {})
    monkeypatch.setattr(Whimsical, "pseudo_dirs", [""])
    harness.process(produced("a"))
    age(world, 8)
    harness.process(produced("new"))
    monkeypatch.setattr(Whimsical, "is_ill", True)
    with pytest.raises(ArchiveError, match=r"cannot be written \(RuntimeError: the token has"):
        harness.purge()
    monkeypatch.setattr(Whimsical, "is_ill", False)
    assert harness.purge().purged == 1
    monkeypatch.setattr(Whimsical, "is_ill", True)
    with pytest.raises(ArchiveError, match="cannot be read"):
        harness.restore()
    monkeypatch.setattr(Whimsical, "is_ill", False)
    assert harness.restore().messages == 1


@pytest.mark.only(BOTH)
def test_a_purge_that_is_interrupted_leaves_no_file_behind(
    world: World, harness: ArchiveHarness, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = insert_many(world, 1_200)
    harness.process(produced("new"))
    read, calls = store_of(harness.inbox).old_messages, []

    def interrupted(*args: Any, **options: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return (yield from read(*args, **options))

    monkeypatch.setattr(store_of(harness.inbox), "old_messages", interrupted)
    with pytest.raises(KeyboardInterrupt):
        harness.purge()
    assert [path for path in place.rglob("*") if path.is_file()] == []
    assert message_ids(world) == ["new", *old]
