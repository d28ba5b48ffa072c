"""Workers in processes of their own, which their messages, a named point or a test may kill.

    python -m faults.crashing_worker

is a fork server: it has everything imported, reads one request per line, forks a worker for each
job, and says when asked how a worker ended. Its workers do not outlive it.
"""

from __future__ import annotations

import json
import logging
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from itertools import cycle
from pathlib import Path
from typing import Any

import msgspec
import sqlalchemy.dialects.sqlite.pysqlite  # noqa: F401 - here, once, not in every worker

from faults.child import Point, wrap
from oncebox import CloudEvents, Delivery, Gaps, Inbox, Retry, Worker
from oncebox.processing import drain, routing
from oncebox.storage.drivers.psycopg.database import PsycopgWork
from oncebox.storage.drivers.sqlite.database import SqliteWork
from oncebox.storage.postgres import PostgresStore
from oncebox.storage.sql import replays as replaying
from oncebox.storage.sqlite import SqliteStore
from support.events import cloud_event

UNIT_POINTS = (
    "after take",
    "after remove",
    "mid handler",
    "after record",
    "before commit 1",
    "after commit 1",
)
ALONE_POINTS = (
    "after take",
    "before commit 1",
    "after commit 1",  # its death is recorded
    "after take alone",
    "mid handler",
    "after record",
    "before commit 2",
    "after commit 2",
)
FEEDING_POINTS = (
    "mid handler",
    "after commit 1",  # what was stored has run, and there is more to store
    "after feeding",
    "after the feeding's commit",
)


class Job(msgspec.Struct):
    """What a worker is to do, and how much of it."""

    role: str
    url: str
    folder: str
    batch: int = 10
    max_attempts: int = 2
    hang: float = 0
    """Seconds that a handler sleeps which hangs."""
    pace: float = 0
    """Seconds that every handler takes."""
    feed: int = replaying.AT_ONCE
    """How many messages of a replay are stored at once."""
    point: str | None = None
    signal: int = signal.SIGKILL
    sequenced: bool = False
    """Whether messages are numbered."""
    deliveries: list[dict[str, Any]] = []


def delivery(
    id: str, key: str | None = None, *, type: str = "order", moods: Any = (), redelivered: Any = ()
) -> dict[str, Any]:
    """A message as JSON. Moods: what each of its runs does; the last one repeats."""
    return {
        "type": type,
        "data": {"id": id, "key": key, "moods": list(moods)},
        "id": id,
        "key": key,
        "redelivered": bool(redelivered),
    }


def deliveries(described: list[dict[str, Any]]) -> list[Delivery]:
    """Messages as a broker hands them over."""
    return [_delivery(**one) for one in described]


def _delivery(*, redelivered: bool, **described: Any) -> Delivery:
    return msgspec.structs.replace(cloud_event(**described), redelivered=redelivered)


# -- handlers -------------------------------------------------------------------------------------


class Poison(msgspec.Struct):
    """A payload whose decoding is the end of its process."""

    id: str
    key: str | None

    def __post_init__(self) -> None:
        os.abort()


def make_inbox(job: Job, point: Point) -> Inbox:
    """The inbox of tests and workers. An effect is a row, written in two halves."""
    inbox = Inbox(
        "billing",
        job.url,
        retry=Retry(job.max_attempts, initial_delay=timedelta(0), max_delay=timedelta(0)),
        transaction_timeout=timedelta(seconds=1),
        identity=CloudEvents(sequence="number") if job.sequenced else None,
        gaps=Gaps(then="hold"),
    )

    @inbox.on("order")
    def order(payload: dict[str, Any], tx: Any) -> None:
        id, key = payload["id"], payload["key"]
        tx.execute(
            "INSERT INTO ledger (id, key, pid, body) VALUES (:id, :key, :pid, 'half')",
            id=id,
            key=key,
            pid=os.getpid(),
        )
        tx.execute("SELECT count(*) FROM ledger").rows()  # the row is on the server by now
        point.reached("mid handler")
        time.sleep(job.pace)
        _MOODS[_mood(job, payload)](job)
        tx.execute("UPDATE ledger SET body = 'whole' WHERE id = :id", id=id)

    @inbox.on("poison")
    def poison(payload: Poison) -> None:
        raise AssertionError("it cannot be decoded")

    return inbox


def _mood(job: Job, payload: dict[str, Any]) -> str:
    """What this run of a message does; earlier runs are counted by files."""
    folder, moods = Path(job.folder), payload["moods"]
    if not moods or (folder / "fixed").exists():
        return "well"
    marks = folder / f"runs-{payload['id']}"
    with marks.open("a") as file:
        file.write("x")
    return str(moods[min(marks.stat().st_size, len(moods)) - 1])


def _well(job: Job) -> None:
    pass


def _raise(job: Job) -> None:
    raise ValueError("a bad mood")


def _abort(job: Job) -> None:
    os.abort()


def _out_of_memory(job: Job) -> None:
    os.kill(os.getpid(), signal.SIGKILL)  # as the kernel does


def _hang(job: Job) -> None:
    time.sleep(job.hang)


