"""A handler ends the transaction: every adapter, every way, every place in a batch.

Whatever the handler does, a neighbour's work happens once or is recorded as unfinished: no outcome
says done or duplicate of work whose commit is unknown.
"""

from __future__ import annotations

import os
import socket
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest
from psycopg import sql

from oncebox import Consumer, Delivery, Kind, Outcome, Reason
from oncebox.brokers.file import FileSource
from support.worlds import ALL, BOTH, SOME, SQLALCHEMY, World, order

INSERT = "INSERT INTO effects (id, body) VALUES ('{}', '')"

Way = Callable[[World, Any, str], Iterator[Any]]
"""Ends the transaction of a handler that has written its effect; awaitables are yielded."""


# -- by statements that can be refused ------------------------------------------------------------


def _statement(word: str) -> Way:
    def execute(world: World, tx: Any, id: str) -> Iterator[Any]:
        if world.name.startswith("django"):
            yield tx.connection.cursor().execute(word)
        elif world.name in SQLALCHEMY:
            yield tx.connection.exec_driver_sql(word)
        else:
            yield tx.connection.execute(word)

    return execute


def _composed(word: str) -> Way:
    def execute(world: World, tx: Any, id: str) -> Iterator[Any]:
        statement = sql.SQL("{}").format(sql.SQL(word))
        if world.name.startswith("django"):
            tx.connection.cursor().execute(statement)
        else:
            yield tx.connection.execute(statement)

    return execute


def _bytes(world: World, tx: Any, id: str) -> Iterator[Any]:
    yield tx.connection.execute(b"ROLLBACK")


def _many(word: str) -> Way:
    def execute(world: World, tx: Any, id: str) -> Iterator[Any]:
        if world.name in SQLALCHEMY:
            yield tx.connection.exec_driver_sql(word, [(), ()])
        elif world.name.startswith("django"):
            tx.connection.cursor().executemany(word, [(), ()])
        elif world.is_postgres:
            yield tx.connection.cursor().executemany(word, [(), ()])
        else:
            yield tx.connection.executemany(word, [(), ()])

    return execute


def _copied(world: World, tx: Any, id: str) -> Iterator[Any]:
    with tx.connection.cursor().copy("COMMIT"):
        yield None


def _streamed(world: World, tx: Any, id: str) -> Iterator[Any]:
    list(tx.connection.cursor().stream("ROLLBACK"))
    yield None


def _script(world: World, tx: Any, id: str) -> Iterator[Any]:
    yield tx.connection.executescript("COMMIT; " + INSERT.format("script"))


def _method(name: str) -> Way:
    def call(world: World, tx: Any, id: str) -> Iterator[Any]:
        yield getattr(tx.connection, name)()

    return call


# -- past every guard -----------------------------------------------------------------------------


def _driver(world: World, tx: Any) -> Generator[Any, Any, Any]:
    """The driver's own connection."""
    if world.name.startswith("django"):
        return tx.connection.connection
    if world.name not in SQLALCHEMY:
        return tx.connection
    if world.is_async:
        return (yield tx.connection.get_raw_connection()).driver_connection
    return tx.connection.connection.driver_connection


def _raw(word: str, *, then_write: bool = False) -> Way:
    def end(world: World, tx: Any, id: str) -> Generator[Any, Any, Any]:
        connection = yield from _driver(world, tx)
        if isinstance(connection, psycopg.Connection | psycopg.AsyncConnection):
            kind: Any = psycopg.AsyncCursor if world.is_async else psycopg.Cursor
            if isinstance(connection, psycopg.Connection):
                kind = psycopg.Cursor
            yield kind(connection).execute(word)
        elif world.name == "sqlalchemy-asyncpg":
            yield connection.execute(word)
        else:
            yield connection.commit() if word == "COMMIT" else connection.rollback()
        if then_write:
            yield tx.execute(INSERT.format(f"{id} after"))

    return end


def _driver_method(name: str) -> Way:
    def call(world: World, tx: Any, id: str) -> Generator[Any, Any, Any]:
        connection = yield from _driver(world, tx)
        yield getattr(connection, name)()

    return call


def _protocol(world: World, tx: Any, id: str) -> Iterator[Any]:
    """Below the driver: libpq itself."""
    pgconn = tx.connection.pgconn
    if world.name == "psycopg-unpiped":
        pgconn.exec_(b"COMMIT")
    else:
        pgconn.send_query_params(b"COMMIT", None)
    yield None


