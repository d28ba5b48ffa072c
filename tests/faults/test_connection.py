"""The connection to PostgreSQL, or the server itself, is lost: nothing is lost with it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest

from faults import child
from faults.proxy import Proxy
from oncebox import Delivery, Inbox
from support.services import wait_until
from support.services.postgres import Postgres
from support.worlds import World, order, write_effect

pytestmark = [pytest.mark.crash, pytest.mark.only(("psycopg",))]
DRIVERS = pytest.mark.only(("psycopg", "sqlalchemy-psycopg"))

GATE = 4711
BATCH = [order("a", key="k"), order("b", key="l"), order("c")]
KEYLESS = [order("a"), order("b"), order("c")]


@pytest.fixture
def proxy(world: World) -> Iterator[Proxy]:
    with Proxy.before(world.url) as proxy:
        yield proxy


def need_transaction_timeout(world: World, postgres: Postgres) -> None:
    if int(postgres.version.split(".")[0]) < 17:
        pytest.skip("transaction_timeout came with PostgreSQL 17")
    name = world.query("SELECT current_database()")[0][0]
    # Without the timeout the test is to fail, not to wait forever.
    world.execute(f"ALTER DATABASE \"{name}\" SET lock_timeout = '20s'")


def inbox_behind(world: World, proxy: Proxy, **options: Any) -> Inbox:
    """An inbox that reaches its database by way of the proxy; the test goes straight there."""
    url, world.url = world.url, proxy.url(world.url)
    inbox = world.inbox(migrate=False, **options)
    world.url = url
    world.migrate(inbox)
    return inbox


# -- the COMMIT -----------------------------------------------------------------------------------


class Gate:
    """Holds up every COMMIT that brings effects, for as long as the test wants."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._keeper = psycopg.connect(world.url)
        self._keeper.execute(
            f"CREATE FUNCTION wait_at_gate() RETURNS trigger LANGUAGE plpgsql AS "
            f"'BEGIN PERFORM pg_advisory_xact_lock_shared({GATE}); RETURN NULL; END'"
        )
        self._keeper.execute(
            "CREATE CONSTRAINT TRIGGER gate AFTER INSERT ON effects "
            "DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION wait_at_gate()"
        )
        self._keeper.commit()
        self._keeper.execute("SELECT pg_advisory_lock(%s)", [GATE])
        self._keeper.commit()

    def waiting(self) -> list[int]:
        """The sessions that wait in their COMMIT."""
        found = self.world.query(
            "SELECT pid FROM pg_locks JOIN pg_stat_activity USING (pid) "
            "WHERE locktype = 'advisory' AND NOT granted AND query ILIKE 'commit%' "
            f"AND objid = {GATE}"
        )
        return [row[0] for row in found]

    def open(self) -> None:
        self._keeper.execute("SELECT pg_advisory_unlock(%s)", [GATE])
        self._keeper.commit()

    def close(self) -> None:
        self._keeper.close()


@pytest.fixture
def gate(world: World) -> Iterator[Gate]:
    gate = Gate(world)
    yield gate
    gate.close()


@contextmanager
def processing(inbox: Inbox, batch: list[Delivery]) -> Iterator[Future[list[str]]]:
    """A batch under way in a thread of its own; the outcomes' kinds are its result."""
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(lambda: [outcome.kind.value for outcome in inbox.process(batch)])


def claims_that_wait(world: World) -> int:
    """How many claims wait for another transaction."""
    found = world.query(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
        "AND wait_event_type = 'Lock' AND query LIKE '%oncebox_claim%'"
    )
    return int(found[0][0])


@DRIVERS
@pytest.mark.parametrize("batch", [BATCH, KEYLESS], ids=["keys", "no-keys"])
def test_a_commit_under_way_when_the_connection_breaks_is_waited_for(
    world: World, proxy: Proxy, gate: Gate, batch: list[Delivery]
) -> None:
    inbox = inbox_behind(world, proxy)
    world.on(inbox, "order", write_effect)
    with processing(inbox, batch) as kinds:
        wait_until(lambda: len(gate.waiting()) == 1, "no worker commits")
        proxy.cut()
        wait_until(lambda: claims_that_wait(world) == 1, "the unit is not run again")
        assert world.effects() == []
        gate.open()
        assert kinds.result() == ["duplicate"] * 3
    assert world.effects() == ["a", "b", "c"]
    assert set(world.states().values()) == {"done"}


@DRIVERS
@pytest.mark.parametrize("batch", [BATCH, KEYLESS], ids=["keys", "no-keys"])
def test_a_commit_that_fails_after_the_connection_broke_is_repeated(
    world: World, proxy: Proxy, gate: Gate, batch: list[Delivery]
) -> None:
    inbox = inbox_behind(world, proxy)
    world.on(inbox, "order", write_effect)
    with processing(inbox, batch) as kinds:
        wait_until(lambda: len(gate.waiting()) == 1, "no worker commits")
        (first,) = gate.waiting()
        proxy.cut()
        wait_until(lambda: claims_that_wait(world) == 1, "the unit is not run again")
        world.execute("SELECT pg_terminate_backend(%s)", first)
        wait_until(lambda: gate.waiting() not in ([], [first]), "the unit does not go on")
        gate.open()
        assert kinds.result() == ["done"] * 3
    assert world.effects() == ["a", "b", "c"]


