"""The consumer: it processes the deliveries of a source, and acks them after the commit."""

from __future__ import annotations

import json
import threading
from contextlib import nullcontext
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import oncebox.services.consumer
import oncebox.services.loop
from oncebox import Consumer, Delivery, Inbox
from oncebox.brokers.contract import Batch, Features
from oncebox.brokers.file import FileSource
from oncebox.brokers.memory import MemorySource
from oncebox.errors import ConfigurationError, DatabaseUnavailable, NotOwner
from oncebox.model.inspection import Status
from oncebox.model.position import Advance, Gauge, Position
from support.services import wait_until
from support.worlds import World, order, write_effect

FILES = ("sqlite3", "psycopg", "psycopg-async", "sqlalchemy-aiosqlite", "django-postgres")


def line(id: str, *, key: str | None = None) -> bytes:
    event = {"specversion": "1.0", "id": id, "source": "shop", "type": "order", "data": {"id": id}}
    return json.dumps({**event, "partitionkey": key}).encode() + b"\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "in" / "events.jsonl"
    path.parent.mkdir()
    return path


@pytest.fixture
def inbox(world: World) -> Inbox:
    made = world.inbox()
    world.on(made, "order", write_effect)
    return made


def consume(world: World, inbox: Inbox, source: Any, **options: Any) -> None:
    consumer = Consumer(inbox, source, **options)
    world.run(consumer.arun()) if world.is_async else consumer.run()


def positions(world: World) -> list[tuple[Any, ...]]:
    return world.query(
        "SELECT partition, next, owner, suspects FROM oncebox_position ORDER BY partition"
    )


@pytest.mark.only(FILES)
def test_a_file_is_read_once_however_often_it_is_read(
    world: World, inbox: Inbox, file: Path
) -> None:
    file.write_bytes(line("1") + line("2") + line("1"))
    for _ in range(2):
        consume(world, inbox, FileSource(file), batch=2)
    assert world.effects() == ["1", "2"]
    assert positions(world) == [(file.name, file.stat().st_size, None, 0)]
    world.execute("DELETE FROM oncebox_position")
    consume(world, inbox, FileSource(file))
    assert world.effects() == ["1", "2"], "a rewind is harmless"


@pytest.mark.only(("sqlite3", "psycopg"))
def test_a_reader_that_crashed_at_the_end_of_a_file_is_signed_off_by_the_next_one(
    world: World, inbox: Inbox, file: Path
) -> None:
    file.write_bytes(line("1"))
    consume(world, inbox, FileSource(file))
    long_ago = "now() - interval '1 hour'" if world.is_postgres else "0"
    world.execute(f"UPDATE oncebox_position SET owner = 'crashed', until = {long_ago}")
    consume(world, inbox, FileSource(file))
    assert [row[2] for row in positions(world)] == [None]
    assert world.effects() == ["1"]


@pytest.mark.only(FILES)
def test_a_folder_is_read_file_by_file(world: World, inbox: Inbox, file: Path) -> None:
    for number in range(3):
        (file.parent / f"{number}.jsonl").write_bytes(line(f"{number}a") + line(f"{number}b"))
    consume(world, inbox, FileSource(file.parent))
    assert world.effects() == ["0a", "0b", "1a", "1b", "2a", "2b"]
    assert len(positions(world)) == 3


@pytest.mark.only(("sqlite3", "psycopg"))
def test_stored_mode_leaves_the_work_to_a_worker(world: World, inbox: Inbox, file: Path) -> None:
    file.write_bytes(line("1") + line("2"))
    consume(world, inbox, FileSource(file), mode="stored")
    assert world.effects() == []
    assert world.drain(inbox) == {"done": 2}


@pytest.mark.only(("sqlite3", "psycopg"))
def test_lines_that_are_not_messages_do_not_stop_the_rest(
    world: World, file: Path, tmp_path: Path
) -> None:
    inbox = world.inbox(payload_limit=200)
    world.on(inbox, "order", write_effect)
    no_id = b'{"specversion": "1.0", "source": "shop", "type": "order", "data": {}}\n'
    big = line("big").replace(b'{"id": "big"}', b'{"id": "' + b"x" * 300 + b'"}')
    file.write_bytes(b"nonsense\n" + no_id + b'{"id": "\xff"}\n' + big + line("good"))
    consume(world, inbox, FileSource(file))
    assert world.effects() == ["good"]
    found = world.query(
        "SELECT reason, count(*) FROM oncebox_dead_letter GROUP BY reason ORDER BY reason"
    )
    assert found == [("missing_id", 3), ("too_large", 1)]


