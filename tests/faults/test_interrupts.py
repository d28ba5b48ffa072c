"""An exception of a signal handler (Ctrl-C, a soft time limit) interrupts a unit at any line.

It reaches the caller as it is. The transaction is rolled back, the lock and the connection are
released, and the same messages are processed once afterwards.
"""

from __future__ import annotations

import asyncio
import fcntl
import linecache
import os
import random
import signal
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import oncebox
from oncebox import Delivery, Inbox
from support.internals import opened_database
from support.services import wait_until
from support.worlds import ALL, BOTH, World, order

PACKAGE = str(Path(oncebox.__file__).parent)
POINTS = int(os.environ.get("ONCEBOX_FUZZ_EXAMPLES", "0"))
"""How many lines are interrupted; 0: the test's own short number."""

pytestmark = pytest.mark.filterwarnings(
    # The handler was interrupted between the making of a coroutine and its await.
    "ignore:coroutine .* was never awaited:RuntimeWarning",
    "ignore:.*coroutine:pytest.PytestUnraisableExceptionWarning",
    # An async connection of SQLAlchemy that is interrupted while it connects is returned by the
    # garbage collector.
    "ignore:The garbage collector is trying to clean up:sqlalchemy.exc.SAWarning",
    "ignore:.*finalize object:pytest.PytestUnraisableExceptionWarning",
    # Python does not raise what interrupts a destructor.
    "ignore:.*__del__:pytest.PytestUnraisableExceptionWarning",
)

QUICK = BOTH


class CtrlC(BaseException):
    """What a signal handler raises."""


class SoftLimit(Exception):
    """What the signal handler of a task queue raises."""


class Interrupter:
    """Raises an exception at the n-th line of oncebox that this thread executes."""

    def __init__(self, error: type[BaseException], line: int) -> None:
        self._error = error
        self._line = line
        self.count = 0
        self.place = "no line"
        self._called: FrameType | None = None

    @contextmanager
    def armed(self) -> Iterator[None]:
        self.arm()
        try:
            yield
        finally:
            sys.settrace(None)

    def arm(self) -> None:
        """Begin to count; also frames that run already are counted."""
        frame = sys._getframe()
        while frame is not None:
            frame.f_trace = self._trace
            frame = frame.f_back  # type: ignore[assignment]
        sys.settrace(self._trace)

    def _trace(self, frame: FrameType, event: str, _: Any) -> Any:
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        is_resumed = self._called is frame
        self._called = frame if event == "call" else None
        if event == "line" and not is_artificial(frame, is_resumed=is_resumed):
            self.count += 1
            if self.count == self._line:
                sys.settrace(None)
                self.place = f"{frame.f_code.co_filename}:{frame.f_lineno}"
                raise self._error
        return self._trace


def is_artificial(frame: FrameType, *, is_resumed: bool) -> bool:
    """Whether Python traces a line where it handles no signal.

    That is a with statement, when its block is over, and one that waits for another generator or
    coroutine, when that is resumed.
    """
    line = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
    waits = is_resumed and ("yield from " in line or "await " in line)
    return waits or line.lstrip().startswith("with ")


def handler(hook: Callable[[], Any]) -> Any:
    def handle(payload: dict[str, Any], tx: Any) -> Iterator[Any]:
        yield tx.execute("INSERT INTO effects (id, body) VALUES (:id, '')", id=payload["id"])
        hook()

    return handle


def batch(name: object) -> list[Delivery]:
    return [order(f"{name}-{n}", key=f"{name}-{n % 2}") for n in range(3)]


