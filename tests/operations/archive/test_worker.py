"""Workers archive what they purge."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from oncebox import Inbox, Worker
from support.archives import ArchiveHarness, insert_many
from support.inboxes import produced
from support.tables import age, message_ids
from support.worlds import BOTH, World

pytestmark = pytest.mark.only((*BOTH, "sqlalchemy-asyncpg"), quick=BOTH)


def drain_until(world: World, inbox: Inbox, condition: Callable[[], bool]) -> None:
    """Let a drainer run until a condition holds."""
    drainer = Worker(inbox, poll=0.01)
    drainer.on_beat = lambda waits: drainer.stop() if condition() else None
    world.run(drainer.arun()) if world.is_async else drainer.run()


@pytest.mark.usefixtures("eager")
def test_a_worker_archives_what_it_purges(world: World, harness: ArchiveHarness) -> None:
    harness.process(produced("a"), produced("b"))
    age(world, 8)
    harness.process(produced("new"))
    drain_until(world, harness.inbox, lambda: message_ids(world) == ["new"])
    assert harness.archived() == {"a": 1, "b": 1}


@pytest.mark.usefixtures("eager")
def test_a_worker_continues_while_the_archive_cannot_be_written(
    world: World, harness: ArchiveHarness, place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place.write_text("a file where a directory should be")
    harness.process(produced("a"))
    age(world, 8)
    harness.process(produced("new"))

    def complaints() -> list[str]:
        errors = [r.getMessage() for r in caplog.records if r.levelno == logging.ERROR]
        return [error for error in errors if "the archive cannot be written" in error]

    drain_until(world, harness.inbox, lambda: len(complaints()) > 1)
    assert complaints()[0].startswith("billing: ")
    assert complaints()[0].endswith("retrying later")
    assert message_ids(world) == ["a", "new"]
    place.unlink()
    world.receive(harness.inbox, [produced("later")])
    drain_until(world, harness.inbox, lambda: message_ids(world) == ["later", "new"])
    assert harness.archived() == {"a": 1}
    assert world.effects() == ["a", "later", "new"]


@pytest.mark.only(BOTH)
@pytest.mark.usefixtures("eager")
def test_a_worker_that_is_stopped_during_a_purge_leaves_no_file_behind(
    world: World, harness: ArchiveHarness, place: Path
) -> None:
    insert_many(world, 1_200)
    harness.process(produced("new"))

    def parts() -> list[Path]:
        return list(place.rglob("*.part"))

    drain_until(world, harness.inbox, lambda: bool(parts()))
    assert parts() == []
    assert len(message_ids(world)) == 1_201


@pytest.mark.only(BOTH)
@pytest.mark.usefixtures("small_files")
def test_two_purges_at_once_lose_nothing(world: World, harness: ArchiveHarness) -> None:
    old = insert_many(world, 2_400)
    harness.process(produced("new"))
    inboxes = [harness.another(migrate=False) for _ in range(3)]
    start, counts = threading.Barrier(len(inboxes)), []

    def work(inbox: Inbox) -> None:
        start.wait(20)
        counts.append(inbox.purge.run().purged)

    threads = [threading.Thread(target=work, args=(inbox,)) for inbox in inboxes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(counts) == len(inboxes)
    assert sum(counts) == 2_400
    assert message_ids(world) == ["new"]
    archived = harness.archived()
    assert sorted(archived) == old
    harness.restore()
    assert message_ids(world) == ["new", *old]