@pytest.mark.only(("sqlite3", "psycopg"))
def test_messages_of_an_owner_that_vanished_are_isolated(
    world: World, inbox: Inbox, file: Path
) -> None:
    file.write_bytes(b"".join(line(str(number)) for number in range(6)))
    consume(world, inbox, FileSource(file), batch=2)
    world.execute("DELETE FROM effects")
    world.execute("DELETE FROM oncebox_inbox")
    world.execute(
        "UPDATE oncebox_position SET next = 0, owner = 'x.y.z', owner_name = 'elsewhere:1:0', "
        f"batch = 2, until = {'now()' if world.is_postgres else 0}"
    )
    consume(world, inbox, FileSource(file), batch=4)
    assert world.effects() == ["2", "3", "4", "5"]
    assert sorted(row[0] for row in world.pending()) == ["0", "1"]
    assert world.drain(inbox) == {"done": 2}


@pytest.mark.only(("sqlite3", "psycopg"))
def test_a_live_reader_keeps_its_partition(world: World, inbox: Inbox, file: Path) -> None:
    file.write_bytes(line("1"))
    first, second = (Consumer(inbox, FileSource(file, follow=True)) for _ in range(2))
    threads = [threading.Thread(target=consumer.run) for consumer in (first, second)]
    threads[0].start()
    wait_until(lambda: world.effects() == ["1"], "the first reads nothing")
    owner = positions(world)[0][2]
    threads[1].start()
    with file.open("ab") as more:
        more.write(line("2"))
    wait_until(lambda: world.effects() == ["1", "2"], "the file is not read on")
    assert positions(world)[0][2] == owner
    first.stop()
    threads[0].join()
    with file.open("ab") as more:
        more.write(line("3"))
    wait_until(lambda: "3" in world.effects(), "the second does not take over")
    assert positions(world)[0][2] != owner
    second.stop()
    threads[1].join()
    assert positions(world)[0][2] is None


@pytest.mark.only(("sqlite3", "psycopg", "sqlalchemy-psycopg", "aiosqlite"))
def test_a_reader_that_lost_its_partition_commits_nothing(
    world: World, inbox: Inbox, file: Path
) -> None:
    file.write_bytes(line("1"))
    consume(world, inbox, FileSource(file))
    step = Advance("file:x", "p", "me", old=0, new=9, heartbeat_timeout=10)
    with pytest.raises(NotOwner):
        if world.is_async:
            from oncebox.storage.steps import arun

            world.run(arun(inbox._engine.process(True, [order("2")], advance=step)))
        else:
            from oncebox.storage.steps import run

            run(inbox._engine.process(False, [order("2")], advance=step))
    assert world.effects() == ["1"]


@pytest.mark.only(("sqlite3", "psycopg-async"))
def test_duplicates_reordering_and_lost_acks_of_a_queue_are_absorbed(
    world: World, inbox: Inbox
) -> None:
    deliveries = [order(str(number)) for number in range(30)]
    source = MemorySource(deliveries, seed=3, duplicated=0.4, reordered=0.5, lost_acks=0.4)
    consume(world, inbox, source, batch=7)
    world.drain(inbox)
    assert world.effects() == sorted(str(number) for number in range(30))


@pytest.mark.only(("sqlite3",))
def test_a_wrong_mode_is_refused(world: World, inbox: Inbox, file: Path) -> None:
    file.touch()
    with pytest.raises(ConfigurationError, match="mode must be 'inline' or 'stored'"):
        Consumer(inbox, FileSource(file), mode="both")  # type: ignore[arg-type]


# -- a partition whose messages may crash the process, or are deleted -----------------------------


class Crash(BaseException):
    """Stands for a crash of the process."""


class Log:
    """A source of one partition; the conversion of the message at `crash_at` crashes."""

    name = "partition"
    features = Features(order="partition", durable=True, assigns=True, ends=True)

    def __init__(self, bodies: list[bytes], crash_at: int | None = None, start: int = 0) -> None:
        self._bodies = bodies
        self._crash_at = crash_at
        self._start = start
        self._next: int | None = None
        self._suspects = 0
        self.why: str | None = None

    def partitions(self) -> list[str]:
        return ["p"]

    def is_reassigned(self) -> bool:
        return False

    def start_position(self, partition: str) -> Position:
        return Position(partition, 0)

    def open(self, position: Position) -> None:
        self._next, self._suspects = position.next, position.suspects

    def read(self, limit: int, seconds: float) -> Batch | None:
        old = self._next
        if old is None:  # it was finished before
            return None
        if old < self._start:
            self._next = self._start
            return Batch((), "p", old, self._start, skipped=self._start - old)
        if old == len(self._bodies):
            return None
        self._next = old + 1 if self._suspects else min(old + limit, len(self._bodies))
        if not self._suspects:
            return Batch(self._convert(old, self._next), "p", old, self._next)
        self._suspects -= 1
        bare = [Delivery(self._bodies[old], coordinates=f"p/{old}", defect="it crashes")]
        return Batch(bare, "p", old, self._next, convert=lambda: self._convert(old, old + 1))

    def _convert(self, start: int, end: int) -> list[Delivery]:
        if self._crash_at is not None and start <= self._crash_at < end:
            raise Crash
        return [Delivery(body) for body in self._bodies[start:end]]

    def ack(self, batch: Batch, outcomes: Any) -> None: ...

    def nack(self, batch: Batch) -> None: ...

    def extend(self, batch: Batch) -> None: ...

    def gauge(self, partition: str) -> Gauge:
        return Gauge(lag=0, age=60)

    def trouble(self) -> str | None:
        return self.why

    def release(self, partition: str) -> None: ...

    def is_finished(self, partition: str, position: Position | None) -> bool:
        next_ = position.next if position is not None and self._next is None else self._next
        return next_ == len(self._bodies) and self.why is None

    def retention(self) -> None: ...

    def close(self) -> None: ...