REFUSED: dict[str, Way] = {
    "COMMIT": _statement("COMMIT"),
    "ROLLBACK": _statement("/* x */ ROLLBACK"),
    "rollback to": _statement("ROLLBACK TO SAVEPOINT oncebox_work_0"),
    "composed COMMIT": _composed("COMMIT"),
    "composed ROLLBACK": _composed("ROLLBACK"),
    "bytes": _bytes,
    "many": _many("COMMIT"),
    "copied": _copied,
    "streamed": _streamed,
    "script": _script,
    "commit()": _method("commit"),
    "rollback()": _method("rollback"),
}
PAST_GUARDS: dict[str, Way] = {
    "raw COMMIT": _raw("COMMIT"),
    "raw ROLLBACK": _raw("ROLLBACK"),
    "raw COMMIT, then a write": _raw("COMMIT", then_write=True),
    "raw ROLLBACK, then a write": _raw("ROLLBACK", then_write=True),
    "raw COMMIT AND CHAIN": _raw("COMMIT AND CHAIN"),
    "close()": _method("close"),
    "driver close()": _driver_method("close"),
    "libpq": _protocol,
}
WAYS = {**REFUSED, **PAST_GUARDS}


PSYCOPG = ("psycopg", "psycopg-unpiped", "psycopg-async")
SYNC_PSYCOPG = ("psycopg", "psycopg-unpiped")
OWN_SQLITE = ("sqlite3", "aiosqlite")
POSSIBLE: dict[str, Collection[str]] = {
    "composed COMMIT": (*PSYCOPG, "django-postgres"),
    "composed ROLLBACK": (*PSYCOPG, "django-postgres"),
    "bytes": PSYCOPG,
    "copied": SYNC_PSYCOPG,
    "streamed": SYNC_PSYCOPG,
    "script": OWN_SQLITE,
    "libpq": SYNC_PSYCOPG,
    "raw COMMIT AND CHAIN": [name for name in ALL if "sqlite" not in name],
    "driver close()": [name for name in ALL if name not in (*PSYCOPG, *OWN_SQLITE)],
}
"""The adapters that have a way; all other ways exist on every adapter."""

QUICK = BOTH
WAYS_AND_ADAPTERS = [
    pytest.param(way, marks=pytest.mark.only(POSSIBLE.get(way, ALL), quick=QUICK)) for way in WAYS
]


# -- what must hold -------------------------------------------------------------------------------