@DRIVERS
def test_a_commit_whose_answer_is_lost_is_not_made_twice(
    world: World, proxy: Proxy, gate: Gate
) -> None:
    inbox = inbox_behind(world, proxy)
    world.on(inbox, "order", write_effect)
    with processing(inbox, BATCH) as kinds:
        wait_until(lambda: len(gate.waiting()) == 1, "no worker commits")
        proxy.blackhole()
        gate.open()
        wait_until(lambda: world.effects() == ["a", "b", "c"], "nothing is committed")
        proxy.cut()
        assert kinds.result() == ["duplicate"] * 3
    assert world.effects() == ["a", "b", "c"]


# -- before the COMMIT ----------------------------------------------------------------------------


class Once:
    """Does something the first time only."""

    def __init__(self, audit: Any) -> None:
        self._action = audit
        self.times = 0

    def __call__(self) -> None:
        self.times += 1
        if self.times == 1:
            self._action()


def handler(audit: Once) -> Any:
    """Writes an effect, and runs the action in between."""

    def handle(payload: dict[str, Any], tx: Any) -> Generator[Any, Any, None]:
        yield tx.execute("INSERT INTO effects (id, body) VALUES (:id, '')", id=payload["id"])
        if payload["id"] == "b":
            audit()
        result = yield tx.execute("SELECT 1")
        yield result.rows()

    return handle


@DRIVERS
def test_a_connection_cut_before_the_commit_costs_only_a_second_run(
    world: World, proxy: Proxy
) -> None:
    inbox = inbox_behind(world, proxy)
    audit = Once(proxy.cut)
    world.on(inbox, "order", handler(audit))
    assert world.kinds(inbox, BATCH) == ["done"] * 3
    assert audit.times == 2
    assert world.effects() == ["a", "b", "c"]


class Death(BaseException):
    """The worker is gone, and the server is not told."""


def test_a_half_open_connection_locks_its_keys_no_longer_than_the_transaction_timeout(
    world: World, proxy: Proxy, postgres: Postgres
) -> None:
    need_transaction_timeout(world, postgres)
    lost = inbox_behind(world, proxy, transaction_timeout=timedelta(seconds=1))

    def die(payload: dict[str, Any], tx: Any) -> None:
        written = tx.execute("INSERT INTO effects (id, body) VALUES ('lost', '')")
        assert written.rowcount == 1
        proxy.desert()
        raise Death

    world.on(lost, "order", die)
    with pytest.raises(Death):
        lost.process(BATCH)
    inbox = Inbox("billing", world.url)
    world.on(inbox, "order", write_effect)
    with inbox:
        assert world.kinds(inbox, BATCH) == ["done"] * 3
    assert world.effects() == ["a", "b", "c"]


@DRIVERS
def test_a_session_ended_in_a_handler_costs_only_a_second_run(world: World) -> None:
    inbox = world.inbox()
    audit = Once(
        lambda: world.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() "
            "AND datname = current_database() AND state <> 'idle'"
        )
    )
    world.on(inbox, "order", handler(audit))
    assert world.kinds(inbox, BATCH) == ["done"] * 3
    assert audit.times == 2
    assert world.effects() == ["a", "b", "c"]
    assert world.pending() == []


# -- the server -----------------------------------------------------------------------------------


def test_a_server_that_crashes_in_the_middle_of_a_batch_loses_and_repeats_nothing(
    world: World, postgres: Postgres
) -> None:
    inbox = world.inbox()

    def crash() -> None:
        postgres.crash()
        postgres.restart()

    world.on(inbox, "order", handler(Once(crash)))
    assert world.kinds(inbox, [order("before")]) == ["done"]
    assert world.kinds(inbox, BATCH) == ["done"] * 3
    assert world.effects() == ["a", "b", "before", "c"]


def test_acknowledged_messages_survive_a_crash_of_the_server(
    world: World, postgres: Postgres
) -> None:
    inbox = world.inbox()
    world.on(inbox, "order", write_effect)
    for number in range(5):
        assert world.kinds(inbox, [order(f"m{number}")]) == ["done"]
    postgres.crash()
    postgres.restart()
    assert world.effects() == [f"m{number}" for number in range(5)]
    assert set(world.states().values()) == {"done"}
    assert world.kinds(inbox, [order("m0"), order("new")]) == ["duplicate", "done"]


# -- a worker that sleeps -------------------------------------------------------------------------


def test_a_suspended_worker_that_resumes_late_commits_nothing(
    world: World, postgres: Postgres, tmp_path: Path
) -> None:
    need_transaction_timeout(world, postgres)
    child.write_deliveries(tmp_path, [("a", "k"), ("b", "k")])
    inbox = world.inbox()
    world.on(inbox, "order", write_effect)
    command = [sys.executable, child.__file__, world.url, str(tmp_path), "stop in handler"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as sleeper:
        try:
            process = psutil.Process(sleeper.pid)
            wait_until(
                lambda: process.status() == psutil.STATUS_STOPPED, "the process does not stop"
            )
            # Waits for the sleeper's locks until the server ends its session.
            again = child.read_deliveries(tmp_path)
            assert world.kinds(inbox, [*again, order("c", key="k")]) == ["done"] * 3
            process.resume()
            output, _ = sleeper.communicate()
        finally:
            sleeper.kill()
    assert sleeper.returncode == 0, output.decode()
    assert child.read_settled(tmp_path) == [("a", "duplicate"), ("b", "duplicate")]
    assert world.effects() == ["a", "b", "c"]
