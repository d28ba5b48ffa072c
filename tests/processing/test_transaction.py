"""What handlers do to the transaction, and why none of it loses or repeats a message."""

from __future__ import annotations

import contextlib
from typing import Any

import psycopg
import pytest
from sqlalchemy import event

from oncebox import Kind, Reason
from oncebox.errors import ConfigurationError, OnceboxError
from support.transactions import assert_only_bad_fails, enforce_foreign_keys, good_and_bad
from support.worlds import ALL, BOTH, ON_POSTGRES, ORM_FREE, SQLALCHEMY, World, order, write_effect

INSERT = "INSERT INTO effects (id, body) VALUES (:id, '')"


# -- errors of statements -------------------------------------------------------------------------


def test_a_business_unique_violation_is_a_failure_and_not_a_duplicate(world: World) -> None:
    world.execute("CREATE UNIQUE INDEX once ON effects (id)")
    world.execute("INSERT INTO effects (id, body) VALUES ('taken', '')")

    def insert_again(tx: Any) -> Any:
        yield tx.execute(INSERT, id="taken")

    inbox = world.inbox()
    world.on(inbox, "order", good_and_bad(insert_again))
    assert world.kinds(inbox, [order("a"), order("bad"), order("c")]) == ["done", "failed", "done"]
    assert world.effects() == ["a", "c", "taken"]
    ((error,),) = world.query("SELECT last_error FROM oncebox_pending")
    assert "unique" in error.lower()


def test_an_unknown_table_fails_the_message(world: World) -> None:
    def query_nothing(tx: Any) -> Any:
        yield tx.execute("SELECT * FROM no_such_table")

    assert "no_such_table" in str(assert_only_bad_fails(world, query_nothing).error)


@pytest.mark.only(ON_POSTGRES)
def test_a_swallowed_database_error_fails_the_message(world: World) -> None:
    """PostgreSQL has aborted the transaction, and its COMMIT would be a silent ROLLBACK."""

    def swallow(tx: Any) -> Any:
        with contextlib.suppress(Exception):
            yield (yield tx.execute("SELECT 1 / 0")).rows()

    assert_only_bad_fails(world, swallow)


@pytest.mark.only(ON_POSTGRES)
def test_a_swallowed_error_that_surfaces_late_fails_the_message(world: World) -> None:
    def swallow(tx: Any) -> Any:
        with contextlib.suppress(Exception):
            yield tx.execute("SELECT 1 / 0")

    assert_only_bad_fails(world, swallow)


def test_a_deferred_constraint_that_fails_at_commit_fails_only_its_message(world: World) -> None:
    world.execute("CREATE TABLE parents (id integer PRIMARY KEY)")
    world.execute(
        "CREATE TABLE children (parent integer REFERENCES parents (id) "
        "DEFERRABLE INITIALLY DEFERRED)"
    )

    def orphan(tx: Any) -> Any:
        yield tx.execute("INSERT INTO children (parent) VALUES (:parent)", parent=404)

    if world.name in SQLALCHEMY and not world.is_postgres:
        engine = world.database()
        event.listen(getattr(engine, "sync_engine", engine), "connect", enforce_foreign_keys)
    inbox = world.inbox()
    world.on(inbox, "order", good_and_bad(orphan))
    batch = [order(id) for id in ("a", "b", "bad", "d", "e")]
    assert world.kinds(inbox, batch) == ["done", "done", "failed", "done", "done"]
    assert world.effects() == ["a", "b", "d", "e"]
    assert world.pending() == [("bad", 1, "retrying")]


@pytest.mark.only(("psycopg", "sqlalchemy-psycopg", "django-postgres"))
def test_a_missing_privilege_at_commit_fails_only_its_message(world: World) -> None:
    """A deferred trigger of the user refuses: not a missing privilege of oncebox."""
    world.execute("CREATE TABLE vaults (id text)")
    world.execute(
        "CREATE OR REPLACE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE insufficient_privilege; END $$"
    )
    world.execute(
        "CREATE CONSTRAINT TRIGGER refuse AFTER INSERT ON vaults DEFERRABLE INITIALLY DEFERRED "
        "FOR EACH ROW EXECUTE FUNCTION refuse()"
    )

    def forbidden(tx: Any) -> Any:
        yield tx.execute("INSERT INTO vaults VALUES ('a')")

    inbox = world.inbox()
    world.on(inbox, "order", good_and_bad(forbidden))
    assert world.kinds(inbox, [order("a"), order("bad"), order("c")]) == ["done", "failed", "done"]
    world.receive(inbox, [order("d"), order("bad too")])
    assert world.drain(inbox)["done"] == 1
    assert world.effects() == ["a", "c", "d"]


