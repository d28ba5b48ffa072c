"""The workers of the retention model, each in its own process; see drain_worker.

    python -m faults.retention_model_worker URL FOLDER [GUARD]

The roles are those of drain_worker, and echo, purger, replayer and clock. FOLDER/plan describes the
messages, the purges and the replays.
"""

from __future__ import annotations

import re
import sqlite3
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from datetime import timedelta
from typing import Any

import msgspec
import psycopg

import oncebox.operations.archive.format
import oncebox.operations.dead_letters
import oncebox.operations.gaps
import oncebox.operations.purge
import oncebox.operations.purge_pass
import oncebox.operations.replays
import oncebox.processing.drain
import oncebox.storage.sql.replays
from faults.drain_worker import NAME, QUICK, STATEMENTS, TIMEOUT, Steps, Worker, doze, serve_forks
from faults.retention_model_guards import GUARDS
from faults.retention_model_source import Ages, Counting, Dated, Plan
from oncebox import DeadLetter, Gaps, Inbox, Message, Reject, Retention
from oncebox.errors import ConfigurationError, DatabaseUnavailable, NotFound
from oncebox.model.filters import MessageFilter
from oncebox.operations.archive.format import Manifest, Writer
from oncebox.storage.sql.sequences import SqlSequences

HALF_A_DAY = 0.5
TOO_LATE = "too_late"
LATE_NUMBER = "late_sequence"


# -- the handlers ---------------------------------------------------------------------------------


class Walk(Steps):
    """The handlers: a message takes effect once because it arrived, and once for each replay."""

    def __init__(self, ids: Mapping[tuple[int, int], str], *common: Any, **more: Any) -> None:
        super().__init__(*common, **more)
        self._ids = ids

    def one(self, message: Message, tx: Any) -> None:
        """Take one step."""
        self._run(message, tx)

    def many(self, messages: list[Message], tx: Any) -> None:
        """Take some at once."""
        ids = [message.id for message in messages]
        if len(set(ids)) < len(ids):
            self._complain(f"twice in one list: {sorted(ids)}")
        for message in messages:
            self._run(message, tx)

    def _run(self, message: Message, tx: Any) -> None:
        entry = msgspec.json.decode(message.payload, type=Dated)
        with self._alone(entry, tx) as last:
            seq = self._turn(entry, message, last, tx)
            self._write(entry, message.replay, seq, tx)
        if message.replay and entry.fate == "stale" and self._chance.random() < 0.6:
            raise Reject("it is out of date")
        self._end(entry.fate)

    @contextmanager
    def _alone(self, entry: Dated, tx: Any) -> Iterator[int]:
        """Messages without a key block nothing."""
        if entry.free:
            yield -1
            return
        with self._at(entry, tx) as last:
            yield last

    def _turn(self, entry: Dated, message: Message, last: int, tx: Any) -> int:
        """Look whether it is the message's turn, and answer its place among those replayed."""
        same = "message_id = :id AND replay = :replay"
        if _count(tx, "ledger", same, id=message.id, replay=message.replay):
            self._complain(f"key {entry.key}: {entry.number} twice in replay {message.replay}")
        if message.replay:
            return self._turn_again(entry, message, tx)
        if entry.number <= last:
            if not _is_acted_on(tx, entry.id, "retry", f"= '{LATE_NUMBER}'"):
                self._complain(f"key {entry.key}: {entry.number} after {last}")
            return 0
        missing = range(last + 1, entry.number)
        left = {number for number in missing if not self._is_discarded(entry, number, tx)}
        if left and not (entry.counted and left <= _skipped(tx, entry)):
            self._complain(f"key {entry.key}: {entry.number} after {last}, without {left}")
        tx.execute("UPDATE last SET number = :number WHERE key = :key", **_place(entry))
        return 0

    def _turn_again(self, entry: Dated, message: Message, tx: Any) -> int:
        """A replay runs what was wanted, in the order of old."""
        wanted = {"replay": message.replay, "id": message.id}
        sql = "SELECT seq FROM wanted WHERE replay = :replay AND message_id = :id"
        found = tx.execute(sql, **wanted).rows()
        if not found:
            self._complain(f"replay {message.replay} ran {message.id}, which was not in it")
            return 0
        seq: int = found[0][0]
        later = "key = :key AND replay = :replay AND seq > :seq"
        if _count(tx, "ledger", later, key=entry.key, replay=message.replay, seq=seq):
            self._complain(f"replay {message.replay} of key {entry.key}: {entry.number} too late")
        return seq

    def _is_discarded(self, entry: Dated, number: int, tx: Any) -> bool:
        id = self._ids.get((entry.key, number))
        return id is not None and _is_acted_on(tx, id, "discard", f"<> '{TOO_LATE}'")

    def _write(self, entry: Dated, replay: int, seq: int, tx: Any) -> None:
        doze(self._chance, 0.2)
        tx.execute(
            "INSERT INTO ledger (key, number, replay, seq, message_id) "
            "VALUES (:key, :number, :replay, :seq, :id)",
            **_place(entry),
            replay=replay,
            seq=seq,
            id=entry.id,
        )


