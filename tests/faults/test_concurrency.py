"""Two transactions claim or lock the same rows at the same time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from typing import Any

import psycopg
import pytest
from psycopg import IsolationLevel
from psycopg.conninfo import make_conninfo
from psycopg.errors import DeadlockDetected
from psycopg_pool import ConnectionPool

from oncebox import Delivery, Inbox
from support.services import wait_until
from support.worlds import World, order

pytestmark = pytest.mark.only(("psycopg",))

ROUNDS = 60


@pytest.fixture
def inbox(world: World) -> Inbox:
    return world.inbox()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as pool:
        yield pool


@pytest.fixture
def connect(world: World, pool: ThreadPoolExecutor) -> Iterator[Callable[[], psycopg.Connection]]:
    """Connections of the caller's own; they end before the threads do, which may wait for them."""
    patient = make_conninfo(world.url, options="-c lock_timeout=20s -c deadlock_timeout=50ms")
    with ExitStack() as stack:
        yield lambda: stack.enter_context(closing(psycopg.connect(patient)))


def wait_for_lock(world: World, connection: psycopg.Connection) -> None:
    """Until this connection waits for another one's transaction."""
    pid = connection.info.backend_pid
    query = "SELECT 1 FROM pg_stat_activity WHERE pid = %s AND wait_event_type = 'Lock'"
    wait_until(lambda: world.query(query, pid) != [], "the second does not wait")


# -- claims ---------------------------------------------------------------------------------------


def claim_twice(
    world: World, inbox: Inbox, connect: Callable[[], psycopg.Connection], pool: ThreadPoolExecutor
) -> tuple[psycopg.Connection, Future[bool]]:
    """A claim that is under way, and a second one of the same id that waits for its end."""
    first, second = connect(), connect()
    assert inbox.claim(first, "m") is True
    waiting = pool.submit(inbox.claim, second, "m")
    wait_for_lock(world, second)
    assert not waiting.done()
    return first, waiting


def test_a_second_claim_wins_if_the_first_is_rolled_back(
    world: World,
    inbox: Inbox,
    connect: Callable[[], psycopg.Connection],
    pool: ThreadPoolExecutor,
) -> None:
    first, waiting = claim_twice(world, inbox, connect, pool)
    first.rollback()
    assert waiting.result() is True


def test_a_second_claim_is_a_duplicate_if_the_first_is_committed(
    world: World,
    inbox: Inbox,
    connect: Callable[[], psycopg.Connection],
    pool: ThreadPoolExecutor,
) -> None:
    first, waiting = claim_twice(world, inbox, connect, pool)
    first.commit()
    assert waiting.result() is False
    assert world.states() == {"m": "done"}


def test_a_second_claim_wins_if_the_session_of_the_first_is_ended(
    world: World,
    inbox: Inbox,
    connect: Callable[[], psycopg.Connection],
    pool: ThreadPoolExecutor,
) -> None:
    first, waiting = claim_twice(world, inbox, connect, pool)
    world.execute("SELECT pg_terminate_backend(%s)", first.info.backend_pid)
    assert waiting.result() is True


def test_a_batch_claims_its_ids_in_sorted_order(
    world: World,
    inbox: Inbox,
    connect: Callable[[], psycopg.Connection],
    pool: ThreadPoolExecutor,
) -> None:
    holder, batch, other = connect(), connect(), connect()
    assert inbox.claim(holder, "b") is True
    waiting = pool.submit(inbox.claim_many, batch, ["c", "b", "a"])
    wait_for_lock(world, batch)
    assert inbox.claim(other, "c") is True  # the batch has not got there: it waits for b
    other.rollback()
    holder.rollback()
    assert waiting.result() == [True, True, True]


def test_batches_with_the_same_ids_in_opposite_order_do_not_deadlock(
    inbox: Inbox, connect: Callable[[], psycopg.Connection], pool: ThreadPoolExecutor
) -> None:
    ids = [f"m{number}" for number in range(40)]
    meeting = threading.Barrier(2)

    def claim(connection: psycopg.Connection, step: int) -> list[int]:
        won = []
        for round in range(ROUNDS):
            meeting.wait(20)
            batch = [f"{round}/{id}" for id in ids[::step]]
            won.append(sum(inbox.claim_many(connection, batch)))
            connection.commit()
        return won

    forward, backward = (pool.submit(claim, connect(), step) for step in (1, -1))
    pairs = zip(forward.result(), backward.result(), strict=True)
    assert {tuple(sorted(pair)) for pair in pairs} == {(0, len(ids))}


def test_claims_one_by_one_in_opposite_order_do_deadlock(
    inbox: Inbox, connect: Callable[[], psycopg.Connection], pool: ThreadPoolExecutor
) -> None:
    first, second = connect(), connect()
    inbox.claim(first, "a")
    inbox.claim(second, "b")
    claims = [pool.submit(inbox.claim, first, "b"), pool.submit(inbox.claim, second, "a")]
    assert {type(claim.exception()) for claim in claims} == {DeadlockDetected, type(None)}


# -- batches --------------------------------------------------------------------------------------


