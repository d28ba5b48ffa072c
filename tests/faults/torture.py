"""The drain under torture: a source, those who work on it, and what must become of it.

A consumer and a receiver read the same partitions, four drainers run what is stored, an operator
puts dead letters back and away. A killed process is started again, a suspended one resumes later.
However that goes, a key's messages take effect one after the other, in order, each once or, if
the operator discarded it, never; and in the end nothing is left.
"""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import psycopg

from faults.drain_worker import TIMEOUT, Entry, Source, make_inbox
from oncebox import Inbox
from support.fork_server import ForkServer
from support.services import read_lines, wait_until
from support.worlds import World

PARTITIONS = 4
DRAINERS = ("drainer",) * 4
EVERYBODY = (*DRAINERS, "consumer", "receiver", "operator")
NAPS = (0.2, 0.5, 1.5, 2.5)
"""How long a worker is suspended; 1 is the time after which the server ends a transaction."""

Place = tuple[int, int]


class Size(msgspec.Struct, frozen=True):
    """How much there is to do, and how much goes wrong."""

    keys: int
    hot: int
    """Messages of the hot key, which is key 0."""
    longest: int
    """Messages of the longest of the other keys."""
    free: int = 0
    """Messages without a key."""
    flaky: float = 0.08
    bad: float = 0.02
    strikes: int = 0
    """How often a worker is killed or suspended."""


@contextmanager
def looking(world: World) -> Iterator[Callable[[str], list[tuple[Any, ...]]]]:
    """Queries on one connection: what is looked at every few milliseconds must cost little."""
    connection: Any
    if world.is_postgres:
        connection = psycopg.connect(world.url, autocommit=True)
    else:
        connection = sqlite3.connect(world.url.removeprefix("sqlite:///"), timeout=30)
    with closing(connection):
        yield lambda sql: connection.execute(sql).fetchall()