def _place(entry: Dated) -> dict[str, int]:
    return {"key": entry.key, "number": entry.number}


def _count(tx: Any, table: str, condition: str, **values: Any) -> int:
    count: int = tx.execute(f"SELECT count(*) FROM {table} WHERE {condition}", **values).one()[0]
    return count


def _is_acted_on(tx: Any, id: str, act: str, reason: str) -> bool:
    """Whether an operator retried or discarded a message, and not in a replay."""
    acted = f"message_id = :id AND replay = 0 AND action = :act AND reason {reason}"
    return bool(_count(tx, "oncebox_audit", acted, id=id, act=act))


def _skipped(tx: Any, entry: Dated) -> set[int]:
    """The sequence numbers of a key that were skipped."""
    sql = "SELECT reason FROM oncebox_audit WHERE action = 'skip' AND reason LIKE :key"
    return skipped_numbers(
        [reason for (reason,) in tx.execute(sql, key=f"key '{entry.name}':%").rows()]
    )


def skipped_numbers(reasons: Sequence[str]) -> set[int]:
    """Numbers as the model counts, of what was written down as skipped."""
    numbers: set[int] = set()
    for reason in reasons:
        found = re.search(r"numbers? (\d+)(?: to (\d+))?$", reason)
        assert found is not None, reason
        numbers.update(range(int(found[1]) - 1, int(found[2] or found[1])))
    return numbers


# -- the roles ------------------------------------------------------------------------------------


