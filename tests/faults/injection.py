"""Injection: runners that let one chosen call to the database go wrong.

All database work is written as generators of calls. The runners here stand in for those of
oncebox.storage.steps, count the calls, also those that handlers cause, and spoil one of them.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import psycopg
import pytest
from sqlalchemy import exc

from oncebox.storage import steps
from support.services import wait_until
from support.worlds import World

_PLACES = ("oncebox.operations.methods", "oncebox.storage.drivers.transaction")


class Injector:
    """Counts calls while it is armed, and lets the n-th go wrong in the way of the fault."""

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        self.world = world
        self.count = 0
        self.connection: Any = None
        self._doomed: int | None = None
        self._fault: Fault | None = None
        self._admin = psycopg.connect(world.url, autocommit=True) if world.is_postgres else None
        # Nothing crashes here, so nothing needs to be on disk.
        if self._admin is not None:
            name = self.query("SELECT current_database()")[0][0]
            self._admin.execute(f'ALTER DATABASE "{name}" SET synchronous_commit = off')
        for place in _PLACES:
            monkeypatch.setattr(f"{place}.run", self.run)
            monkeypatch.setattr(f"{place}.arun", self.arun)

    def arm(self, doomed: int, fault: Fault) -> None:
        """Count from the start; the call with this number goes wrong."""
        self.count, self._doomed, self._fault = 0, doomed, fault
        self.connection = None

    def disarm(self) -> None:
        """From now on all goes well."""
        self._doomed = None

    def close(self) -> None:
        if self._admin is not None:
            self._admin.close()

    # -- the runners ------------------------------------------------------------------------------

    def run(self, work: Any) -> Any:
        return steps.run(self._watched(work, self._sync))

    async def arun(self, work: Any) -> Any:
        return await steps.arun(self._watched(work, self._async))

    def _watched(self, work: Any, perform: Any) -> Any:
        """The same steps, their calls replaced."""
        answer: Any = None
        error: BaseException | None = None
        while True:
            try:
                call = work.send(answer) if error is None else work.throw(error)
            except StopIteration as stop:
                return stop.value
            try:
                answer, error = (yield perform(call)), None
            except BaseException as raised:
                answer, error = None, raised

    def _sync(self, call: Callable[[], Any]) -> Callable[[], Any]:
        if _is_pause(call):
            return lambda: None
        if not self._is_doomed():
            return lambda: self._note(call())

        def spoiled() -> Any:
            assert self._fault is not None
            self._fault.before(self)
            answer = self._note(call())
            self._fault.after(self)
            return answer

        return spoiled

    def _async(self, call: Callable[[], Any]) -> Callable[[], Any]:
        doomed = not _is_pause(call) and self._is_doomed()

        async def performed() -> Any:
            if _is_pause(call):
                return None
            if not doomed:
                return self._note(await call())
            assert self._fault is not None
            self._fault.before(self)
            answer = self._note(await call())
            self._fault.after(self)
            return answer

        return performed

    def _is_doomed(self) -> bool:
        self.count += 1
        return self.count == self._doomed

    def _note(self, answer: Any) -> Any:
        if hasattr(answer, "pgconn") or hasattr(answer, "invalidate"):
            self.connection = answer
        return answer

    def query(self, sql: str, *params: Any) -> list[tuple[Any, ...]]:
        """The truth, on a connection that no fault touches."""
        if self._admin is None:
            return self.world.query(sql, *params)
        return self._admin.execute(sql, params).fetchall()

    # -- what faults do ---------------------------------------------------------------------------

    def cut(self) -> None:
        """End all sessions of the database, as a failover would."""
        ended = self.query(
            "SELECT pid, pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid IN ("
            "SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend' "
            "AND datname = current_database() AND pid <> pg_backend_pid())"
        )
        pids = [row[0] for row in ended]
        # Not pg_terminate_backend(pid, timeout): it looks every 100 ms only.
        alive = "SELECT 1 FROM pg_stat_activity WHERE pid = ANY (%s)"
        wait_until(lambda: not self.query(alive, pids), "terminated sessions go on")

    def notice(self) -> None:
        """Let the client learn now that its connection is gone, as a read would."""
        if hasattr(self.connection, "pgconn"):
            with suppress(psycopg.Error):
                for _ in range(3):  # the last words of the server, then the end of the file
                    self.connection.pgconn.consume_input()
        elif self.connection is not None and not self.connection.closed:
            self.connection.invalidate()


class Fault:
    """What happens around a call that goes wrong."""

    def before(self, injector: Injector) -> None:
        """Before the call is made; what this raises, is raised instead of making the call."""

    def after(self, injector: Injector) -> None:
        """After the call was made; what this raises, is raised instead of the answer."""


class Refused(Fault):
    """The call is not made: the driver raises an error that means nothing to us."""

    def before(self, injector: Injector) -> None:
        raise driver_error(injector.world)


class AnswerBroken(Fault):
    """The call is made, and the driver raises nevertheless."""

    def after(self, injector: Injector) -> None:
        raise driver_error(injector.world)


class Conflict(Fault):
    """The call is not made: the database says that the whole transaction has to be run again."""

    def before(self, injector: Injector) -> None:
        if not injector.world.is_postgres:
            # Not SQLITE_BUSY: that a writer's own statements never meet.
            error = sqlite3.OperationalError("database or disk is full")
            error.sqlite_errorcode = sqlite3.SQLITE_FULL
            raise wrapped(injector.world, error)
        raise wrapped(injector.world, psycopg.errors.SerializationFailure("injected"))


class CutBefore(Fault):
    """The connection is gone when the call is made."""

    def before(self, injector: Injector) -> None:
        injector.cut()


class CutAfter(Fault):
    """The call is made, then the connection goes, and the answer with it."""

    def after(self, injector: Injector) -> None:
        injector.cut()
        injector.notice()
        error = psycopg.OperationalError("the connection is lost")
        raise wrapped(injector.world, error, lost=True)


def driver_error(world: World) -> Exception:
    """An error without a code, such as drivers raise for whatever they did not foresee."""
    if world.is_postgres:
        return wrapped(world, psycopg.DatabaseError("injected"))
    return wrapped(world, sqlite3.DatabaseError("injected"))


def wrapped(world: World, error: Exception, *, lost: bool = False) -> Exception:
    """The error as the world's library raises it."""
    if not world.name.startswith("sqlalchemy"):
        return error
    return exc.DBAPIError("injected", None, error, connection_invalidated=lost)


def _is_pause(call: Any) -> bool:
    return getattr(call, "func", None) in (time.sleep, asyncio.sleep)
