"""What `inbox.status()` says about workers that crashed."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from oncebox.model.inspection import Status, WorkerStatus
from oncebox.storage.drivers.transactions import run_transaction
from oncebox.storage.records import WorkerInfo
from oncebox.storage.steps import arun, run
from support.inboxes import InboxHarness, keyed
from support.internals import open_database, store_of
from support.worlds import SOME, World, order

pytestmark = pytest.mark.only(SOME)

CRASHED = WorkerInfo("elsewhere:1:0", "0.1.crashed", batch=5, timeout=60, heartbeat_timeout=-1)
LIVE = WorkerInfo("elsewhere:2:0", "0.1.live", batch=5, timeout=60, heartbeat_timeout=90)
LATER = WorkerInfo("elsewhere:1:0", "0.1.crashed", batch=5, timeout=60, heartbeat_timeout=90)


@pytest.fixture
def harness(world: World) -> InboxHarness:
    return InboxHarness(world)


def call(world: World, harness: InboxHarness, method: str, worker: WorkerInfo) -> None:
    """Let a worker sign on or off."""

    def steps() -> Any:
        database = yield from open_database(harness.inbox, world.is_async)
        store: Any = store_of(harness.inbox)
        yield from run_transaction(
            database, partial(getattr(store, method), consumer="billing", worker=worker)
        )

    world.run(arun(steps())) if world.is_async else run(steps())


def workers(world: World, harness: InboxHarness) -> dict[str, WorkerStatus]:
    inbox = harness.inbox
    status: Status = world.run(inbox.astatus()) if world.is_async else inbox.status()
    return {worker.name: worker for worker in status.workers}


def test_a_crashed_worker_is_overdue_while_no_other_worker_lives(
    world: World, harness: InboxHarness
) -> None:
    call(world, harness, "sign_on", CRASHED)
    seen = workers(world, harness)[CRASHED.name]
    assert seen.is_crashed
    assert seen.is_overdue


def test_a_live_worker_takes_over_from_a_crashed_worker(
    world: World, harness: InboxHarness
) -> None:
    call(world, harness, "sign_on", LIVE)
    call(world, harness, "sign_on", CRASHED)
    seen = workers(world, harness)
    assert (seen[CRASHED.name].is_crashed, seen[CRASHED.name].is_overdue) == (True, False)
    assert (seen[LIVE.name].is_crashed, seen[LIVE.name].is_overdue) == (False, False)


def test_a_crash_that_was_taken_over_is_not_reported_after_the_other_worker_stopped(
    world: World, harness: InboxHarness
) -> None:
    call(world, harness, "sign_on", CRASHED)
    assert harness.drain() == {}
    seen = workers(world, harness)[CRASHED.name]
    assert (seen.is_crashed, seen.is_overdue) == (True, False)


def test_work_of_a_crashed_worker_is_taken_over_when_it_runs(
    world: World, harness: InboxHarness
) -> None:
    harness.receive(keyed("1"), order("2"))
    call(world, harness, "sign_on", CRASHED)
    assert workers(world, harness)[CRASHED.name].is_overdue
    assert harness.drain() == {"done": 2}
    seen = workers(world, harness)[CRASHED.name]
    assert (seen.is_crashed, seen.is_overdue) == (True, False)


def test_a_worker_that_was_only_suspended_is_live_again(
    world: World, harness: InboxHarness
) -> None:
    call(world, harness, "sign_on", CRASHED)
    assert harness.drain() == {}
    call(world, harness, "sign_on", LATER)
    seen = workers(world, harness)[CRASHED.name]
    assert (seen.is_crashed, seen.is_overdue) == (False, False)
    call(world, harness, "sign_off", LATER)
    assert workers(world, harness) == {}


def test_the_row_of_a_crashed_worker_is_deleted_after_an_hour(
    world: World, harness: InboxHarness
) -> None:
    call(world, harness, "sign_on", CRASHED)
    assert harness.drain() == {}
    hours = "- interval '2 hours'" if world.is_postgres else "- 7200000000"
    world.execute(f"UPDATE oncebox_worker SET until = until {hours}")
    world.execute(f"UPDATE oncebox_worker SET taken_over_at = taken_over_at {hours}")
    assert harness.drain() == {}
    assert workers(world, harness) == {}