_MOODS: dict[str, Callable[[Job], None]] = {
    "well": _well,
    "raise": _raise,
    "abort": _abort,
    "out of memory": _out_of_memory,
    "hang": _hang,
}


# -- points ---------------------------------------------------------------------------------------


class Commits:
    """Counts the commits since messages were taken for the first time."""

    def __init__(self, point: Point) -> None:
        self.point = point
        self.has_begun = False
        self.count = 0

    def begin(self) -> None:
        """Messages were taken: arm the point, the first time that this happens."""
        if not self.has_begun:
            self.has_begun = self.point.armed = True

    def before(self) -> None:
        if self.point.armed:
            self.count += 1
            self.point.reached(f"before commit {self.count}")

    def after(self) -> None:
        self.point.reached(f"after commit {self.count}")


class Feedings:
    """Knows the commits with which messages of a replay are stored."""

    def __init__(self, point: Point) -> None:
        self.point = point
        self.is_open = False

    def done(self) -> None:
        self.is_open = True
        self.point.reached("after feeding")

    def after_commit(self) -> None:
        if self.is_open:
            self.is_open = False
            self.point.reached("after the feeding's commit")


def install(point: Point) -> None:
    """Let every named step of a drain pass by the point."""
    commits, feedings = Commits(point), Feedings(point)
    for work in (PsycopgWork, SqliteWork):
        wrap(work, "commit", second_call=commits.before, after=commits.after)
        wrap(work, "commit", after=feedings.after_commit)
    for store in (PostgresStore, SqliteStore):
        wrap(store, "remove", after=lambda: point.reached("after remove"))
        wrap(store, "record", after=lambda: point.reached("after record"))
        wrap(store, "take_isolated", after=lambda: point.reached("after take alone"))
        wrap(store, "_store_again", after=feedings.done)
    select_batch = routing.select_batch

    def armed_select(rows: Any) -> Any:
        if rows:
            commits.begin()
            point.reached("after take")
        return select_batch(rows)

    setattr(drain, "select_batch", armed_select)  # noqa: B010


# -- roles ----------------------------------------------------------------------------------------


def work(job: Job) -> None:
    point = Point(job.point, signal.Signals(job.signal))
    replaying.AT_ONCE = job.feed
    if job.point is not None:
        install(point)
    with make_inbox(job, point) as inbox:
        _ROLES[job.role](inbox, job)


def _drain(inbox: Inbox, job: Job) -> None:
    """Drain until this process is stopped or killed."""
    drainer = Worker(inbox, batch=job.batch, poll=0.05)
    signal.signal(signal.SIGTERM, lambda *_: drainer.stop())
    drainer.run()


def _drain_once(inbox: Inbox, job: Job) -> None:
    inbox.drain(batch=job.batch)


def _consume(inbox: Inbox, job: Job) -> None:
    """Process what the broker has, and note what it knows of that: what it handed out, and what
    was settled."""
    for batch in _handed_out(job):
        inbox.process(deliveries(batch))


def _receive(inbox: Inbox, job: Job) -> None:
    """Receive and process what the broker has by turns, and drain in between."""
    takes = cycle([inbox.receive, inbox.process])
    for take, batch in zip(takes, _handed_out(job), strict=False):
        take(deliveries(batch))
        inbox.drain(batch=job.batch)


def _handed_out(job: Job) -> Iterator[list[dict[str, Any]]]:
    """Batches; a batch is acked when the next one is requested."""
    with (Path(job.folder) / "journal").open("a") as journal:
        for start in range(0, len(job.deliveries), job.batch):
            batch = job.deliveries[start : start + job.batch]
            _note(journal, "handed out", batch)
            yield batch
            _note(journal, "settled", batch)


def _note(journal: Any, word: str, batch: list[dict[str, Any]]) -> None:
    journal.write("".join(f"{word}:{one['id']}\n" for one in batch))
    journal.flush()


_ROLES: dict[str, Callable[[Inbox, Job], None]] = {
    "drain": _drain,
    "drain once": _drain_once,
    "consume": _consume,
    "receive": _receive,
}


# -- the fork server ------------------------------------------------------------------------------


def serve() -> Job | None:
    """Answer requests until there are no more; a worker returns from here with its job."""
    living: set[int] = set()
    for line in sys.stdin:
        request = json.loads(line)
        if "pid" in request:
            answer = _look(request["pid"])
            if answer is not None:
                living.discard(request["pid"])
        else:
            answer = os.fork()
            if answer == 0:
                _leave_home(request["log"])
                return msgspec.convert(request["job"], Job)
            living.add(answer)
        print(json.dumps(answer), flush=True)
    for pid in living:
        os.kill(pid, signal.SIGKILL)
    return None


def _look(pid: int) -> int | None:
    """The exit code of a worker, None if it lives. Its PID is not reused before this call."""
    found, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if found else None


def _leave_home(log: str) -> None:
    """Neither hear nor answer the requests any more, and log to a file."""
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for stream in (1, 2):
        os.dup2(file, stream)
    logging.basicConfig(format="%(levelname)s %(message)s")


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    todo = serve()
    if todo is not None:
        work(todo)
