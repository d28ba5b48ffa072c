"""A batch of one message fails as a message of a longer batch does.

With a psycopg pipeline, the errors of its handler's statements arrive with the COMMIT.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator, Iterator
from typing import Any

import psycopg
import pytest

from oncebox import Inbox
from oncebox.processing.observer import Observer
from oncebox.storage.drivers.psycopg import queueing
from oncebox.storage.drivers.psycopg.work import PsycopgWork
from support.services import wait_until
from support.worlds import World, order, write_effect

PSYCOPG = ("psycopg", "psycopg-async", "psycopg-unpiped")
DIVIDE = "INSERT INTO effects (id) SELECT (1 / :zero)::text"

Handler = Callable[[dict[str, Any], Any], Iterator[Any]]


def divide_by_zero(payload: dict[str, Any], tx: Any) -> Iterator[Any]:
    yield from write_effect(payload, tx)
    if payload["id"].startswith("bad"):
        yield tx.execute(DIVIDE, zero=0)


def exceed_statement_timeout(payload: dict[str, Any], tx: Any) -> Iterator[Any]:
    yield from write_effect(payload, tx)
    if payload["id"].startswith("bad"):
        yield tx.execute("SET LOCAL statement_timeout = '50ms'")
        yield tx.execute("SELECT pg_sleep(60)")


def swallow_an_error(payload: dict[str, Any], tx: Any) -> Generator[Any, Any, None]:
    yield from write_effect(payload, tx)
    if payload["id"].startswith("bad"):
        try:
            result: Any = yield tx.execute(DIVIDE, zero=0)
            yield result.rows()
        except Exception:
            yield tx.execute("SELECT 1")


def batch(*ids: str) -> list[Any]:
    return [order(id, key=f"key of {id}") for id in ids]


@pytest.mark.only(PSYCOPG)
@pytest.mark.parametrize("ids", [("bad",), ("good", "bad")], ids=["one", "two"])
@pytest.mark.parametrize(
    ("handler", "error"),
    [
        (divide_by_zero, "DivisionByZero"),
        (exceed_statement_timeout, "QueryCanceled"),
        (swallow_an_error, "SwallowedError"),
    ],
)
def test_a_failing_statement_is_one_counted_failure(
    world: World, handler: Handler, error: str, ids: tuple[str, ...]
) -> None:
    inbox = world.inbox()
    world.on(inbox, "order", handler)
    outcomes = world.process(inbox, batch(*ids))
    assert [str(o.kind) for o in outcomes] == ["done"] * (len(ids) - 1) + ["failed"]
    assert type(outcomes[-1].error).__name__ == error
    assert world.effects() == list(ids[:-1])
    ((number, outcome, duration),) = world.query(
        "SELECT number, outcome, duration FROM oncebox_attempt"
    )
    assert (number, outcome) == (1, "failed")
    assert duration is not None
    assert world.kinds(inbox, [order("next", key="key of bad")]) == ["blocked"]


@pytest.mark.only(("psycopg",))
def test_a_follower_that_waits_for_the_key_does_not_overtake_a_failing_head(world: World) -> None:
    started, resume = threading.Event(), threading.Event()
    runs: list[str] = []

    def slow(payload: dict[str, Any], tx: Any) -> Iterator[Any]:
        runs.append(payload["id"])
        yield tx.execute(DIVIDE, zero=0)
        started.set()
        resume.wait(60)

    inbox = world.inbox()
    world.on(inbox, "order", slow)
    kinds: dict[str, list[str]] = {}

    def process(id: str) -> None:
        kinds[id] = world.kinds(inbox, [order(id, key="k")])

    threads = [threading.Thread(target=process, args=(id,)) for id in ("head", "follower")]
    threads[0].start()
    assert started.wait(60)
    threads[1].start()
    waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    wait_until(lambda: world.query(waiting) == [(1,)], "the follower waits for no lock")
    resume.set()
    for thread in threads:
        thread.join()
    assert kinds == {"head": ["failed"], "follower": ["blocked"]}
    assert runs == ["head"]
    assert [id for id, _, _ in world.pending()] == ["head", "follower"]


@pytest.mark.only(PSYCOPG)
@pytest.mark.parametrize("ids", [("a",), ("a", "b")], ids=["one", "two"])
def test_a_connection_that_is_closed_just_before_the_commit_commits_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch, ids: tuple[str, ...]
) -> None:
    inbox = world.inbox()
    world.on(inbox, "order", write_effect)
    execute = PsycopgWork.execute
    closed: list[Any] = []

    def execute_and_close(work: Any, sql: str, params: Any) -> Iterator[Any]:
        yield from execute(work, sql, params)
        if "guard" in sql and not closed:
            closed.append(work.connection.pgconn.finish())

    monkeypatch.setattr(PsycopgWork, "execute", execute_and_close)
    assert world.kinds(inbox, batch(*ids)) == ["done"] * len(ids)
    assert closed
    assert world.effects() == list(ids), "what is done has its effect"


@pytest.mark.only(("psycopg", "psycopg-unpiped"))
def test_a_lock_timeout_at_the_commit_is_recorded_as_such(world: World) -> None:
    world.execute("CREATE TABLE parent (id text PRIMARY KEY)")
    world.execute("INSERT INTO parent VALUES ('bad')")
    world.execute(
        "CREATE TABLE child (id text REFERENCES parent (id) DEFERRABLE INITIALLY DEFERRED)"
    )

    def wait_for_parent(payload: dict[str, Any], tx: Any) -> Iterator[Any]:
        yield tx.execute("SET LOCAL lock_timeout = '20ms'")
        yield tx.execute("INSERT INTO child VALUES (:id)", id=payload["id"])

    inbox = world.inbox()
    world.on(inbox, "order", wait_for_parent)
    with psycopg.connect(world.url) as blocker:
        blocker.execute("SELECT FROM parent FOR UPDATE")
        world.kinds(inbox, batch("bad"))
    ((error,),) = world.query("SELECT last_error FROM oncebox_pending")
    assert error.startswith("LockNotAvailable"), error


@pytest.mark.only(PSYCOPG)
def test_the_inbox_can_be_used_after_a_failure_at_the_commit(world: World) -> None:
    inbox = world.inbox()
    world.on(inbox, "order", divide_by_zero)
    for number in range(12):  # psycopg prepares statements after five executions
        assert world.kinds(inbox, batch(f"good-{number}")) == ["done"]
        assert world.kinds(inbox, batch(f"bad-{number}")) == ["failed"]
    assert len(world.effects()) == 12


@pytest.mark.only(("psycopg",))
def test_a_constraint_that_fails_at_the_commit_is_a_counted_failure(world: World) -> None:
    world.execute("CREATE TABLE parent (id text PRIMARY KEY)")
    world.execute(
        "CREATE TABLE child (id text REFERENCES parent (id) DEFERRABLE INITIALLY DEFERRED)"
    )

    def orphan(payload: dict[str, Any], tx: Any) -> Iterator[Any]:
        yield tx.execute("INSERT INTO child VALUES ('x')")

    inbox = world.inbox()
    world.on(inbox, "order", orphan)
    (outcome,) = world.process(inbox, batch("bad"))
    assert type(outcome.error).__name__ == "ForeignKeyViolation"
    assert world.query("SELECT number, outcome FROM oncebox_attempt") == [(1, "failed")]


@pytest.mark.only(("psycopg",))
def test_a_batch_of_one_waits_for_the_server_twice(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    import psycopg

    syncs: list[int] = []
    sync = psycopg.Pipeline.sync

    def counted(pipeline: Any) -> None:
        syncs.append(1)
        sync(pipeline)

    monkeypatch.setattr(psycopg.Pipeline, "sync", counted)
    inbox = world.inbox()
    world.on(inbox, "order", divide_by_zero)
    world.kinds(inbox, batch("warm"))
    syncs.clear()
    assert world.kinds(inbox, batch("good")) == ["done"]
    assert len(syncs) == (2 if queueing.SUPPORTED else len(syncs))


class Events(Observer):
    """Counts started, rolled back and committed batches."""

    def __init__(self) -> None:
        self.open = 0

    def batch_started(self, consumer: str, size: int) -> None:
        self.open += 1

    def batch_rolled_back(
        self, consumer: str, error: BaseException | None, consequence: str
    ) -> None:
        self.open -= 1

    def batch_committed(self, consumer: str, outcomes: Any) -> None:
        self.open -= 1


class Empty(Exception):
    """An exception that is false."""

    def __len__(self) -> int:
        return 0


@pytest.mark.only(("sqlite3", "psycopg", "psycopg-unpiped", "psycopg-async"))
def test_an_exception_that_is_false_is_a_failure(world: World) -> None:
    def in_savepoint(tx: Any) -> None:
        with tx.savepoint():
            tx.execute("INSERT INTO effects (id) VALUES ('undone')")
            raise Empty

    async def in_async_savepoint(tx: Any) -> None:
        async with tx.savepoint():
            await tx.execute("INSERT INTO effects (id) VALUES ('undone')")
            raise Empty

    def empty(payload: dict[str, Any], tx: Any) -> Iterator[Any]:
        try:
            if world.is_async:
                yield in_async_savepoint(tx)
            else:
                in_savepoint(tx)
        except Empty:
            yield from write_effect(payload, tx)
        if payload["id"] == "bad":
            raise Empty

    inbox = world.inbox()
    world.on(inbox, "order", empty)
    outcomes = world.process(inbox, batch("good", "bad"))
    assert [str(outcome.kind) for outcome in outcomes] == ["done", "failed"]
    assert isinstance(outcomes[1].error, Empty)
    assert world.effects() == ["good"]
    ((error,),) = world.query("SELECT error FROM oncebox_attempt")
    assert "Empty" in error


@pytest.mark.only(("sqlite3", "psycopg", "psycopg-async"))
def test_every_started_batch_is_reported_as_committed_or_rolled_back(world: World) -> None:
    import msgspec

    inbox: Inbox = world.inbox()
    events = Events()
    msgspec.structs.force_setattr(inbox._engine, "observer", events)

    def broken(payload: dict[str, Any], tx: Any) -> Iterator[Any]:
        yield from write_effect(payload, tx)
        if payload["id"] == "bad":
            raise asyncio.InvalidStateError

    world.on(inbox, "order", broken)
    world.process(inbox, batch("good", "bad"))
    world.process(inbox, batch("bad", "other"))
    assert events.open == 0
