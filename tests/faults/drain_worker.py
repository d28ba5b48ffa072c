"""The workers of the torture model, each in a process of its own.

    python -m faults.drain_worker URL FOLDER [GUARD]

A fork server: it has everything imported, starts workers by fork, and ends them when its own input
ends. A line on its input is `start ROLE NUMBER` or `reap PID`; its answers are process numbers and
exit codes. The roles are consumer, receiver, drainer and operator. FOLDER/source says what there is
to consume. GUARD names a guard that is taken out, to see whether the model finds violations.
"""

from __future__ import annotations

import fcntl
import json
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial
from hashlib import blake2b
from itertools import count
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, ClassVar

import msgspec

import oncebox.processing.search_floors
import oncebox.services
from oncebox import DeadLetter, Delivery, Inbox, Reject, Retry, RetryAfter
from oncebox.errors import DatabaseUnavailable, NotFound
from oncebox.storage.postgres import PostgresStore
from oncebox.storage.sqlite import SqliteStore
from support.events import cloud_event
from support.internals import store_of

NAME = "torture"
TIMEOUT = timedelta(seconds=1)
STATEMENTS = (
    "claim",
    "receive",
    "take",
    "raise_floors",
    "remove",
    "record",
    "postpone",
    "take_isolated",
    "undo_crash",
    "lock_dead_letters",
    "retry_dead_letters",
    "discard_dead_letters",
)
QUICK = Retry(
    initial_delay=timedelta(milliseconds=20), max_delay=timedelta(milliseconds=100), max_attempts=8
)


class Entry(msgspec.Struct, frozen=True):
    """A message of the source."""

    key: int
    number: int
    fate: str
    """good; flaky: fails every other time; bad: fails every time."""
    free: bool = False
    """It has no key as far as the inbox can see, and its number is 0."""

    @property
    def id(self) -> str:
        # Ids do not sort as they arrive, or the order of ids would hide mistakes.
        digest = blake2b(f"{self.key} {self.number}".encode(), digest_size=4).hexdigest()
        return f"{digest}/{self.key}/{self.number}"

    @staticmethod
    def place(id: str) -> tuple[int, int]:
        """The key and the number of an id."""
        _, key, number = id.split("/")
        return int(key), int(number)

    def delivery(self, *, redelivered: bool = False) -> Delivery:
        key = None if self.free else f"key {self.key}"
        found = cloud_event("step", msgspec.structs.asdict(self), id=self.id, key=key)
        return msgspec.structs.replace(found, redelivered=redelivered)


class Source:
    """Partitions as a broker hands them out: from the settled position or from before it, with
    other cuts each time, to every worker that asks."""

    entry: ClassVar[type[Entry]] = Entry

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        partitions = json.loads((folder / "source").read_text())
        self._partitions = [[self.entry(*entry) for entry in part] for part in partitions]

    @staticmethod
    def write(folder: Path, partitions: list[list[Entry]]) -> None:
        rows = [[list(msgspec.structs.astuple(entry)) for entry in part] for part in partitions]
        (folder / "source").write_text(json.dumps(rows))

    def fetch(self, chance: random.Random) -> tuple[int, int, list[Delivery]] | None:
        """A partition, the position behind the batch, and the batch; None if all is acked."""
        if not (ends := self._ends()):
            return None
        number = chance.choice(list(ends))
        part = self._partitions[number]
        start = max(0, self._settled(number) - chance.choice((0, 0, 1, 3, 6)))
        stop = min(ends[number], start + chance.randint(4, 16))
        batch = part[start:stop]
        if start and chance.random() < 0.2:
            batch = [*batch, part[chance.randrange(start)]]
        redelivered = chance.random() < 0.03
        return number, stop, [entry.delivery(redelivered=redelivered) for entry in batch]

    @property
    def is_settled(self) -> bool:
        return not self._ends()

    def _ends(self) -> dict[int, int]:
        """The partitions that are not acked to their end, and how far they may be read."""
        parts = enumerate(self._partitions)
        return {n: len(part) for n, part in parts if self._settled(n) < len(part)}

    def _settled(self, number: int) -> int:
        with suppress(FileNotFoundError):
            return max(map(int, self._position(number).read_text().split()), default=0)
        return 0

    def settle(self, number: int, position: int) -> None:
        append(self._position(number), str(position))

    def _position(self, number: int) -> Path:
        return self._folder / f"position-{number}"


