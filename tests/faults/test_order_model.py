"""The order machine under attack: consumers and zombies work on the same keys at the same time.

A partition is read as a broker hands it out: from the settled position or from before it, with
other cuts each time, to every consumer that asks. What must hold is known in advance, because it
is decided beforehand which messages fail: a key's messages take effect in order up to the first
that fails, and everything behind that waits in order.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b
from itertools import count
from typing import Any

import pytest

from oncebox import Delivery, Inbox, Reject
from oncebox.storage.postgres import PostgresStore
from support.events import cloud_event
from support.internals import store_of
from support.services import wait_until
from support.worlds import World

KEYS = 8
LENGTH = 14
CONSUMERS = 3
ZOMBIES = 2
FAILING = 0.08
BOUND = 60
"""How many seeds may pass without a violation before the proof is given up."""


class Model:
    """A partition, its consumers, and the expected result."""

    def __init__(self, world: World, seed: int, *, failing: float = FAILING) -> None:
        self.world = world
        self.failing = failing
        self.name = f"model-{seed}"
        self.chance = random.Random(seed)
        self.log = self._interleaved()
        fates = {entry: self.chance.random() for entry in self.log}
        self.bad = {entry: fate for entry, fate in fates.items() if fate < failing}
        self.settled = 0
        self.busy: Counter[int] = Counter()
        self.overlaps = 0
        self._lock = threading.Lock()

    def _interleaved(self) -> list[tuple[str, int]]:
        turns = [key for key in range(KEYS) for _ in range(LENGTH)]
        self.chance.shuffle(turns)
        numbers = {key: count() for key in range(KEYS)}
        return [(f"{self.name}/{key}", next(numbers[key])) for key in turns]

    def run(self) -> None:
        """Let all consumers read until the partition is acked."""
        members = [
            ModelConsumer(self, zombie=number >= CONSUMERS, seed=self.chance.random())
            for number in range(CONSUMERS + ZOMBIES)
        ]
        with ThreadPoolExecutor(len(members)) as pool:
            for future in [pool.submit(member.work) for member in members]:
                future.result()

    # -- the broker -------------------------------------------------------------------------------

    def fetch(self, chance: random.Random) -> range | None:
        """The next batch: everything before it was acked by some consumer."""
        with self._lock:
            if self.settled >= len(self.log):
                return None
            start = max(0, self.settled - chance.choice((0, 0, 1, 3, 6)))
            batch = range(start, min(len(self.log), start + chance.randint(4, 10)))
            self.overlaps += any(self.busy[place] for place in batch)
            self.busy.update(batch)
            return batch

    def settle(self, batch: range) -> None:
        with self._lock:
            self.settled = max(self.settled, batch.stop)
            self.busy.subtract(batch)

    def deliveries(self, batch: range) -> list[Delivery]:
        return [self._delivery(*self.log[place]) for place in batch]

    def _delivery(self, key: str, number: int) -> Delivery:
        # Ids do not sort as they arrive, or the order of ids would hide mistakes.
        digest = blake2b(f"{key} {number}".encode(), digest_size=6).hexdigest()
        data = {"key": key, "number": number}
        return cloud_event("step", data, id=f"{digest}/{key}/{number}", key=key)

    # -- the truth --------------------------------------------------------------------------------

    def violations(self) -> list[str]:
        """Everything that is not as it must be."""
        ledger = self._rows("SELECT key, number FROM ledger WHERE key LIKE %s ORDER BY id")
        pending = self._rows("SELECT key, message_id FROM oncebox_pending WHERE consumer = %s", 1)
        dead = self._rows("SELECT key, message_id FROM oncebox_dead_letter WHERE consumer = %s", 1)
        found: list[str] = []
        for key in sorted({key for key, _ in self.log}):
            done = [number for name, number in ledger if name == key]
            waits = [number for name, number in pending if name == key]
            died = [number for name, number in dead if name == key]
            end = min((number for name, number in self.bad if name == key), default=LENGTH)
            buried = [end] if (key, end) in self.bad and self.rejected(key, end) else []
            rest = [number for number in range(end, LENGTH) if number not in buried]
            if (done, died, waits) != (list(range(end)), buried, rest):
                found.append(f"{key} fails at {end}: done {done}, dead {died}, pending {waits}")
        return found

    def rejected(self, key: str, number: int) -> bool:
        """Whether this message, which fails, fails for good."""
        return self.bad[key, number] < self.failing / 3

    def _rows(self, query: str, exact: int = 0) -> list[tuple[str, int]]:
        order = " ORDER BY seq" if exact else ""
        found = self.world.query(query + order, self.name if exact else f"{self.name}/%")
        return [(key, int(str(last).rpartition("/")[2])) for key, last in found]


class ModelConsumer:
    """A consumer with an inbox of its own; a zombie falls asleep wherever it is."""

    def __init__(self, model: Model, *, zombie: bool, seed: float) -> None:
        self.model = model
        self.chance = random.Random(seed)
        self.zombie = zombie
        self.inbox = Inbox(model.name, model.world.url)
        self.inbox.on("step")(self.step)
        store: Any = store_of(self.inbox)
        store.claim = self._sleepy(store.claim)
        store.record = self._sleepy(store.record)

    def work(self) -> None:
        with self.inbox:
            while (batch := self.model.fetch(self.chance)) is not None:
                self.inbox.process(self.model.deliveries(batch))
                self.model.settle(batch)

    def step(self, payload: dict[str, Any], tx: Any) -> None:
        key, number = payload["key"], payload["number"]
        self.doze()
        tx.execute("INSERT INTO ledger (key, number) VALUES (:key, :n)", key=key, n=number)
        if (key, number) in self.model.bad:
            raise Reject() if self.model.rejected(key, number) else ValueError("a bad message")

    def doze(self) -> None:
        """Sleep at random: no condition ends this."""
        if self.zombie and self.chance.random() < 0.1:
            threading.Event().wait(self.chance.uniform(0.001, 0.02))

    def _sleepy(self, steps: Any) -> Any:
        def slow(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
            self.doze()
            answer = yield from steps(*args, **kwargs)
            self.doze()
            return answer

        return slow


@pytest.fixture
def ledger(world: World) -> None:
    """Where handlers write down what they did; ids are given in the order of the writes."""
    if world.is_postgres:
        id = "bigint GENERATED ALWAYS AS IDENTITY"
        name = world.query("SELECT current_database()")[0][0]
        world.execute(f'ALTER DATABASE "{name}" SET synchronous_commit = off')
    else:
        id = "INTEGER PRIMARY KEY AUTOINCREMENT"
    world.execute(f"CREATE TABLE ledger (id {id}, key text, number integer)")
    world.migrate(world.inbox(migrate=False))


@pytest.mark.only(("psycopg", "sqlite3"))
@pytest.mark.parametrize("seeds", [range(4)])
def test_every_key_keeps_its_order_with_several_workers(
    world: World, ledger: None, seeds: Sequence[int]
) -> None:
    overlaps = 0
    for seed in seeds:
        model = Model(world, seed)
        model.run()
        assert model.violations() == [], f"seed {seed}"
        overlaps += model.overlaps
    assert overlaps > 10, "they never met"


@pytest.mark.slow
@pytest.mark.only(("psycopg",))
def test_without_the_locks_of_keys_the_model_finds_violations(
    world: World, ledger: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = count(1)
    # Every claim locks something, but never what another one locks.
    monkeypatch.setattr(PostgresStore, "_locks", lambda *_: [next(numbers)])

    def finds(seed: int) -> bool:
        # More failures: what is out of order shows among the messages that wait.
        model = Model(world, seed, failing=0.25)
        model.run()
        return bool(model.violations())

    assert any(finds(seed) for seed in range(BOUND))


@pytest.mark.only(("psycopg",))
def test_without_locks_seqs_drawn_before_a_wait_put_a_key_out_of_order(
    world: World, ledger: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = count(1)
    monkeypatch.setattr(PostgresStore, "_locks", lambda *_: [next(numbers)])
    assert overtake(world) == ["second", "first"]


@pytest.mark.only(("psycopg",))
def test_seqs_are_drawn_only_while_the_keys_are_locked(world: World, ledger: None) -> None:
    assert overtake(world) == ["first", "second"]


def overtake(world: World) -> list[str]:
    """What waits for a key, in its order, after three consumers met on it.

    A zombie holds `aside`. A redelivery of everything waits for it, with its numbers drawn; then
    `first` fails elsewhere; then the zombie ends, and the redelivery stores `second`.
    """
    asleep, awake = threading.Event(), threading.Event()

    def handle(payload: dict[str, Any]) -> None:
        if payload["id"] == "0-aside" and not awake.is_set():
            asleep.set()
            awake.wait()
        if payload["id"] == "1-first":
            raise ValueError("a bad message")

    def process(*deliveries: Delivery) -> None:
        with Inbox("meeting", world.url) as inbox:
            inbox.on("step")(handle)
            inbox.process(deliveries)

    aside = cloud_event("step", {"id": "0-aside"}, id="0-aside", key="aside")
    first = cloud_event("step", {"id": "1-first"}, id="1-first", key="key")
    second = cloud_event("step", {"id": "2-second"}, id="2-second", key="key")
    with ThreadPoolExecutor(3) as pool:
        zombie = pool.submit(process, aside)
        asleep.wait()
        everything = pool.submit(process, aside, first, second)
        wait_until(lambda: claims_waiting(world) == 1, "the redelivery does not wait")
        failure = pool.submit(process, first)
        wait_until(lambda: failure.done() or claims_waiting(world) == 2, "nothing happens")
        awake.set()
        for future in (zombie, everything, failure):
            future.result()
    found = world.query("SELECT message_id FROM oncebox_pending WHERE key = 'key' ORDER BY seq")
    return [row[0][2:] for row in found]


def claims_waiting(world: World) -> int:
    return int(
        world.query(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
            "AND wait_event_type = 'Lock' AND query LIKE '%oncebox_claim%'"
        )[0][0]
    )