class Hand(Worker):
    """A worker of the retention model."""

    statements = (
        *STATEMENTS,
        "sequence_states",
        "store_awaiting",
        "advance_sequences",
        "begin_replay",
        "cancel_replay",
        "_store_again",
        "_release",
        "_remove_replayed",
        "set_watermark",
        "old_messages",
        "purge",
        "purge_archived",
    )
    read = Ages
    guards = GUARDS

    source: Ages

    def open(self) -> Inbox:
        in_small_steps()
        inbox = make_inbox(self.url, self.source.plan)
        walk = Walk(self.source.ids, self.folder, self.chance, is_postgres=self.is_postgres)
        inbox.on("step")(walk.one)
        inbox.on("leap", batch=True)(walk.many)
        return inbox

    def _act_on(self, letters: Sequence[DeadLetter]) -> None:
        """A message that is too late may have been done before: the inbox cannot know."""
        late = [letter.id for letter in letters if letter.reason == TOO_LATE]
        if late:
            self.inbox.dead_letters.discard(*late, why="it was there before")
        super()._act_on([letter for letter in letters if letter.id not in late])
        gaps = self.inbox.gaps.find(limit=5)
        if gaps and self.chance.random() < 0.03:
            self.inbox.gaps.skip(self.chance.choice(gaps).key, why="it does not come")

    def echo(self) -> None:
        """Deliver messages that were acked long ago once more."""
        while not self.stopping.wait(self.chance.uniform(0.02, 0.2)):
            take = self.chance.choice((self.inbox.process, self.inbox.receive))
            with suppress(DatabaseUnavailable):
                take([entry.delivery() for entry in self.source.old(self.chance, 3)])

    def purger(self) -> None:
        """Forget what is old; the archive may be far away."""
        finish = Writer.finish

        def linger(writer: Writer) -> Manifest:
            if self.chance.random() < 0.5:
                self.stopping.wait(self.chance.uniform(0, 1))
            return finish(writer)

        setattr(Writer, "finish", linger)  # noqa: B010
        while not self.stopping.wait(self.chance.uniform(0.05, 0.5)):
            with suppress(DatabaseUnavailable):
                self.inbox.purge.run()

    def clock(self) -> None:
        """Let time pass: what is older than the newest generation arrived when it was produced."""
        with self._connected() as execute:
            while not self.stopping.wait(self.chance.uniform(0.01, 0.05)):
                with suppress(sqlite3.OperationalError):
                    execute(
                        "UPDATE oncebox_inbox SET received_at = produced_at "
                        "WHERE received_at > produced_at "
                        "AND produced_at < (SELECT max(produced_at) FROM oncebox_inbox)"
                    )

    @contextmanager
    def _connected(self) -> Iterator[Callable[[str], Any]]:
        connection: Any
        if self.is_postgres:
            connection = psycopg.connect(self.url, autocommit=True)
        else:
            path = self.url.removeprefix("sqlite:///")
            connection = sqlite3.connect(path, timeout=1, isolation_level=None)
        with closing(connection):
            yield connection.execute

    # -- replays ----------------------------------------------------------------------------------

    def replayer(self) -> None:
        """Begin replays, as many as there are to be, and cancel some of them."""
        while not self.stopping.wait(self.chance.uniform(0.01, 0.1)):
            with suppress(DatabaseUnavailable, ConfigurationError, NotFound):
                self._replay()

    def _replay(self) -> None:
        plan = self.source.plan
        known = self.inbox.replays.find(limit=plan.replays)
        if known and self.chance.random() < 0.1:
            name = self.chance.choice(known).name
            self.inbox.replays.set_pace(name, self._pace(), why="another pace")
        if len(known) < plan.replays and self.source.progress > len(known) / plan.replays:
            self._begin(len(known), min(plan.replays, len(known) + self.chance.randint(1, 2)))

    def _begin(self, first: int, end: int) -> None:
        """One replay, or two of the same at once."""
        which = self._which()
        names = [f"replay {number}" for number in range(first, end)]
        for name in names:
            self.inbox.replays.start(name, why="again", pace=self._pace(), **which)
        if self.chance.random() < self.source.plan.cancelled:
            self.stopping.wait(self.chance.uniform(0, 1))
            self.inbox.replays.cancel(self.chance.choice(names), why="not after all")

    def _pace(self) -> float | None:
        return self.chance.choice((None, None, 30, 300))

    def _which(self) -> MessageFilter:
        """Some of the past."""
        time = self.source.plan.time(self.chance.randrange(self.source.plan.generations))
        entry = self.chance.choice(self.source.entries)
        some = self.source.old(self.chance, 20)
        choices: dict[str, MessageFilter] = {
            "origin": {"origin": "test"},
            "type": {"type": entry.type},
            "key": {"key": entry.name},
            "ids": {"ids": [entry.id for entry in some]},
            "since": {"since": time},
            "until": {"until": time},
            "state": {"origin": "test", "state": "discarded"},
        }
        return choices[self.chance.choice(self.source.plan.filters)]


def make_inbox(url: str, plan: Plan) -> Inbox:
    return Inbox(
        NAME,
        url,
        identity=Counting(),
        retry=QUICK,
        transaction_timeout=TIMEOUT,
        retention=Retention(days=HALF_A_DAY, archive=plan.archive),
        gaps=Gaps(limit=timedelta(seconds=plan.heartbeat_timeout)),
    )


def in_small_steps() -> None:
    """What is done at once is done in many parts, so that there is much to be interrupted; and
    no worker waits for long before it polls again."""
    for place, values in SMALL_STEPS.items():
        for name, value in values.items():
            assert hasattr(place, name), f"{place} has no {name}"
            setattr(place, name, value)


SMALL_STEPS: Mapping[Any, Mapping[str, float]] = {
    oncebox.operations.maintenance: {"INTERVAL": 0.1},
    oncebox.operations.gaps: {"CHECK_INTERVAL": 0.1, "AT_ONCE": 3},
    oncebox.operations.replays: {"CHECK_INTERVAL": 0.1},
    oncebox.storage.sql.replays: {
        "RECHECK_DELAY": 0.1,
        "AT_ONCE": 7,
        "READY_LIMIT": 20,
        "UNFINISHED_LIMIT": 50,
    },
    SqlSequences: {"at_once": 3},
    oncebox.operations.dead_letters: {"CHUNK": 5},
    oncebox.operations.purge_pass: {"AT_ONCE": 5},
    oncebox.operations.purge: {"INTERVAL": 0.2, "ASK_INTERVAL": 5.0},
    oncebox.operations.archive.format: {"MESSAGES": 20},
}


if __name__ == "__main__":
    serve_forks(Hand, *sys.argv[1:])
