"""An inbox whose finished messages are replayed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

from oncebox import Delivery
from oncebox.model.replay import Replay
from oncebox.operations.replays import Preview, ReplayFeeder
from oncebox.storage.steps import Steps, arun, run
from support.inboxes import ONCE, InboxHarness
from support.internals import open_database, store_of
from support.services import PATIENCE
from support.worlds import BOTH, World

SYNC_AND_ASYNC = (*BOTH, "sqlalchemy-asyncpg")
"""Each database, and an async adapter."""
SLOW = 0.01
"""A pace at which one message is stored, and the next one long after the test."""
HOUR = timedelta(hours=1)
COUNTS = ("done", "waiting", "dead", "discarded", "skipped", "cancelled")
EVERYTHING: dict[str, Any] = {"type": "order"}


class Gate:
    """Stops a message in the middle of its run until the test opens it."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.opened = threading.Event()

    def wait(self) -> None:
        self.reached.set()
        assert self.opened.wait(PATIENCE)


class ReplayHarness(InboxHarness):
    """An inbox whose finished messages are replayed."""

    def __init__(self, world: World, **options: Any) -> None:
        super().__init__(world, **{"retry": ONCE, **options})
        self.gates: dict[str, Gate] = {}

    def handle(self, payload: dict[str, Any], tx: Any) -> Generator[Any, Any, Any]:
        if payload["id"] in self.gates:
            result = yield tx.execute("SELECT count(*) FROM effects")
            yield result.rows()  # what a pipeline held back is on the server by now
            self.gates[payload["id"]].wait()
        yield from super().handle(payload, tx)

    def past(self, *deliveries: Delivery) -> None:
        """Process these messages one after the other, successfully."""
        for delivery in deliveries:
            assert self.process(delivery) == ["done"]
        self.ran()

    def replays(self, act: str, *args: Any, **options: Any) -> Any:
        """Call a method of `inbox.replays`, sync or async as the world is."""
        if self.world.is_async:
            return self.world.run(getattr(self.inbox.replays, f"a{act}")(*args, **options))
        return getattr(self.inbox.replays, act)(*args, **options)

    def start(self, name: str = "again", **options: Any) -> Replay:
        """Start a replay, by default of all orders."""
        replay: Replay = self.replays("start", name, why="a test", **(options or EVERYTHING))
        return replay

    def preview(self, **which: Any) -> tuple[int, int, int]:
        found: Preview = self.replays("preview", **which)
        return found.count, found.without_payload, found.in_other_states

    def cancel(self, name: str = "again") -> Replay:
        replay: Replay = self.replays("cancel", name, why="a mistake")
        return replay

    def feed(self) -> bool:
        """Let the replays store some messages, and run nothing."""
        steps = self._feed(is_async=self.world.is_async)
        return bool(self.world.run(arun(steps)) if self.world.is_async else run(steps))

    def _feed(self, *, is_async: bool) -> Steps[bool]:
        database = yield from open_database(self.inbox, is_async)
        feeder = ReplayFeeder(database, store_of(self.inbox), self.inbox.name)
        return (yield from feeder.step())

    def far(self, name: str = "again") -> dict[str, int]:
        """The counts of a replay that are not zero."""
        replay = self.replays("get", name)
        counts = {name: getattr(replay, name) for name in COUNTS}
        assert sum(counts.values()) <= replay.total
        if replay.is_over:
            assert sum(counts.values()) == replay.total
            assert replay.waiting == 0
        return {name: value for name, value in counts.items() if value}


@contextmanager
def held(harness: ReplayHarness, id: str, work: Callable[[], Any]) -> Iterator[None]:
    """Within this block another thread is in the middle of running a message."""
    gate = harness.gates[id] = Gate()
    with ThreadPoolExecutor(1) as others:
        working = others.submit(work)
        try:
            assert gate.reached.wait(PATIENCE)
            yield
        finally:
            del harness.gates[id]
            gate.opened.set()
        working.result()


def received(world: World, id: str, at: datetime) -> None:
    """Set the time at which a message arrived."""
    moment = at if world.is_postgres else int(at.timestamp() * 1_000_000)
    world.execute("UPDATE oncebox_inbox SET received_at = %s WHERE message_id = %s", moment, id)


def make_due(world: World) -> None:
    """Make every replay due."""
    past = "clock_timestamp() - interval '1 hour'" if world.is_postgres else "0"
    world.execute(f"UPDATE oncebox_replay SET due_at = {past}")


def is_over(harness: ReplayHarness, name: str = "again") -> bool:
    harness.drain()
    return bool(harness.replays("get", name).is_over)
