"""Whichever call to the database goes wrong while messages are archived, purged and restored:
all are in the database or in a file, and once it is done again they are where they belong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import pytest

from faults.injection import AnswerBroken, CutAfter, Fault, Injector, Refused
from oncebox import Retention
from oncebox.operations.archive.format import manifests, records
from oncebox.operations.archive.location import folder_of
from support.archives import ArchiveHarness
from support.worlds import World, order

# A connection whose opening was answered by an injected error is left to the garbage collector.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.only(("sqlite3", "psycopg")),
]

MESSAGES = 3
PASSES = 5
"""How often it is tried after a fault: what that left behind may raise, but not forever."""
QUICK = 7
"""Every seventh call, unless there is time for all."""


class ArchiveFaults:
    """Messages that are put away and taken out again, while another call goes wrong each time."""

    def __init__(self, world: World, injector: Injector, place: Path) -> None:
        self.world = world
        self.place = place
        self.injector = injector
        self.harness = ArchiveHarness(world, place)

    def fail_every_call(self, fault: Fault, step: int) -> None:
        for number in count(1, step):
            ids = self._fill(number)
            before = self.harness.truth()
            missed = self._spoil(number, fault, self.harness.purge)
            assert set(ids) <= self._known() | self._archived()
            self._repeat(self.harness.purge, lambda: not self._known())
            assert set(ids) == self._archived()
            missed &= self._spoil(number, fault, self._restore)
            self._repeat(self._restore, partial(self._are_known, ids))
            assert self.harness.truth() == before
            if missed:
                assert number > 20
                return

    def _fill(self, number: int) -> list[str]:
        """Old messages, in an archive of their own; one was run later than it came."""
        ids = [f"{number}/{n}" for n in range(MESSAGES)]
        archive = str(self.place / str(number))
        retention = Retention(days=7, archive=archive)
        msgspec.structs.force_setattr(self.harness.inbox._context, "retention", retention)
        for table in ("inbox", "attempt"):
            self.world.execute(f"DELETE FROM oncebox_{table}")
        self.world.receive(self.harness.inbox, [order(ids[0])])
        self.world.drain(self.harness.inbox)
        self.world.process(self.harness.inbox, [order(id) for id in ids[1:]])
        week = "interval '8 days'" if self.world.is_postgres else "8 * 86400000000"
        self.world.execute(
            f"UPDATE oncebox_inbox SET received_at = received_at - {week}, "
            f"produced_at = received_at - {week}"
        )
        return ids

    def _restore(self) -> None:
        self.harness.restore(keep=timedelta(0))

    def _spoil(self, number: int, fault: Fault, work: Callable[[], Any]) -> bool:
        """Let a call fail; True if there are fewer calls than that."""
        self.injector.arm(number, fault)
        with suppress(Exception):
            work()
        self.injector.disarm()
        return self.injector.count < number

    def _repeat(self, work: Callable[[], Any], condition: Callable[[], bool]) -> None:
        for _ in range(PASSES):
            with suppress(Exception):
                work()
                if condition():
                    return
        work()
        assert condition()

    def _are_known(self, ids: list[str]) -> bool:
        return set(ids) == self._known()

    def _known(self) -> set[str]:
        return {id for (id,) in self.injector.query("SELECT message_id FROM oncebox_inbox")}

    def _archived(self) -> set[str]:
        retention = self.harness.inbox.retention
        assert retention is not None
        assert retention.archive is not None
        folder = folder_of(retention.archive)
        return {
            record.id
            for manifest in manifests(folder, "billing")
            for batch in records(folder, manifest, at_once=100)
            for record in batch
        }


@pytest.fixture
def faults(
    world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[ArchiveFaults]:
    injector = Injector(world, monkeypatch)
    yield ArchiveFaults(world, injector, tmp_path)
    injector.close()


all_calls = pytest.mark.parametrize(
    "step", [pytest.param(1, marks=pytest.mark.slow), QUICK], ids=["every call", "some calls"]
)


@all_calls
def test_an_error_at_any_call_loses_nothing(faults: ArchiveFaults, step: int) -> None:
    faults.fail_every_call(Refused(), step)


@all_calls
def test_an_error_after_any_call_loses_nothing(faults: ArchiveFaults, step: int) -> None:
    faults.fail_every_call(AnswerBroken(), step)


@pytest.mark.only(("psycopg",))
@all_calls
def test_a_connection_lost_after_any_call_loses_nothing(faults: ArchiveFaults, step: int) -> None:
    faults.fail_every_call(CutAfter(), step)
