"""kill -9 at any step of a purge: everything is in the database or in a finished file, the next
purge completes the work, and what was forgotten never runs again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
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
from oncebox.archive import Manifest, check, manifests, records
from oncebox.folder import folder_of
from services import wait_until
from worlds import World, order

pytestmark = [pytest.mark.crash, pytest.mark.only(("sqlite3", "psycopg"))]

MESSAGES = 5


class Nursery:
    """The process that purges are forked from."""

    def __init__(self) -> None:
        paths = [str(Path(__file__).parent.parent), os.environ.get("PYTHONPATH", "")]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "faults.purge_worker"],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def purge(self, url: str, place: str | None, last: int) -> int:
        """Let a purge run up to a step; answers its exit code."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"url": url, "place": place, "last": last}) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def close(self) -> None:
        self._process.communicate()


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    nursery = Nursery()
    yield nursery
    nursery.close()


class House:
    """Messages that are forgotten, round by round, while each time another step is the last."""

    def __init__(self, world: World, nursery: Nursery, place: str | None) -> None:
        self.world = world
        self.place = place
        self.rounds = 0
        self._read: dict[Manifest, set[str]] = {}
        self._nursery = nursery
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
        """One round; says whether the purge was killed."""
        self.rounds += 1
        ids = [f"{number}/{n}" for n in range(MESSAGES)]
        self._fill(ids)
        code = self._nursery.purge(self.world.url, self.place, number)
        assert code in (0, -signal.SIGKILL)
        self._check(ids)
        assert self._deliver_late(ids[:2]) <= {"duplicate", "quarantined"}
        wait_until(lambda: self._purge(ids), f"{ids} are never forgotten")
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
            f"minted_at = received_at - {week}"
        )

    def _deliver_late(self, ids: list[str]) -> set[str]:
        """What becomes of duplicates from before the mark; no trace of them is left."""
        at = (datetime.now(UTC) - timedelta(days=8)).isoformat()
        late: list[Delivery] = [order(id, time=at) for id in ids]
        kinds = {outcome.kind.value for outcome in self.inbox.process(late)}
        self.query("DELETE FROM oncebox_inbox WHERE seq IN (SELECT seq FROM oncebox_dead)")
        self.query("DELETE FROM oncebox_dead")
        return kinds

    def _purge(self, ids: list[str]) -> bool:
        """Sessions of the dead may hold some for a moment."""
        self.inbox.housekeeping.purge()
        return not set(ids) & self._known()

    def _known(self) -> set[str]:
        return {id for (id,) in self.query("SELECT message_id FROM oncebox_inbox")}

    def _check(self, ids: list[str]) -> None:
        """Nothing is lost, and nothing is half forgotten."""
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
def killed(world: World, nursery: Nursery, place: str | None, stride: int) -> Iterator[House]:
    """A house in which a purge was killed at one step after the other."""
    house = House(world, nursery, place)
    with closing(house):
        for number in count(1, stride):
            if not house.play(number):
                break
        assert number > 20, "there are more steps than that"
        yield house


@every_step
def test_a_purge_killed_at_any_step_loses_nothing(
    world: World, nursery: Nursery, stride: int
) -> None:
    with killed(world, nursery, None, stride):
        pass


@every_step
def test_a_purge_with_an_archive_killed_at_any_step_loses_nothing(
    world: World, nursery: Nursery, tmp_path: Path, stride: int
) -> None:
    with killed(world, nursery, str(tmp_path / "archive"), stride) as house:
        checked = house.inbox.archives.check()
        assert checked.damaged == []
        assert checked.unfinished, "it was killed over files too"
        restored = house.inbox.archives.restore(why="to see")
        assert (restored.files, restored.messages) == (checked.files, house.rounds * MESSAGES)