def append(path: Path, line: str) -> None:
    """Add a line, whole or not at all, also if other processes do so."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        os.write(file, f"{line}\n".encode())
    finally:
        os.close(file)


# -- the handler ----------------------------------------------------------------------------------


class Steps:
    """The handler: it takes a step of its key, and checks that it was the next one."""

    def __init__(self, folder: Path, chance: random.Random, *, is_postgres: bool) -> None:
        self._folder = folder
        self._chance = chance
        self._is_postgres = is_postgres
        self._busy = os.open(folder / "busy", os.O_RDWR | os.O_CREAT)

    def step(self, payload: Entry, tx: Any) -> None:
        with self._at(payload, tx) as last:
            self._take(payload, last, tx)
        self._end(payload.fate)

    def _end(self, fate: str) -> None:
        """A handler comes to its end, as it must."""
        append(self._folder / "progress", "")
        if fate == "bad":
            raise Reject() if self._chance.random() < 0.5 else ValueError("a bad message")
        if fate == "flaky" and self._chance.random() < 0.5:
            soon = timedelta(milliseconds=self._chance.randint(0, 50))
            raise RetryAfter(soon) if self._chance.random() < 0.3 else ValueError("not today")

    @contextmanager
    def _at(self, entry: Entry, tx: Any) -> Iterator[int]:
        """The last step of a key, while no other worker may change it."""
        sql = "SELECT number FROM last WHERE key = :key"
        if self._is_postgres:
            yield self._locked(entry, sql, tx)
            return
        # A byte of a file is locked while the handler runs; the system unlocks it for the dead.
        try:
            fcntl.lockf(self._busy, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, entry.key)
        except OSError:
            self._complain(f"two handlers of key {entry.key} at once, one at {entry.number}")
        try:
            yield tx.execute(sql, key=entry.key).rows()[0][0]
        finally:
            fcntl.lockf(self._busy, fcntl.LOCK_UN, 1, entry.key)

    def _locked(self, entry: Entry, sql: str, tx: Any) -> int:
        """The row of the key is locked until the transaction ends."""
        found = tx.execute(f"{sql} FOR UPDATE SKIP LOCKED", key=entry.key).rows()
        if not found:
            self._complain(f"two handlers of key {entry.key} at once, one at {entry.number}")
            found = tx.execute(sql, key=entry.key).rows()
        last: int = found[0][0]
        return last

    def _take(self, entry: Entry, last: int, tx: Any) -> None:
        """Between the last step and this one there is nothing that was not discarded."""
        between = [Entry(entry.key, n, "") for n in range(last + 1, entry.number)]
        if entry.number <= last or not all(_is_discarded(e, tx) for e in between):
            self._complain(f"key {entry.key}: {entry.number} after {last}")
        values = {"key": entry.key, "number": entry.number}
        tx.execute("UPDATE last SET number = :number WHERE key = :key", **values)
        doze(self._chance, 0.2)
        tx.execute("INSERT INTO ledger (key, number) VALUES (:key, :number)", **values)

    def _complain(self, complaint: str) -> None:
        append(self._folder / "violations", complaint)


def _is_discarded(entry: Entry, tx: Any) -> bool:
    found = tx.execute(
        "SELECT count(*) FROM oncebox_audit WHERE action = 'discard' AND message_id = :id",
        id=entry.id,
    )
    return bool(found.one()[0])


def doze(chance: random.Random, probability: float) -> None:
    """Sleep at random: no condition ends this."""
    if chance.random() < probability:
        time.sleep(chance.uniform(0.0, 0.01))


def drowsy(chance: random.Random, steps: Callable[..., Any]) -> Callable[..., Any]:
    """Statements before and after which a worker may fall asleep."""

    def slow(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        doze(chance, 0.1)
        answer = yield from steps(*args, **kwargs)
        doze(chance, 0.1)
        return answer

    return slow


# -- the guards -----------------------------------------------------------------------------------


def lock_no_keys() -> None:
    """Each worker locks something, but never what another worker locks."""
    numbers = count(random.getrandbits(60))
    PostgresStore._locks = lambda *_: [next(numbers)]  # type: ignore[method-assign]


def block_nothing() -> None:
    for store in (PostgresStore, SqliteStore):
        setattr(store, "_block_followers", lambda *_: iter(()))  # noqa: B010


def search_from_floors() -> None:
    """No guard is missing: every search begins at the floors, whether it would be slow or not."""
    oncebox.processing.search_floors.IN_A_ROW = 0
    oncebox.processing.search_floors.RAISE_EVERY = 0.0


GUARDS: Mapping[str, Callable[[], None]] = {
    "key locks": lock_no_keys,
    "blocking": block_nothing,
    "full searches": search_from_floors,
}
"""How to work without a guard."""


# -- the roles ------------------------------------------------------------------------------------


class Stopping:
    """Like an Event, but to set it in a signal handler does not wait for a wait() that it breaks
    into."""

    def __init__(self) -> None:
        self._bell: SimpleQueue[None] = SimpleQueue()
        self._is_set = False

    def set(self) -> None:
        self._is_set = True
        self._bell.put(None)

    def is_set(self) -> bool:
        return self._is_set

    def wait(self, seconds: float) -> bool:
        """Whether it is set after these seconds, or before."""
        if not self._is_set:
            with suppress(Empty):
                self._bell.get(timeout=seconds)
        return self._is_set


class Worker:
    """A process that works on the inbox until it is stopped or killed."""

    statements: ClassVar[tuple[str, ...]] = STATEMENTS
    read: ClassVar[type[Source]] = Source
    guards: ClassVar[Mapping[str, Callable[[], None]]] = GUARDS

    def __init__(self, url: str, folder: Path, source: Source, seed: str) -> None:
        self.chance = random.Random(seed)
        self.url = url
        self.folder = folder
        self.source = source
        self.is_postgres = url.startswith("postgresql")
        self.inbox = self.open()
        self.stopping = Stopping()
        store = store_of(self.inbox)
        for name in self.statements:
            setattr(store, name, drowsy(self.chance, getattr(store, name)))
        signal.signal(signal.SIGTERM, lambda *_: self.stop())
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])

    def open(self) -> Inbox:
        """The inbox, with its handlers."""
        inbox = make_inbox(self.url)
        inbox.on("step")(Steps(self.folder, self.chance, is_postgres=self.is_postgres).step)
        return inbox

    def stop(self) -> None:
        self.stopping.set()

    def consumer(self) -> None:
        """Process what is delivered."""
        self._consume(self.inbox.process)

    def receiver(self) -> None:
        """Store what is delivered."""
        self._consume(self.inbox.receive)

    def _consume(self, take: Callable[[list[Delivery]], Any]) -> None:
        """Consume until everything is acked by any worker; what raises is delivered again."""
        while not self.stopping.is_set() and (batch := self.source.fetch(self.chance)):
            number, position, deliveries = batch
            with suppress(DatabaseUnavailable):
                take(deliveries)
                self.source.settle(number, position)

    def drainer(self) -> None:
        """Run what was stored."""
        drainer = oncebox.services.Worker(
            self.inbox, batch=self.chance.choice((3, 10, 30)), poll=0.05
        )
        self.stop = drainer.stop  # type: ignore[method-assign]
        if not self.stopping.is_set():
            drainer.run()

    def operator(self) -> None:
        """Retry or discard dead letters: some, one, or those of a key."""
        while not self.stopping.wait(self.chance.uniform(0.01, 0.05)):
            with suppress(DatabaseUnavailable, NotFound):
                self._act_on(self.inbox.dead_letters.find(limit=20))

    def _act_on(self, letters: Sequence[DeadLetter]) -> None:
        chosen = [letter for letter in letters if self.chance.random() < 0.4]
        act = self.inbox.dead_letters.retry
        if self.chance.random() < 0.4:
            act = self.inbox.dead_letters.discard
        if chosen and chosen[0].key and self.chance.random() < 0.3:
            act(key=chosen[0].key, state="dead", why="by key")
        elif chosen:
            act(*[letter.id for letter in chosen], why="by number")


def make_inbox(url: str) -> Inbox:
    return Inbox(NAME, url, retry=QUICK, transaction_timeout=TIMEOUT)


# -- the fork server ------------------------------------------------------------------------------


def serve_forks(kind: type[Worker], url: str, folder: str, guard: str = "") -> None:
    source = kind.read(Path(folder))
    children: set[int] = set()
    # A worker that gets SIGTERM before it has a handler for it stops as soon as it has one.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    try:
        for line in sys.stdin:
            request = json.loads(line)
            if "start" in request:
                role, seed = request["start"], request["seed"]
                take_out = kind.guards[guard] if guard else None
                make = partial(kind, url, Path(folder), source, seed)
                answer = start(make, role, take_out)
                children.add(answer)
            else:
                answer = reap(request["reap"])
                children.discard(request["reap"])
            print(answer, flush=True)
    finally:
        for pid in children:
            os.kill(pid, signal.SIGKILL)
            reap(pid)


def start(make: Callable[[], Worker], role: str, take_out: Callable[[], None] | None = None) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        if take_out is not None:
            take_out()
        worker = make()
        with worker.inbox:
            getattr(worker, role)()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def reap(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


if __name__ == "__main__":
    serve_forks(Worker, *sys.argv[1:])
