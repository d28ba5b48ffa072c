"""Special cases of SQLite transactions: locks, savepoints and statements that end them."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from oncebox import Inbox
from oncebox.errors import ConfigurationError
from support.transactions import assert_only_bad_fails
from support.worlds import World, order, write_effect

pytestmark = pytest.mark.only(("sqlite3", "aiosqlite"))


@pytest.mark.parametrize("swallow", [False, True])
def test_insert_or_rollback_fails_only_its_message(world: World, swallow: bool) -> None:
    """It ends the whole transaction; what the handler does next must not autocommit."""
    world.execute("CREATE TABLE single (n integer PRIMARY KEY)")
    world.execute("INSERT INTO single VALUES (1)")

    def end(tx: Any) -> Any:
        if not swallow:
            yield tx.execute("INSERT OR ROLLBACK INTO single VALUES (1)")
        with contextlib.suppress(sqlite3.IntegrityError):
            yield tx.execute("INSERT OR ROLLBACK INTO single VALUES (1)")
        with contextlib.suppress(Exception):
            yield tx.execute("INSERT INTO effects (id, body) VALUES ('leaked', '')")
        with contextlib.suppress(Exception):
            yield tx.execute("WITH x AS (SELECT 'leaked') INSERT INTO effects SELECT *, '' FROM x")
        with contextlib.suppress(Exception):
            yield tx.connection.execute("INSERT INTO effects (id, body) VALUES ('leaked', '')")

    assert_only_bad_fails(world, end)


def test_a_trigger_that_raises_rollback_fails_only_its_message(world: World) -> None:
    world.execute(
        "CREATE TRIGGER no_x BEFORE INSERT ON accounts BEGIN SELECT RAISE(ROLLBACK, 'no'); END"
    )

    def trip(tx: Any) -> Any:
        with contextlib.suppress(sqlite3.Error):
            yield tx.execute("INSERT INTO accounts VALUES ('x', 1)")

    assert_only_bad_fails(world, trip)


def test_executescript_commits_nothing(world: World) -> None:
    """Python commits before a script: the authorizer does not let it."""

    def script(tx: Any) -> Any:
        yield tx.connection.executescript("INSERT INTO effects VALUES ('leaked', '');")

    assert_only_bad_fails(world, script)


@pytest.mark.parametrize(
    "statement",
    [
        "BEGIN IMMEDIATE",
        "COMMIT",
        "ROLLBACK TO SAVEPOINT oncebox_WORK_0",
        'RELEASE "OnceBox_probe"',
        "ATTACH ':memory:' AS other",
        "PRAGMA synchronous=OFF",
        "PRAGMA foreign_keys=OFF",
        "PRAGMA journal_mode=DELETE",
    ],
)
def test_statements_that_break_the_transaction_are_denied(world: World, statement: str) -> None:
    def undermine(tx: Any) -> Any:
        yield tx.connection.execute(statement)

    error = assert_only_bad_fails(world, undermine).error
    assert isinstance(error, sqlite3.DatabaseError)


def test_savepoints_and_harmless_pragmas_are_the_handlers_own(world: World) -> None:
    def use(payload: dict[str, Any], tx: Any) -> Any:
        yield tx.connection.execute("PRAGMA table_info(effects)")
        yield tx.connection.execute("SAVEPOINT mine")
        yield tx.execute("INSERT INTO effects VALUES ('undone', '')")
        yield tx.connection.execute("ROLLBACK TO mine")
        yield tx.connection.execute("RELEASE mine")

    inbox = world.inbox()
    world.on(inbox, "order", use)
    (outcome,) = world.process(inbox, [order("a")])
    assert outcome.error is None
    assert world.effects() == []


@pytest.mark.parametrize("statement", ["SELECT 1 UNION SELECT 2", "INSERT INTO effects VALUES"])
def test_an_open_cursor_is_harmless(world: World, statement: str) -> None:
    """It would keep its read snapshot, and no later transaction of the connection could write."""
    leaked: list[Any] = []

    def leak(payload: dict[str, Any], tx: Any) -> Any:
        if statement.startswith("SELECT"):
            leaked.append((yield tx.connection.execute(statement)))
        else:
            sql = f"{statement} ('{payload['id']}', '') RETURNING id"
            leaked.append((yield tx.connection.execute(sql)))

    inbox = world.inbox()
    world.on(inbox, "order", leak)
    for id in ("a", "b", "c"):
        assert world.kinds(inbox, [order(id)]) == ["done"]
        world.execute("INSERT INTO accounts VALUES (%s, 1)", id)


@pytest.mark.only(("sqlite3",))
@pytest.mark.parametrize("attribute", ["isolation_level", "autocommit"])
def test_a_handler_that_changes_the_transaction_mode_fails(world: World, attribute: str) -> None:
    if not hasattr(sqlite3.Connection, attribute):
        pytest.skip("new in Python 3.12")

    def change(tx: Any) -> Any:
        setattr(tx.connection, attribute, "" if attribute == "isolation_level" else False)
        yield

    assert_only_bad_fails(world, change)


@pytest.mark.only(("sqlite3",))
def test_writers_take_turns(world: World) -> None:
    """Eight threads with a transaction each: none gets "database is locked"."""
    inbox = world.inbox()
    world.on(inbox, "order", write_effect)
    kinds: list[str] = []

    def work(worker: int) -> None:
        for number in range(10):
            kinds.extend(
                world.kinds(inbox, [order(f"{worker}-{number}"), order(f"shared-{number}")])
            )

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(kinds) == ["done"] * 90 + ["duplicate"] * 70
    assert len(world.effects()) == 90


@pytest.mark.only(("sqlite3",))
def test_the_writer_of_another_program_is_waited_for(world: World) -> None:
    inbox = world.inbox()
    world.on(inbox, "order", write_effect)
    path = world.url.removeprefix("sqlite:///")
    outsider = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    outsider.execute("BEGIN IMMEDIATE")
    timer = threading.Timer(0.3, outsider.execute, ["COMMIT"])
    timer.start()
    assert world.kinds(inbox, [order("a")]) == ["done"]
    timer.join()
    outsider.close()


@pytest.mark.only(("sqlite3",))
def test_a_handler_that_writes_on_another_connection_fails_only_its_message(world: World) -> None:
    """It finds the database locked, by the very transaction that it should have used."""

    def write_elsewhere(tx: Any) -> Any:
        path = world.url.removeprefix("sqlite:///")
        with closing(sqlite3.connect(path, timeout=0)) as elsewhere:
            elsewhere.execute("INSERT INTO effects VALUES ('elsewhere', '')")
        yield

    assert "locked" in str(assert_only_bad_fails(world, write_elsewhere).error)


@pytest.mark.only(("sqlite3",))
def test_commits_are_on_disk_and_in_the_log(world: World) -> None:
    settings: dict[str, Any] = {}

    def look(payload: dict[str, Any], tx: Any) -> Any:
        for name in ("journal_mode", "synchronous", "foreign_keys"):
            settings[name] = tx.connection.execute(f"PRAGMA {name}").fetchone()[0]
        yield

    inbox = world.inbox()
    world.on(inbox, "order", look)
    world.process(inbox, [order("a")])
    assert settings == {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1}


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:", "sqlite:///"])
def test_a_database_in_memory_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match="names no file"):
        Inbox("billing", url)


def test_a_folder_that_does_not_exist_is_named(tmp_path: Path) -> None:
    inbox = Inbox("billing", f"sqlite:///{tmp_path}/missing/inbox.db")
    with pytest.raises(Exception, match="cannot open the SQLite database"):
        inbox.migrate()