# -- ending the transaction -----------------------------------------------------------------------


def test_a_transaction_word_is_refused(world: World) -> None:
    def execute(tx: Any) -> Any:
        yield tx.execute(" /* x */ End")

    assert "a handler must not execute" in str(assert_only_bad_fails(world, execute).error)


@pytest.mark.only(BOTH)
@pytest.mark.parametrize("statement", ["COMMIT", "rollback", "BEGIN", "SELECT 1; COMMIT", "ABORT"])
def test_all_transaction_words_are_refused(world: World, statement: str) -> None:
    def execute(tx: Any) -> Any:
        yield tx.execute(statement)

    assert "a handler must not execute" in str(assert_only_bad_fails(world, execute).error)


@pytest.mark.parametrize("method", ["commit", "rollback"])
def test_ending_the_drivers_transaction_fails_the_message(world: World, method: str) -> None:
    def end(tx: Any) -> Any:
        yield getattr(tx.connection, method)()

    assert_only_bad_fails(world, end)


@pytest.mark.parametrize("method", ["commit", "rollback"])
def test_a_swallowed_refusal_to_end_the_transaction_is_harmless(world: World, method: str) -> None:
    """The handler ignores the error; its work is either committed completely or not at all."""

    def end(tx: Any) -> Any:
        with contextlib.suppress(Exception):
            yield getattr(tx.connection, method)()

    inbox = world.inbox()
    world.on(inbox, "order", good_and_bad(end))
    kinds = world.kinds(inbox, [order("a"), order("bad"), order("c")])
    assert [kinds[0], kinds[2]] == ["done", "done"]
    assert world.effects() == (["a", "bad", "c"] if kinds[1] == "done" else ["a", "c"])


@pytest.mark.parametrize("word", ["COMMIT", "ROLLBACK"])
def test_transaction_words_on_the_drivers_connection_fail_the_message(
    world: World, word: str
) -> None:
    def end(tx: Any) -> Any:
        if world.name.startswith("django"):
            tx.connection.cursor().execute(word)
        elif world.name.startswith("sqlalchemy"):
            yield tx.connection.exec_driver_sql(word)
        else:
            yield tx.connection.execute(word)

    assert_only_bad_fails(world, end)


def test_a_transaction_used_after_its_handler_returned_is_refused(world: World) -> None:
    used: list[Any] = []

    def keep(payload: dict[str, Any], tx: Any) -> Any:
        yield tx.execute(INSERT, id=payload["id"])
        used.append(tx)

    inbox = world.inbox()
    world.on(inbox, "order", keep)
    assert world.kinds(inbox, [order("a")]) == ["done"]
    with pytest.raises(Exception, match="its handler has returned"):
        world.run(used[0].execute("SELECT 1")) if world.is_async else used[0].execute("SELECT 1")


@pytest.mark.only([name for name in ALL if name not in ("sqlite3", "aiosqlite")])
def test_a_message_that_commits_past_every_guard_is_a_dead_letter(world: World) -> None:
    """The claims are committed, and it is unknown how much of the work is."""

    def end(tx: Any) -> Any:
        if world.name.startswith("django"):
            tx.connection.connection.commit()
        elif world.name == "sqlalchemy-asyncpg":
            raw = yield tx.connection.get_raw_connection()
            yield raw.driver_connection.execute("COMMIT")
        elif world.is_async and world.name in SQLALCHEMY:
            raw = yield tx.connection.get_raw_connection()
            yield raw.driver_connection.commit()
        elif world.name in SQLALCHEMY:
            tx.connection.connection.driver_connection.commit()
        elif world.is_async:
            yield psycopg.AsyncCursor(tx.connection).execute("COMMIT")
        else:
            psycopg.Cursor(tx.connection).execute("COMMIT")
        yield from ()

    inbox = world.inbox()
    world.on(inbox, "order", good_and_bad(end))
    outcomes = world.process(inbox, [order("a"), order("bad"), order("c")])
    assert {outcome.reason for outcome in outcomes} == {Reason.transaction_lost}
    assert world.kinds(inbox, [order("bad")]) == ["duplicate"]
    assert len(world.query("SELECT 1 FROM oncebox_dead_letter")) == 3


