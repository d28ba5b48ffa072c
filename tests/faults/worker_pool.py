"""Real worker processes, which are watched and replaced as a supervisor does."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import psutil
import psycopg

from faults import crashing_worker
from faults.child import Point
from faults.crashing_worker import Job
from oncebox import DeadLetter, Inbox
from support.fork_server import ForkServer
from support.services import wait_until
from support.worlds import World

SEEDS = int(os.environ.get("ONCEBOX_TORTURE_SEEDS", "0"))
"""How many seeds are to be tried; if any, there is time for the widest variants."""

MAX_CRASHES = 60
"""Workers that a test may lose: where messages kill without end, more are lost."""

KILLED = (-signal.SIGABRT, -signal.SIGKILL)


class PoolWorker:
    """A worker process, until it ends."""

    def __init__(self, fork_server: ForkServer, job: Job, log: Path) -> None:
        self.job = job
        self._log = log
        self._fork_server = fork_server
        self.pid: int = fork_server.ask(job=msgspec.to_builtins(job), log=str(log))
        self._end: int | None = None

    def end(self) -> int | None:
        """Its exit code, None while it lives. Its number is its own as long as this says None."""
        if self._end is None:
            self._end = self._fork_server.ask(pid=self.pid)
        return self._end

    def send(self, number: int) -> None:
        if self.end() is None:
            os.kill(self.pid, number)

    def is_stopped(self) -> bool:
        return psutil.Process(self.pid).status() == psutil.STATUS_STOPPED

    def log(self) -> str:
        return self._log.read_text() if self._log.exists() else ""


class WorkerPool:
    """The workers of a test, and the truth about their work."""

    def __init__(self, world: World, fork_server: ForkServer, folder: Path) -> None:
        self.world = world
        self.folder = folder
        self.members: list[PoolWorker] = []
        self.dead: list[PoolWorker] = []
        self.is_strict = False
        """Whether a worker without a heartbeat is killed, as a supervisor would."""
        self.in_hurry = False
        """Whether the delay of a message after a crash is cut short."""
        self._fork_server = fork_server
        self._hired = 0
        self._connection = (
            psycopg.connect(world.url, autocommit=True) if world.is_postgres else None
        )
        number = "bigserial" if world.is_postgres else "INTEGER"
        world.execute(
            f"CREATE TABLE ledger (n {number} PRIMARY KEY, id text, key text, pid int, body text)"
        )
        with self.inbox() as inbox:
            inbox.migrate()

    def close(self) -> None:
        for member in self.members:
            member.send(signal.SIGKILL)
        wait_until(lambda: all(m.end() is not None for m in self.members), "a worker is left over")
        if self._connection is not None:
            self._connection.close()

    # -- the work ---------------------------------------------------------------------------------

    def job(self, role: str, **details: Any) -> Job:
        url = self.world.url
        if self.world.name.startswith("sqlalchemy"):
            url = url.replace("://", "+pysqlite://", 1)
        return Job(role, url, str(self.folder), **details)

    @contextmanager
    def inbox(self, **details: Any) -> Iterator[Inbox]:
        """The inbox in this process."""
        with crashing_worker.make_inbox(self.job("", **details), Point(None)) as inbox:
            yield inbox

    def receive(self, described: list[dict[str, Any]]) -> None:
        with self.inbox() as inbox:
            inbox.receive(crashing_worker.deliveries(described))

    def fix_handlers(self) -> None:
        """From now on handlers do not crash."""
        (self.folder / "fixed").touch()

    def hire(self, role: str, number: int = 1, **details: Any) -> list[PoolWorker]:
        members = [self._start(self.job(role, **details)) for _ in range(number)]
        self.members += members
        return members

    def _start(self, job: Job) -> PoolWorker:
        self._hired += 1
        return PoolWorker(self._fork_server, job, self.folder / f"log-{self._hired}")

    # -- supervision ------------------------------------------------------------------------------

    def work_until(self, condition: Callable[[], bool], complaint: str) -> None:
        """Replace crashed workers until the condition holds."""

        def holds() -> bool:
            self.look_after()
            return condition()

        wait_until(holds, complaint)

    def work(self) -> None:
        """Let the staff work until all is finished but what waits for an operator."""
        try:
            self.work_until(self.is_finished, "there is still something to do")
        except TimeoutError as error:
            raise TimeoutError(f"{error}: {self.unfinished()}") from None

    def is_finished(self) -> bool:
        drains = all(member.job.role == "drain" for member in self.members)
        return drains and not self.unfinished()

    def look_after(self) -> None:
        if self.is_strict:
            self._kill_the_overdue()
        ended = [member for member in self.members if member.end() is not None]
        self.members = [member for member in self.members if member not in ended]
        for member in ended:
            if member.end() in KILLED:
                self._replace(member)
            else:
                assert member.end() == 0, member.log()

    def _replace(self, member: PoolWorker) -> None:
        self.dead.append(member)
        assert len(self.dead) < MAX_CRASHES, f"workers die without end:\n{member.log()}"
        if self.in_hurry and not any(other.job.role == "drain" for other in self.members):
            self.wake()  # nothing runs isolated, so what waits after a crash need not wait
        self.members.append(self._start(self._next(member.job)))

    def _next(self, job: Job) -> Job:
        """The next consumer gets the messages that were not acked, as from a broker."""
        if job.role not in ("consume", "receive"):
            return job
        journal = (self.folder / "journal").read_text().splitlines()
        left = [
            {**one, "redelivered": f"handed out:{one['id']}" in journal}
            for one in job.deliveries
            if f"settled:{one['id']}" not in journal
        ]
        return msgspec.structs.replace(job, deliveries=left)

    def wake(self) -> None:
        self.query(f"UPDATE oncebox_pending SET available_at = NULL WHERE {self._retrying}")

    def _kill_the_overdue(self) -> None:
        """The supervisor's part on SQLite: there is no server that ends a transaction."""
        now = time.time_ns() // 1000
        overdue = self.query("SELECT name FROM oncebox_worker WHERE until < %s", now)
        pids = {int(name.split(":")[1]) for (name,) in overdue}
        for member in self.members:
            if member.pid in pids:
                member.send(signal.SIGKILL)

    # -- the truth --------------------------------------------------------------------------------

    def query(self, sql: str, *params: Any) -> list[tuple[Any, ...]]:
        if self._connection is None:
            return self.world.query(sql, *params)
        cursor = self._connection.execute(sql, params or None)
        return cursor.fetchall() if cursor.description else []

    def server_version(self) -> int:
        return int(self.query("SHOW server_version_num")[0][0]) // 10_000

    @property
    def _retrying(self) -> str:
        return "available_at < " + ("'infinity'" if self.world.is_postgres else str(2**63 - 1))

    def unfinished(self) -> list[tuple[Any, ...]]:
        """What is to run, or to run again."""
        return self.query(
            "SELECT message_id, attempts, crashes, isolated FROM oncebox_pending "
            f"WHERE available_at IS NULL OR {self._retrying}"
        )

    def ledger(self) -> list[tuple[str, str | None, int]]:
        """What took effect, in order: id, key, process."""
        rows = self.query("SELECT id, key, pid, body FROM ledger ORDER BY n")
        assert {row[3] for row in rows} <= {"whole"}
        return [row[:3] for row in rows]

    def letters(self) -> list[DeadLetter]:
        with self.inbox() as inbox:
            return inbox.dead_letters.find()

    def check_done(self, described: list[dict[str, Any]]) -> None:
        """These took effect, once, in the order of their keys, and nothing else did."""
        ledger = self.ledger()
        assert Counter(id for id, _, _ in ledger) == Counter(one["id"] for one in described)
        for key in {one["key"] for one in described if one["key"] is not None}:
            wanted = [one["id"] for one in described if one["key"] == key]
            assert [id for id, found, _ in ledger if found == key] == wanted
        states = self.world.states()
        assert {states[one["id"]] for one in described} <= {"done"}