class Model:
    """One run, decided by its seed as far as chance between processes lets it be."""

    worker: ClassVar[str] = "faults.drain_worker"
    read: ClassVar[type[Source]] = Source
    everybody: Sequence[str] = EVERYBODY

    def __init__(
        self, world: World, folder: Path, seed: int, size: Size, *, without: str = ""
    ) -> None:
        self.world = world
        self.folder = folder
        self.seed = seed
        self.size = size
        self.chance = random.Random(seed)
        self.entries = list(self._entries())
        self.killed: set[int] = set()
        self._guard = without
        self._workers: dict[int, str] = {}
        self._asleep: dict[int, float] = {}
        self._exits: list[tuple[str, int]] = []
        self._seen_stuck: list[str] = []
        self._numbers = count()
        self._write_source()
        self._make_tables()

    # -- the source -------------------------------------------------------------------------------

    def _entries(self) -> Iterator[Entry]:
        """Everything that is produced."""
        size = self.size
        turns = [0] * size.hot
        for key in range(1, size.keys):
            turns += [key] * self.chance.randint(1, size.longest)
        turns += range(size.keys, size.keys + size.free)
        self.chance.shuffle(turns)
        numbers: Counter[int] = Counter()
        for key in turns:
            yield Entry(key, numbers[key], self._fate(), free=key >= size.keys)
            numbers[key] += 1

    def _fate(self) -> str:
        chance = self.chance.random()
        if chance < self.size.bad:
            return "bad"
        return "flaky" if chance < self.size.bad + self.size.flaky else "good"

    def _write_source(self) -> None:
        partitions: list[list[Entry]] = [[] for _ in range(PARTITIONS)]
        for entry in self.entries:
            partitions[entry.key % PARTITIONS].append(entry)
        self.read.write(self.folder, partitions)
        self._source = self.read(self.folder)

    def _make_tables(self) -> None:
        identity = "INTEGER PRIMARY KEY AUTOINCREMENT"
        if self.world.is_postgres:
            identity = "bigint GENERATED ALWAYS AS IDENTITY"
            name = self.world.query("SELECT current_database()")[0][0]
            self.world.execute(f'ALTER DATABASE "{name}" SET synchronous_commit = off')
        self.world.execute("DROP TABLE IF EXISTS ledger")
        self.world.execute("DROP TABLE IF EXISTS last")
        self.world.execute(f"CREATE TABLE ledger (id {identity}, key integer, number integer)")
        self.world.execute("CREATE TABLE last (key integer PRIMARY KEY, number integer)")
        self.world.execute(
            "WITH RECURSIVE keys (key) AS (SELECT 0 UNION ALL SELECT key + 1 FROM keys "
            "WHERE key < %s) INSERT INTO last (key, number) SELECT key, -1 FROM keys",
            self.size.keys + self.size.free,
        )

    # -- the run ----------------------------------------------------------------------------------

    def run(self) -> None:
        """Torture everybody, then let them come to an end."""
        with self._at_work(self.everybody):
            self._torture()
            self._until(lambda: not self._asleep)  # one may hold the lock that we are about to need
            self._until(self._is_settled)
            self._until(self._is_drained)
            self._stop()
        self._look_back()

    def drain(self) -> None:
        """Only drain, in peace."""
        with self._at_work(DRAINERS):
            self._until(self._is_drained)
            self._stop()

    def finds_violations(self) -> bool:
        """Work in peace until a violation shows; False if all goes well."""
        with self._at_work(self.everybody):
            self._until(lambda: self._is_found() or (self._is_settled() and self._is_drained()))
            if self._is_found():
                return True
            self._stop()
        self._look_back()
        return bool(self._findings())

    def _look_back(self) -> None:
        """What is left to do when everybody is gone."""

    def _start_fork_server(self) -> ForkServer:
        arguments = (self.world.url, str(self.folder), self._guard)
        return ForkServer(self.worker, *arguments, log=self.folder / "log", strict=True)

    @contextmanager
    def _at_work(self, roles: Sequence[str]) -> Iterator[None]:
        with (
            closing(self._start_fork_server()) as self._fork_server,
            self._open() as self._inbox,
            looking(self.world) as self._look,
        ):
            for role in roles:
                self._start(role)
            yield

    def _open(self) -> Inbox:
        return make_inbox(self.world.url)

    def _start(self, role: str) -> None:
        pid = self._fork_server.ask(start=role, seed=f"{self.seed}/{next(self._numbers)}")
        self._workers[pid] = role

    def _torture(self) -> None:
        """Strike whenever so much has been done."""
        for point in sorted(self.chance.uniform(0, 0.9) for _ in range(self.size.strikes)):
            self._until(partial(self._has_done, point * len(self.entries)))
            self._seen_stuck += self._stuck()
            pid = self.chance.choice(list(self._workers))
            if self.chance.random() < 0.6 or len(self._asleep) > 1:
                self._kill(pid)
            else:
                self._put_to_sleep(pid)

    def _kill(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)
        role = self._workers.pop(pid)
        self._asleep.pop(pid, None)
        code = self._fork_server.ask(reap=pid)
        if code == -signal.SIGKILL:
            self.killed.add(pid)
        else:
            self._exits.append((role, code))
        self._start(role)

    def _put_to_sleep(self, pid: int) -> None:
        """On SQLite no other process can write until it resumes, if it has the lock."""
        os.kill(pid, signal.SIGSTOP)
        nap = TIMEOUT.total_seconds() * self.chance.choice(NAPS)
        self._asleep[pid] = time.monotonic() + nap

    def _wake(self) -> None:
        now = time.monotonic()
        for pid in [pid for pid, until in self._asleep.items() if until < now]:
            os.kill(pid, signal.SIGCONT)
            del self._asleep[pid]

    def _until(self, condition: Callable[[], bool]) -> None:
        """Wait, for as long as something is done now and then."""
        done = False
        while not done:
            before = self._progress()

            def has_changed(before: int = before) -> bool:
                nonlocal done
                self._wake()
                done = condition()
                return done or self._progress() != before

            wait_until(has_changed, f"seed {self.seed}: nothing is done")

    def _has_done(self, enough: float) -> bool:
        return self._progress() >= enough

    def _progress(self) -> int:
        """How many handlers have come to their end."""
        path = self.folder / "progress"
        return path.stat().st_size if path.exists() else 0

    def _is_settled(self) -> bool:
        return self._source.is_settled

    def _is_drained(self) -> bool:
        """Whether nothing is left; what is dead by now is discarded."""
        if self._inbox.dead_letters.find(limit=1):
            self._inbox.dead_letters.discard(everything=True, why="the end")
        return not self._has_any("oncebox_pending", "oncebox_dead_letter")

    def _has_any(self, *tables: str) -> bool:
        exist = [f"EXISTS (SELECT 1 FROM {table})" for table in tables]
        return bool(self._look(f"SELECT {' OR '.join(exist)}")[0][0])

    def _stop(self) -> None:
        for pid in self._workers:
            os.kill(pid, signal.SIGTERM)
        self._exits += [
            (role, self._fork_server.ask(reap=pid)) for pid, role in self._workers.items()
        ]

    # -- the truth --------------------------------------------------------------------------------

    def violations(self) -> list[str]:
        """Everything that is not as it must be."""
        return [*self._findings(), *self._bad_ends()]

    def _findings(self) -> list[str]:
        return [*self._complaints(), *self._seen_stuck, *self._disorder(), *self._losses()]

    def _is_found(self) -> bool:
        return bool(self._complaints() or self._stuck())

    def _complaints(self) -> list[str]:
        """What handlers saw inside their transactions."""
        return read_lines(self.folder / "violations")

    def _stuck(self) -> list[str]:
        """Messages that wait for nothing: at no moment there may be one."""
        blocked = "'infinity'" if self.world.is_postgres else "9223372036854775807"
        found = self._look(
            f"SELECT message_id FROM oncebox_pending p WHERE available_at = {blocked} "
            "AND NOT EXISTS (SELECT 1 FROM oncebox_pending h WHERE h.key = p.key "
            f"AND h.seq < p.seq AND coalesce(h.available_at < {blocked}, true)) "
            "AND NOT EXISTS (SELECT 1 FROM oncebox_dead_letter d WHERE d.key = p.key "
            "AND d.seq < p.seq AND d.blocks_key)"
        )
        return [f"{id} waits for nothing" for (id,) in found]

    def _disorder(self) -> list[str]:
        """Keys whose messages took effect out of order or more than once."""
        keys: dict[int, list[int]] = {}
        for key, number in self.ledger():
            keys.setdefault(key, []).append(number)
        return [f"key {key}: {n}" for key, n in keys.items() if n != sorted(set(n))]

    def _losses(self) -> list[str]:
        """What was produced was done or discarded, and nothing was both."""
        done = set(self.ledger())
        discarded = self._acted("discard")
        produced = {(entry.key, entry.number) for entry in self.entries}
        return [
            *[f"{place} is lost" for place in produced - done - discarded],
            *[f"{place} was done and discarded" for place in done & discarded],
            *[f"{place} was never produced" for place in done - produced],
        ]

    def _bad_ends(self) -> list[str]:
        """Good messages that became dead letters, and workers that did not stop cleanly."""
        good = {(entry.key, entry.number) for entry in self.entries if entry.fate == "good"}
        acted = self.world.query("SELECT message_id, reason FROM oncebox_audit")
        reasons = {Entry.place(id): reason for id, reason in acted}
        return [
            *[f"{p} is innocent, and was a dead letter: {reasons[p]}" for p in good & set(reasons)],
            *self._bad_exits(),
        ]

    def _bad_exits(self) -> list[str]:
        names = [name for (name,) in self.world.query("SELECT name FROM oncebox_worker")]
        left = {int(name.split(":")[1]) for name in names} - self.killed
        return [
            *[f"the exit code of a {role} is {code}" for role, code in self._exits if code],
            *[f"worker {pid} did not sign off" for pid in left],
        ]

    def ledger(self) -> list[Place]:
        """What took effect, in order."""
        found = self.world.query("SELECT key, number FROM ledger ORDER BY id")
        return [(key, number) for key, number in found]

    def _acted(self, act: str) -> set[Place]:
        query = "SELECT message_id FROM oncebox_audit WHERE action = %s"
        return {Entry.place(id) for (id,) in self.world.query(query, act)}

    def log(self) -> str:
        """What the workers said, for a test that fails."""
        return "\n".join([f"seed {self.seed}", *read_lines(self.folder / "log")[-40:]])
