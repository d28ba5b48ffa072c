"""kill -9 at any step of a purge: everything is in the database or in a finished file, the next
purge completes the work, and what was purged never runs again."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
import pytest

from faults.purge_worker import make_inbox
from oncebox import Delivery
from oncebox.operations.archive.format import Manifest, check, manifests, records
from oncebox.operations.archive.location import folder_of
from support.fork_server import ForkServer
from support.services import wait_until
from support.worlds import World, order

pytestmark = [pytest.mark.crash, pytest.mark.only(("sqlite3", "psycopg"))]

MESSAGES = 5


@pytest.fixture(scope="module")
def fork_server() -> Iterator[ForkServer]:
    fork_server = ForkServer("faults.purge_worker")
    yield fork_server
    fork_server.close()


class PurgeRounds:
    """Messages that are purged in rounds; each round is killed at another step."""

    def __init__(self, world: World, fork_server: ForkServer, place: str | None) -> None:
        self.world = world
        self.place = place
        self.rounds = 0
        self._read: dict[Manifest, set[str]] = {}
        self._fork_server = fork_server
        self.inbox = make_inbox(world.url, place)
        world.inboxes.append(self.inbox)
        self.inbox.migrate()
        self._connection = (
            psycopg.connect(world.url, autocommit=True) if world.is_postgres else None
        )

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        if self._connection is None:
            return self.world.query(sql)
        cursor = self._connection.execute(sql)
        return cursor.fetchall() if cursor.description else []

    def play(self, number: int) -> bool:
        """One round; True if the purge was killed."""
        self.rounds += 1
        ids = [f"{number}/{n}" for n in range(MESSAGES)]
        self._fill(ids)
        code: int = self._fork_server.ask(url=self.world.url, place=self.place, last=number)
        assert code in (0, -signal.SIGKILL)
        self._check(ids)
        assert self._deliver_late(ids[:2]) <= {"duplicate", "quarantined"}
        wait_until(lambda: self._purge(ids), f"{ids} are never purged")
        self._check(ids)
        assert self._deliver_late(ids) == {"quarantined"}
        effects = self.query("SELECT id FROM effects ORDER BY id")
        assert effects == [(id,) for id in ids], "nothing runs twice"
        return code != 0

    def _fill(self, ids: list[str]) -> None:
        """Old messages, one of which was run later than it came."""
        self.query("DELETE FROM effects")
        self.inbox.receive([order(ids[0])])
        self.inbox.drain()
        self.inbox.process([order(id) for id in ids[1:]])
        week = "interval '8 days'" if self.world.is_postgres else "8 * 86400000000"
        self.query(
            f"UPDATE oncebox_inbox SET received_at = received_at - {week}, "
            f"produced_at = received_at - {week}"
        )

    def _deliver_late(self, ids: list[str]) -> set[str]:
        """The outcomes of duplicates from before the watermark; their rows are removed again."""
        at = (datetime.now(UTC) - timedelta(days=8)).isoformat()
        late: list[Delivery] = [order(id, time=at) for id in ids]
        kinds = {outcome.kind.value for outcome in self.inbox.process(late)}
        self.query("DELETE FROM oncebox_inbox WHERE seq IN (SELECT seq FROM oncebox_dead_letter)")
        self.query("DELETE FROM oncebox_dead_letter")
        return kinds

    def _purge(self, ids: list[str]) -> bool:
        """Sessions of killed purges may lock some messages for a moment."""
        self.inbox.purge.run()
        return not set(ids) & self._known()

    def _known(self) -> set[str]:
        return {id for (id,) in self.query("SELECT message_id FROM oncebox_inbox")}

    def _check(self, ids: list[str]) -> None:
        """Nothing is lost, and no message is partly purged."""
        known = self._known()
        if self.place is not None:
            assert set(ids) <= known | self._archived()
        attempts = self.query("SELECT message_id FROM oncebox_attempt")
        assert set(attempts) == {(id,) for id in ids[:1] if id in known}

    def _archived(self) -> set[str]:
        """What is in finished files; those of earlier rounds have been read before."""
        assert self.place is not None
        folder = folder_of(self.place)
        for manifest in manifests(folder, "billing"):
            if manifest not in self._read:
                check(folder, manifest)
                batches = records(folder, manifest, at_once=100)
                self._read[manifest] = {record.id for batch in batches for record in batch}
        return set().union(*self._read.values())


every_step = pytest.mark.parametrize(
    "stride", [pytest.param(1, marks=pytest.mark.slow), 5], ids=["every step", "some steps"]
)


@contextmanager
def killed(
    world: World, fork_server: ForkServer, place: str | None, stride: int
) -> Iterator[PurgeRounds]:
    """A house in which a purge was killed at one step after the other."""
    rounds = PurgeRounds(world, fork_server, place)
    with closing(rounds):
        for number in count(1, stride):
            if not rounds.play(number):
                break
        assert number > 15, "a purge has more steps than that"
        yield rounds


@every_step
def test_a_purge_killed_at_any_step_loses_nothing(
    world: World, fork_server: ForkServer, stride: int
) -> None:
    with killed(world, fork_server, None, stride):
        pass


@every_step
def test_a_purge_with_an_archive_killed_at_any_step_loses_nothing(
    world: World, fork_server: ForkServer, tmp_path: Path, stride: int
) -> None:
    with killed(world, fork_server, str(tmp_path / "archive"), stride) as rounds:
        checked = rounds.inbox.archives.check()
        assert checked.damaged == []
        assert checked.unfinished, "it was killed over files too"
        restored = rounds.inbox.archives.restore(why="to see")
        assert (restored.files, restored.messages) == (checked.files, rounds.rounds * MESSAGES)