def status(world: World, inbox: Inbox) -> Status:
    found: Status = world.run(inbox.astatus()) if world.is_async else inbox.status()
    return found


BODIES = [line(str(number)).strip() for number in range(10)]


@pytest.mark.only(FILES)
@pytest.mark.parametrize("mode", ["inline", "stored"])
def test_a_message_that_crashes_the_process_when_it_is_converted_is_quarantined(
    world: World, inbox: Inbox, mode: str
) -> None:
    for _ in range(4):  # once with its batch, three times isolated
        with pytest.raises(Crash):
            consume(world, inbox, Log(BODIES, crash_at=5), mode=mode)
    consume(world, inbox, Log(BODIES, crash_at=5), mode=mode)
    world.drain(inbox)
    assert world.effects() == [str(number) for number in range(10) if number != 5]
    found = world.query("SELECT state, payload, coordinates FROM oncebox_dead_letter")
    assert [(state, bytes(body), at) for state, body, at in found] == [
        ("quarantined", BODIES[5], "p/5")
    ]
    assert world.query("SELECT next, crashes FROM oncebox_position") == [(10, 0)]


@pytest.mark.only(("sqlite3", "psycopg-async"))
def test_a_counted_crash_that_did_not_happen_is_removed(world: World, inbox: Inbox) -> None:
    for crash_at in (5, 5, 5, None):
        with pytest.raises(Crash) if crash_at else nullcontext():
            consume(world, inbox, Log(BODIES, crash_at=crash_at))
    world.drain(inbox)
    assert world.effects() == [str(number) for number in range(10)]
    assert world.query("SELECT next, crashes FROM oncebox_position") == [(10, 0)]


@pytest.mark.only(FILES)
def test_deleted_messages_are_counted_once(world: World, inbox: Inbox) -> None:
    for _ in range(2):
        consume(world, inbox, Log(BODIES, start=4))
    assert world.effects() == [str(number) for number in range(4, 10)]
    (partition,) = status(world, inbox).partitions
    assert (partition.next, partition.skipped) == (10, 4)
    assert partition.skipped_why == "deleted by the broker before they were read"
    assert partition.skipped_at is not None


@pytest.mark.only(FILES)
def test_a_source_that_cannot_be_read_is_reported_until_it_can(world: World, inbox: Inbox) -> None:
    source = Log(BODIES)
    source.why = "no broker answers"
    consumer = Consumer(inbox, source)
    beats: list[str] = []
    reported: list[Any] = []

    def check(waits_for: str) -> None:
        beats.append(waits_for)
        if waits_for and not reported:
            reported.extend(world.query("SELECT source, why FROM oncebox_outage"))
            source.why = None
            consumer._checked_at = None

    consumer.on_beat = check
    world.run(consumer.arun()) if world.is_async else consumer.run()
    assert reported == [("partition", "no broker answers")]
    assert "the source" in beats
    assert beats[-1] == ""
    assert world.query("SELECT count(*) FROM oncebox_outage") == [(0,)]
    (partition,) = status(world, inbox).partitions
    assert partition.lag_at is not None
    assert (datetime.now(UTC) - partition.lag_at).total_seconds() >= 60


# -- a queue --------------------------------------------------------------------------------------


class Outage:
    """Lets the database be away for the first calls of process()."""

    def __init__(self, inbox: Inbox, monkeypatch: pytest.MonkeyPatch, failures: int) -> None:
        self.left = failures
        self.tries = 0
        engine = type(inbox._engine)
        self._process = partial(engine.process, inbox._engine)
        monkeypatch.setattr(engine, "process", self.process)
        monkeypatch.setattr(oncebox.services.loop, "LONGEST_OUTAGE", 0.05)
        monkeypatch.setattr(oncebox.services.consumer, "EXTEND_EVERY", 0.01)

    def process(self, *args: Any, **options: Any) -> Any:
        self.tries += 1
        if self.left:
            self.left -= 1
            raise DatabaseUnavailable("the database is away")
        return (yield from self._process(*args, **options))