def lines_to_interrupt(count: int, points: int) -> range:
    return range(1, count + 1, max(1, count // (POINTS or points)))


def count_lines(world: World, inbox: Inbox) -> int:
    """How many lines one call of process() executes, once everything is warm."""
    for name in ("cold", "warm"):
        counter = Interrupter(CtrlC, sys.maxsize)
        with counter.armed():
            world.process(inbox, batch(name))
    return counter.count


def assert_nothing_is_held(world: World) -> None:
    if not world.is_postgres:
        path = world.url.removeprefix("sqlite:///")
        if os.path.exists(f"{path}-oncebox-lock"):
            with open(f"{path}-oncebox-lock", "ab") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            other.execute("ROLLBACK")
        return
    held = (
        "SELECT state, query FROM pg_stat_activity WHERE datname = current_database() "
        "AND pid <> pg_backend_pid() AND state LIKE 'idle in transaction%%'"
    )
    # The server needs a moment to notice that a connection was closed.
    wait_until(lambda: world.query(held) == [], "a transaction is still open")


def wait_for_connections(world: World, inbox: Inbox, line: str) -> None:
    """Until every connection is back in its pool, which replaces those that were closed."""
    database: Any = opened_database(inbox)

    def are_back() -> bool:
        if world.is_async:
            world.run(asyncio.sleep(0.01))  # the pool works on the event loop
        if hasattr(database, "pool"):
            stats = database.pool.get_stats()
            return bool(stats["pool_available"] == stats["pool_size"])
        pool: Any = getattr(getattr(database, "engine", None), "pool", None)
        return not hasattr(pool, "checkedout") or pool.checkedout() == 0

    wait_until(are_back, f"a connection is not back in its pool: interrupted in {line}")


@pytest.mark.only(ALL, quick=QUICK)
@pytest.mark.parametrize("error", [CtrlC, SoftLimit])
def test_an_interrupt_at_any_line_leaves_nothing_behind(
    world: World, error: type[BaseException]
) -> None:
    inbox = world.inbox()
    world.on(inbox, "order", handler(lambda: None))
    for line in lines_to_interrupt(count_lines(world, inbox), 60):
        interrupter = Interrupter(error, line)
        # A soft limit inside a handler's call is that message's failure, and does not come out.
        with suppress(error), interrupter.armed():
            world.process(inbox, batch(line))
        assert_nothing_is_held(world)
        assert set(world.kinds(inbox, batch(line))) <= {"done", "duplicate"}, line
        wait_for_connections(world, inbox, interrupter.place)
        effects = world.effects()
        assert len(effects) == len(set(effects)), f"doubled: interrupted in {interrupter.place}"


@pytest.mark.only(("sqlite3", "sqlalchemy-pysqlite", "django-sqlite", "django-postgres"))
def test_an_interrupt_after_the_release_of_a_savepoint_repeats_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The work is in the transaction, and can no longer be rolled back by itself."""
    inbox = world.inbox()
    world.on(inbox, "order", handler(lambda: None))
    world.process(inbox, batch("warm"))
    database: Any = opened_database(inbox)
    adapter = type(database.work())
    release = adapter.release_savepoint
    interrupts = [SoftLimit()]

    def interrupted(work: Any, **options: bool) -> Iterator[Any]:
        steps = release(work, **options)
        for call in steps:
            yield call
            if interrupts:
                steps.throw(interrupts.pop())

    monkeypatch.setattr(adapter, "release_savepoint", interrupted)
    with suppress(SoftLimit):
        world.process(inbox, batch("interrupted"))
    assert not interrupts
    assert set(world.kinds(inbox, batch("interrupted"))) <= {"done", "duplicate"}
    effects = world.effects()
    assert len(effects) == len(set(effects)) == 6


@pytest.mark.only(ALL, quick=QUICK)
def test_the_next_call_finishes_an_interrupted_clean_up(world: World) -> None:
    """The handler is interrupted, and so is the roll-back that follows."""
    inbox = world.inbox()
    hooks: list[Callable[[], Any]] = []
    world.on(inbox, "order", handler(lambda: hooks.pop()() if hooks else None))

    def process_interrupted(line: int) -> Interrupter:
        second = Interrupter(CtrlC, line)

        def strike() -> None:
            second.arm()
            raise CtrlC

        hooks[:] = [strike]
        try:
            world.process(inbox, batch(line))
        except CtrlC:
            return second
        finally:
            sys.settrace(None)
        raise AssertionError(f"the interrupt got lost in {second.place}")

    world.process(inbox, batch("warm"))
    count = process_interrupted(sys.maxsize).count
    for line in lines_to_interrupt(count, 40):
        interrupter = process_interrupted(line)
        assert set(world.kinds(inbox, batch(line))) <= {"done", "duplicate"}, line
        assert_nothing_is_held(world)
        wait_for_connections(world, inbox, interrupter.place)
    effects = world.effects()
    assert len(effects) == len(set(effects))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.only(("sqlite3", "sqlalchemy-pysqlite", "psycopg"))
def test_no_signal_leaves_a_lock_behind(world: World) -> None:
    """Real signals, which also land inside the driver and SQLAlchemy."""
    inbox = world.inbox()
    world.on(inbox, "order", handler(lambda: None))
    world.process(inbox, batch("cold"))
    began = time.monotonic()
    world.process(inbox, batch("warm"))
    typical = time.monotonic() - began
    seed = random.Random(1)
    before = signal.signal(signal.SIGALRM, _raise)
    try:
        for n in range(POINTS or 150):
            with suppress(CtrlC, Exception):  # it may also become an error of the driver
                try:
                    signal.setitimer(signal.ITIMER_REAL, seed.uniform(1e-5, typical))
                    world.process(inbox, batch(n))
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
            assert_nothing_is_held(world)
            assert set(world.kinds(inbox, batch(n))) <= {"done", "duplicate", "blocked"}
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    effects = world.effects()
    assert len(effects) == len(set(effects))


def _raise(*_: object) -> None:
    raise CtrlC


@pytest.mark.only(("psycopg", "sqlalchemy-psycopg", "sqlite3"))
def test_an_exception_of_a_signal_handler_during_acquire_is_not_reported_as_an_outage(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    inbox = world.inbox()
    world.on(inbox, "order", handler(lambda: None))
    world.process(inbox, batch("warm"))
    database: Any = opened_database(inbox)

    def interrupted(work: Any) -> Any:
        yield lambda: None
        raise SoftLimit

    monkeypatch.setattr(database, "acquire", interrupted)
    with pytest.raises(SoftLimit):
        world.process(inbox, batch("interrupted"))