# -- savepoints -----------------------------------------------------------------------------------


def test_an_error_inside_a_savepoint_can_be_caught(world: World) -> None:
    """Also in a pipeline, where without it the error would arrive after the except clause."""
    world.execute("CREATE UNIQUE INDEX once ON effects (id)")
    caught: list[str] = []

    async def asynchronous(payload: dict[str, Any], tx: Any) -> None:
        for id in ("first", "first", "second"):
            try:
                async with tx.savepoint():
                    await tx.execute(INSERT, id=id)
            except Exception:
                caught.append(id)

    def synchronous(payload: dict[str, Any], tx: Any) -> None:
        for id in ("first", "first", "second"):
            try:
                with tx.savepoint():
                    tx.execute(INSERT, id=id)
            except Exception:
                caught.append(id)

    inbox = world.inbox()
    inbox.on("order")(asynchronous if world.is_async else synchronous)
    assert world.kinds(inbox, [order("a")]) == ["done"]
    assert caught == ["first"]
    assert world.effects() == ["first", "second"]


# -- results --------------------------------------------------------------------------------------


def test_results_are_those_of_their_own_statement(world: World) -> None:
    """Although one cursor is used for many statements, and answers arrive late in a pipeline."""

    def read(payload: dict[str, Any], tx: Any) -> Any:
        for number in range(300):
            yield tx.execute("SELECT :number", number=str(number))
        held = {}
        for number in range(20):
            held[number] = yield tx.execute("SELECT :n AS n", n=f"held {number}")
        one = yield tx.execute("SELECT :n", n="one")
        assert list((yield one.one())) == ["one"]
        for number, result in held.items():
            assert [list(row) for row in (yield result.rows())] == [[f"held {number}"]]
        for number in range(3):
            yield tx.execute("INSERT INTO accounts VALUES (:name, 1)", name=f"n{number}")
        update = yield tx.execute("UPDATE accounts SET balance = 2")
        assert (yield update.rowcount) == 3
        rows = [{"id": "x"}, {"id": "y"}]
        yield tx.execute_many(INSERT, rows)

    inbox = world.inbox()
    world.on(inbox, "order", read)
    (outcome,) = world.process(inbox, [order("a")])
    assert outcome.kind is Kind.done, outcome.error
    assert world.effects() == ["x", "y"]


def test_one_wants_exactly_one_row(world: World) -> None:
    def read(payload: dict[str, Any], tx: Any) -> Any:
        yield (yield tx.execute("SELECT name FROM accounts")).one()

    inbox = world.inbox()
    world.on(inbox, "order", read)
    (outcome,) = world.process(inbox, [order("a")])
    assert "one() expects one row, the statement returned 0" in str(outcome.error)


@pytest.mark.only(ORM_FREE)
def test_without_sqlalchemy_there_is_no_session(world: World) -> None:
    def use(payload: dict[str, Any], tx: Any) -> None:
        tx.session  # noqa: B018

    inbox = world.inbox()
    world.on(inbox, "order", use)
    (outcome,) = world.process(inbox, [order("a")])
    assert "tx.session needs SQLAlchemy" in str(outcome.error)


# -- settings that would outlive the handler ------------------------------------------------------


@pytest.mark.only(("psycopg", "psycopg-unpiped", "sqlalchemy-psycopg", "django-postgres"))
def test_a_setting_that_hides_our_tables_fails_only_its_message(world: World) -> None:
    """It survives the handler, and our own statements fail: which is still that message's fault."""

    def hide(tx: Any) -> Any:
        yield tx.execute("SET LOCAL search_path TO nowhere")

    inbox = world.inbox()
    world.on(inbox, "order", good_and_bad(hide))
    assert world.kinds(inbox, [order("a"), order("bad"), order("c")])[1] == "failed"
    assert world.kinds(inbox, [order("d")]) == ["done"]