def orders(count: int) -> list[Delivery]:
    return [order(str(number)) for number in range(count)]


@pytest.mark.only(("sqlite3", "psycopg-async"))
def test_deliveries_in_flight_are_extended_while_the_database_is_away(
    world: World, inbox: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = MemorySource(orders(4))
    outage = Outage(inbox, monkeypatch, failures=5)
    consume(world, inbox, source, batch=2)
    assert world.effects() == ["0", "1", "2", "3"]
    assert outage.tries == 7
    assert len(source.extended) > 5, "more than once in a pause"
    assert {d.body for batch in source.extended for d in batch.deliveries} == {
        d.body for d in orders(2)
    }
    assert source.nacked == []


@pytest.mark.only(("sqlite3", "psycopg-async"))
def test_deliveries_in_flight_are_nacked_when_the_consumer_stops_in_an_outage(
    world: World, inbox: Inbox, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    source = MemorySource(orders(4))
    outage = Outage(inbox, monkeypatch, failures=1000)
    consumer = Consumer(inbox, source, batch=3)
    consumer.on_beat = lambda waits: consumer.stop() if outage.tries > 3 else None
    world.run(consumer.arun()) if world.is_async else consumer.run()
    assert world.effects() == []
    assert [len(batch.deliveries) for batch in source.nacked] == [3]
    expected = "returned 3 deliveries without outcome to memory (DatabaseUnavailable)"
    assert expected in caplog.messages[-1], "it does not wait after that"
    outage.left = 0
    consume(world, inbox, source)
    world.drain(inbox)
    assert world.effects() == ["0", "1", "2", "3"]


@pytest.mark.only(("sqlite3", "psycopg-async"))
def test_deliveries_in_flight_are_nacked_when_the_consumer_fails(
    world: World, inbox: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = MemorySource(orders(4))

    def process(*args: Any, **options: Any) -> Any:
        raise ConfigurationError("the inbox cannot work")
        yield

    monkeypatch.setattr(type(inbox._engine), "process", process)
    with pytest.raises(ConfigurationError):
        consume(world, inbox, source, batch=3)
    assert [len(batch.deliveries) for batch in source.nacked] == [3]


@pytest.mark.only(("sqlite3", "psycopg-async"))
def test_a_queue_leaves_no_position(world: World, inbox: Inbox) -> None:
    consume(world, inbox, MemorySource(orders(4)))
    assert world.effects() == ["0", "1", "2", "3"]
    assert positions(world) == []


@pytest.mark.only(("sqlite3", "psycopg-async"))
def test_a_queue_is_not_read_before_the_database_answers(
    world: World, inbox: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each read counts as a delivery attempt, and some brokers drop messages after a few."""
    source = MemorySource(orders(4))
    reads = 0
    store = type(inbox._context.store)
    end_outage = store.end_outage
    failures = iter([True, True, True])

    def away(*args: Any) -> Any:
        if next(failures, False):
            assert reads == 0
            raise DatabaseUnavailable("the database is away")
        return (yield from end_outage(*args))

    read = source.read

    def counted(limit: int, seconds: float) -> Batch | None:
        nonlocal reads
        reads += 1
        return read(limit, seconds)

    monkeypatch.setattr(store, "end_outage", away)
    monkeypatch.setattr(source, "read", counted)
    consume(world, inbox, source)
    assert world.effects() == ["0", "1", "2", "3"]
    assert reads == 2


@pytest.mark.only(("sqlite3", "psycopg-async"))
def test_the_trouble_of_a_queue_is_reported_until_it_ends(world: World, inbox: Inbox) -> None:
    class Troubled(MemorySource):
        why: str | None = "connection refused"

        def trouble(self) -> str | None:  # type: ignore[override]
            return self.why

        def read(self, limit: int, seconds: float) -> Batch | None:
            return None if self.why else super().read(limit, seconds)

    source = Troubled(orders(2))
    consumer = Consumer(inbox, source)
    reported: list[Any] = []

    def check(waits_for: str) -> None:
        if waits_for and not reported:
            reported.extend(world.query("SELECT source, why FROM oncebox_outage"))
            source.why = None

    consumer.on_beat = check
    world.run(consumer.arun()) if world.is_async else consumer.run()
    assert reported == [("memory", "connection refused")]
    assert world.query("SELECT count(*) FROM oncebox_outage") == [(0,)]
    assert world.effects() == ["0", "1"]