def process_both(
    world: World, handler: Callable[..., Any], batches: list[list[Delivery]], **options: Any
) -> list[list[str]]:
    """Process two batches at the same time, each by a consumer of its own."""

    def process(batch: list[Delivery]) -> list[str]:
        with ConnectionPool(world.url, min_size=1, open=True, **options) as connections:
            inbox = Inbox("billing", connections)
            inbox.on("order")(handler)
            return [outcome.kind.value for outcome in inbox.process(batch)]

    world.migrate(world.inbox(migrate=False))
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(process, batches))


class Meeting:
    """Where the first runs of two handlers wait for each other; later runs go through."""

    def __init__(self) -> None:
        self.runs = 0
        self._barrier = threading.Barrier(2)
        self._lock = threading.Lock()

    def attend(self) -> None:
        with self._lock:
            self.runs += 1
            early = self.runs <= 2
        if early:
            self._barrier.wait(20)


def serializable(connection: psycopg.Connection) -> None:
    connection.isolation_level = IsolationLevel.SERIALIZABLE


def test_units_that_cannot_be_serialized_are_run_again(world: World) -> None:
    world.execute("INSERT INTO accounts VALUES ('a', 50), ('b', 50)")
    meeting = Meeting()

    def withdraw(payload: dict[str, Any], tx: Any) -> None:
        """Allowed only if both accounts together have enough: a write skew if both do it."""
        total = tx.execute("SELECT sum(balance) FROM accounts").one()[0]
        meeting.attend()
        if total >= 100:
            sql = "UPDATE accounts SET balance = balance - 100 WHERE name = :name"
            tx.execute(sql, name=payload["from"])
        tx.execute("INSERT INTO effects (id, body) VALUES (:id, '')", id=payload["id"])

    batches = [[order(name, data={"id": name, "from": name})] for name in ("a", "b")]
    kinds = process_both(world, withdraw, batches, configure=serializable)
    assert kinds == [["done"], ["done"]]
    assert meeting.runs == 3
    assert world.query("SELECT sum(balance) FROM accounts") == [(0,)]
    assert world.effects() == ["a", "b"]
    assert world.pending() == []


def test_the_same_message_in_two_serializable_units_takes_effect_once(world: World) -> None:
    def write(payload: dict[str, Any], tx: Any) -> None:
        tx.execute("INSERT INTO effects (id, body) VALUES (:id, '')", id=payload["id"])

    batch = [order(f"m{number}") for number in range(5)]
    kinds = process_both(world, write, [batch, batch], configure=serializable)
    assert sorted(kinds) == [["done"] * 5, ["duplicate"] * 5]
    assert world.effects() == [f"m{number}" for number in range(5)]


def test_units_whose_handlers_deadlock_are_run_again(world: World) -> None:
    world.execute("INSERT INTO accounts VALUES ('a', 0), ('b', 0)")
    name = world.query("SELECT current_database()")[0][0]
    world.execute(f"ALTER DATABASE \"{name}\" SET deadlock_timeout = '50ms'")
    meeting = Meeting()

    def transfer(payload: dict[str, Any], tx: Any) -> None:
        add = "UPDATE accounts SET balance = balance + 1 WHERE name = :name"
        assert tx.execute(add, name=payload["first"]).rowcount == 1
        meeting.attend()
        assert tx.execute(add, name=payload["second"]).rowcount == 1
        tx.execute("INSERT INTO effects (id, body) VALUES (:id, '')", id=payload["id"])

    batches = [
        [order("ab", data={"id": "ab", "first": "a", "second": "b"})],
        [order("ba", data={"id": "ba", "first": "b", "second": "a"})],
    ]
    assert process_both(world, transfer, batches) == [["done"], ["done"]]
    assert meeting.runs == 3
    assert world.query("SELECT name, balance FROM accounts ORDER BY name") == [("a", 2), ("b", 2)]
    assert world.effects() == ["ab", "ba"]
    assert world.pending() == []


def test_a_lock_that_a_handler_waited_for_too_long_is_its_messages_failure(
    world: World, inbox: Inbox, connect: Callable[[], psycopg.Connection]
) -> None:
    world.execute("INSERT INTO accounts VALUES ('taken', 0), ('free', 0)")
    runs = []

    def add(payload: dict[str, Any], tx: Any) -> None:
        runs.append(payload["id"])
        tx.execute("SET LOCAL lock_timeout = '20ms'")
        tx.execute("UPDATE accounts SET balance = 1 WHERE name = :id", id=payload["id"])
        tx.execute("INSERT INTO effects (id, body) VALUES (:id, '')", id=payload["id"])

    inbox.on("order")(add)
    connect().execute("UPDATE accounts SET balance = 2 WHERE name = 'taken'")
    batch = [order("before"), order("taken", key="k"), order("later", key="k"), order("free")]
    outcomes = inbox.process(batch)
    assert [outcome.kind.value for outcome in outcomes] == ["done", "failed", "blocked", "done"]
    assert isinstance(outcomes[1].error, psycopg.errors.LockNotAvailable)
    assert world.effects() == ["before", "free"]
    assert world.pending() == [("taken", 1, "retrying"), ("later", 0, "blocked")]
    assert len(runs) < 20  # it is not run again and again