class Books:
    """The messages of a world: what was said of them, and what became of them."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.effects = Counter(row[0] for row in world.query("SELECT id FROM effects"))
        self.claimed = {row[0] for row in world.query("SELECT message_id FROM oncebox_inbox")}
        self.pending = {row[0] for row in world.query("SELECT message_id FROM oncebox_pending")}
        letters = world.query("SELECT message_id, reason FROM oncebox_dead_letter")
        self.dead = {row[0]: row[1] for row in letters}

    def check(self, outcomes: list[Outcome]) -> None:
        for outcome in outcomes:
            assert outcome.message is not None
            id = outcome.message.id
            unfinished = id in self.pending or id in self.dead
            assert self.effects[id] <= 1, f"{id} was applied {self.effects[id]} times"
            assert id in self.claimed, f"{id} may be acknowledged, and is not recorded"
            if outcome.kind in (Kind.done, Kind.duplicate):
                assert unfinished or self.effects[id] == 1, f"{id} is {outcome.kind}, not applied"
            if outcome.kind is Kind.done:
                assert not unfinished
            if outcome.kind is Kind.dead:
                assert self.dead[id] == Reason.transaction_lost
            if outcome.kind is Kind.failed:
                assert id in self.pending
                assert self.effects[id] == 0


def batch_with(place: int) -> list[Delivery]:
    """Five messages, of which one ends the transaction."""
    names = ["bad" if n == place else f"m{n}" for n in range(5)]
    return [order(f"{name} {place}", key=f"{name} {place}") for name in names]


def handler(world: World, way: Way) -> Any:
    def handle(payload: dict[str, Any], tx: Any) -> Iterator[Any]:
        yield tx.execute("INSERT INTO effects (id, body) VALUES (:id, '')", id=payload["id"])
        if payload["id"].startswith("bad"):
            yield from way(world, tx, payload["id"])

    return handle


@pytest.mark.parametrize("way", WAYS_AND_ADAPTERS)
def test_a_handler_that_ends_its_transaction_fails_no_other_message(world: World, way: str) -> None:
    inbox = world.inbox()
    world.on(inbox, "order", handler(world, WAYS[way]))
    for place in (0, 2, 4):
        batch = batch_with(place)
        outcomes = world.process(inbox, batch)
        Books(world).check(outcomes)
        kinds = [outcome.kind for outcome in outcomes]
        # A connection of asyncpg that a handler closed looks like one that broke: the batch is
        # run again, then stored, and each of its messages runs by itself.
        looks_broken = way == "driver close()" and world.name == "sqlalchemy-asyncpg"
        stored = {Kind.stored} if looks_broken else set()
        assert kinds[place] in {Kind.failed, Kind.dead} | stored
        neighbours = [kind for n, kind in enumerate(kinds) if n != place]
        if way in REFUSED or "ROLLBACK" in way or "close" in way:
            assert set(neighbours) <= {Kind.done} | stored
        assert set(neighbours) <= {Kind.done, Kind.dead} | stored
        Books(world).check(world.process(inbox, batch))
        assert world.kinds(inbox, [order(f"fresh {place}")]) == ["done"], "the inbox goes on"
        assert Books(world).effects[f"fresh {place}"] == 1


@pytest.mark.only(ALL, quick=SOME)
@pytest.mark.parametrize("way", ["raw COMMIT", "raw ROLLBACK", "close()", "COMMIT"])
def test_a_handler_that_ends_the_transaction_of_a_drain_fails_no_other_message(
    world: World, way: str
) -> None:
    inbox = world.inbox()
    world.on(inbox, "order", handler(world, WAYS[way]))
    batch = batch_with(2)
    world.receive(inbox, batch)
    world.drain(inbox)
    books = Books(world)
    for n in range(5):
        id = "bad 2" if n == 2 else f"m{n} 2"
        assert books.effects[id] + (id in books.pending) + (id in books.dead) >= 1
        assert books.effects[id] <= 1
        assert n == 2 or books.effects[id] == 1 or books.dead.get(id) == Reason.transaction_lost
    assert "bad 2" in books.dead or "bad 2" in books.pending


class Rerun(Exception):
    """An error for which the whole unit is run again."""

    sqlstate = "40001"


def cut(world: World, tx: Any) -> None:
    """Let the connection break."""
    steps = _driver(world, tx)
    try:
        next(steps)
    except StopIteration as stop:
        with socket.socket(fileno=os.dup(stop.value.fileno())) as connection:
            connection.shutdown(socket.SHUT_RDWR)


@pytest.mark.only(
    ("psycopg", "psycopg-unpiped", "sqlalchemy-psycopg", "django-postgres"), quick=["psycopg"]
)
@pytest.mark.parametrize("how", ["conflict", "cut"])
@pytest.mark.parametrize("mode", ["process", "drain"])
def test_a_commit_past_every_guard_is_found_also_if_the_unit_is_run_again(
    world: World, how: str, mode: str
) -> None:
    struck: list[str] = []

    def handle(payload: dict[str, Any], tx: Any) -> Iterator[Any]:
        yield tx.execute("INSERT INTO effects (id, body) VALUES (:id, '')", id=payload["id"])
        if payload["id"].startswith("bad") and not struck:
            struck.append(payload["id"])
            yield from WAYS["raw COMMIT"](world, tx, payload["id"])
            if how == "conflict":
                raise Rerun
            cut(world, tx)

    inbox = world.inbox()
    world.on(inbox, "order", handle)
    batch = batch_with(2)
    if mode == "process":
        outcomes = world.process(inbox, batch)
        Books(world).check(outcomes)
    else:
        world.receive(inbox, batch)
        world.drain(inbox)
    books = Books(world)
    for n in range(5):
        id = "bad 2" if n == 2 else f"m{n} 2"
        assert books.dead.get(id) == Reason.transaction_lost, f"it is unknown whether {id} is done"


@pytest.mark.only(("psycopg",))
def test_a_commit_of_an_isolated_message_past_every_guard_is_found_if_it_is_run_again(
    world: World,
) -> None:
    struck: list[str] = []

    def handle(payload: dict[str, Any], tx: Any) -> Iterator[Any]:
        yield tx.execute("INSERT INTO effects (id, body) VALUES (:id, '')", id=payload["id"])
        if not struck:
            struck.append(payload["id"])
            yield from WAYS["raw COMMIT"](world, tx, payload["id"])
            raise Rerun

    inbox = world.inbox()
    world.on(inbox, "order", handle)
    redelivered = msgspec.structs.replace(order("bad"), redelivered=True)
    assert world.kinds(inbox, [redelivered]) == ["stored"]
    world.drain(inbox)
    assert Books(world).dead == {"bad": Reason.transaction_lost}


@pytest.mark.only(("psycopg", "sqlalchemy-pysqlite"))
def test_a_position_that_a_handler_committed_leaves_nothing_unrecorded(
    world: World, tmp_path: Path
) -> None:
    """The COMMIT of the handler moved the position too, beyond what was still to be recorded."""
    inbox = world.inbox()
    world.on(inbox, "order", handler(world, WAYS["raw COMMIT"]))
    file = tmp_path / "events.jsonl"
    file.write_bytes(b"\n".join([order("m").body, b"no identity", order("bad").body, b""]))
    Consumer(inbox, FileSource(file)).run()
    states = world.query("SELECT message_id, state FROM oncebox_dead_letter ORDER BY id")
    assert sorted(states, key=str) == [("bad", "dead"), ("m", "dead"), (None, "quarantined")]
    assert world.query("SELECT next FROM oncebox_position") == [(file.stat().st_size,)]


@pytest.mark.only(("psycopg", "sqlite3", "sqlalchemy-pysqlite"))
def test_no_handler_can_name_the_savepoint_of_a_unit(world: World) -> None:
    from oncebox.storage.drivers.savepoints import savepoint_name

    assert savepoint_name(0) != "oncebox_work_0"
    assert savepoint_name(0) != savepoint_name(1)
    assert len(savepoint_name(0)) > 15