@pytest.mark.only(("sqlalchemy-psycopg", "sqlalchemy-asyncpg"))
@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_keys_are_refused_above_read_committed(world: World, level: str) -> None:
    world.use_database(world.database().execution_options(isolation_level=level))
    inbox = world.inbox()
    world.on(inbox, "order", write_effect)
    with pytest.raises(ConfigurationError, match="READ COMMITTED"):
        world.process(inbox, [order("a", key="k")])
    assert world.kinds(inbox, [order("a"), order("b"), order("a")]) == ["done", "done", "duplicate"]


# -- a failing batch ------------------------------------------------------------------------------


def test_only_the_bad_message_of_five_hundred_fails(world: World) -> None:
    def divide(tx: Any) -> Any:
        yield tx.execute("INSERT INTO nowhere VALUES (1)")

    inbox = world.inbox()
    world.on(inbox, "order", good_and_bad(divide))
    batch = [order("bad" if n == 321 else f"m{n}", key=str(n)) for n in range(500)]
    kinds = world.kinds(inbox, batch)
    assert kinds.count("done") == 499
    assert kinds[321] == "failed"
    assert world.pending() == [("bad", 1, "retrying")]
    assert len(world.effects()) == 499


def test_a_failed_message_blocks_its_followers_in_order(world: World) -> None:
    def refuse(tx: Any) -> Any:
        raise ValueError
        yield

    inbox = world.inbox()
    world.on(inbox, "order", good_and_bad(refuse))
    keyed = [order(f"{'bad' if n == 2 else 'm'}{n}", key="k") for n in range(8)]
    others = [order(f"o{n}", key=f"o{n}") for n in range(8)]
    batch = [d for pair in zip(keyed, others, strict=True) for d in pair]
    world.process(inbox, batch)
    assert world.effects() == sorted(["m0", "m1"] + [f"o{n}" for n in range(8)])
    assert world.pending() == [("bad2", 1, "retrying")] + [
        (f"m{n}", 0, "blocked") for n in range(3, 8)
    ]


def test_a_batch_full_of_bad_messages_fails_message_by_message(world: World) -> None:
    def refuse(tx: Any) -> Any:
        yield tx.execute("INSERT INTO nowhere VALUES (1)")

    inbox = world.inbox()
    world.on(inbox, "order", good_and_bad(refuse))
    assert world.kinds(inbox, [order(f"bad{n}") for n in range(20)]) == ["failed"] * 20
    assert world.effects() == []
    attempts = world.query("SELECT count(*), count(DISTINCT message_id) FROM oncebox_attempt")
    assert attempts == [(20, 20)]


def test_sequence_numbers_follow_arrival_and_not_ids(world: World) -> None:
    inbox = world.inbox()
    world.on(inbox, "order", write_effect)
    world.process(inbox, [order(id) for id in ("c", "a", "b")])
    rows = world.query("SELECT message_id FROM oncebox_inbox ORDER BY seq")
    assert rows == [("c",), ("a",), ("b",)]


@pytest.mark.only(("sqlite3", "psycopg", "aiosqlite"))
@pytest.mark.parametrize(
    ("use", "help"),
    [
        (lambda tx, result: tx.commit(), "oncebox commits after the handler returns; to roll back"),
        (lambda tx, result: tx.rollback(), "oncebox commits after the handler returns; to roll"),
        (lambda tx, result: tx.fetchone(), r"use \.rows\(\) or \.one\(\)"),
        (lambda tx, result: result.fetchone(), r"use \.rows\(\) or \.one\(\)"),
        (lambda tx, result: list(result), r"not iterable: use \.rows\(\) or \.one\(\)"),
    ],
)
def test_a_method_of_drivers_names_what_to_use(world: World, use: Any, help: str) -> None:
    def handler(payload: dict[str, Any], tx: Any) -> Any:
        result = yield tx.execute("SELECT 1")
        with pytest.raises((AttributeError, OnceboxError), match=help):
            use(tx, result)
        with pytest.raises(AttributeError, match="object has no attribute 'other'"):
            tx.other()
        assert not hasattr(tx, "commit")

    inbox = world.inbox()
    world.on(inbox, "order", handler)
    assert world.kinds(inbox, [order("a")]) == ["done"]
