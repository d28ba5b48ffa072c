"""psycopg itself: what we send it, and how often we wait for it."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import Any

import psycopg
import psycopg_pool
import pytest
from psycopg.adapt import Dumper
from psycopg.pq import Format

from oncebox import Inbox
from support.worlds import World, order

INSERT = "INSERT INTO effects (id, body) SELECT unnest(:ids::text[]), ''"


@pytest.mark.only(("psycopg", "psycopg-async", "sqlalchemy-psycopg", "django-postgres"))
@pytest.mark.parametrize(
    ("type", "values"),
    [
        ("text", ["a", "", 'it"s', "\\", "{,}", "NULL", "x" * 255, "x" * 300]),
        ("text", ["a", "ä", "\u20ac", None]),
        ("text", []),
        ("text", None),
        ("smallint", [0, -1, 2**15 - 1, -(2**15)]),
        ("integer", [0, 2**31 - 1, -(2**31)]),
        ("bigint", [0, 2**63 - 1, -(2**63)]),
        ("bigint", [1, None]),
    ],
)
def test_arrays_arrive_as_they_were(world: World, type: str, values: list[Any] | None) -> None:
    """They are packed by us where they are simple, and by psycopg where they are not."""
    found: list[Any] = []

    def look(_: Any, tx: Any) -> Generator[Any, Any, Any]:
        sql = f"SELECT :values::{type}[], :again::{type}[]"
        found.extend((yield (yield tx.execute(sql, values=values, again=values)).rows()))

    inbox = world.inbox()
    world.on(inbox, "order", look)
    assert world.kinds(inbox, [order("a")]) == ["done"]
    assert [list(row) for row in found] == [[values, values]]


@pytest.mark.only(("psycopg",))
def test_arrays_arrive_unchanged_in_another_client_encoding(world: World) -> None:
    world.inbox()
    with psycopg_pool.ConnectionPool(world.url, kwargs={"client_encoding": "latin1"}) as pool:
        inbox = Inbox("billing", pool)
        inbox.on("order")(lambda payload, tx: insert(tx, [payload["id"], "ü", "a"]))
        assert [outcome.kind for outcome in inbox.process([order("ö")])] == ["done"]
        assert [outcome.kind for outcome in inbox.process([order("ö")])] == ["duplicate"]
        inbox.close()
    assert world.effects() == ["a", "ö", "ü"]


class Reprs(Dumper):
    """A dumper of a user, for all types that psycopg does not know."""

    oid = 25
    format = Format.BINARY

    def dump(self, obj: object) -> bytes:
        return repr(obj).encode()


@pytest.mark.only(("psycopg",))
def test_arrays_arrive_unchanged_through_a_pool_that_dumps_other_objects(world: World) -> None:
    def configure(connection: psycopg.Connection) -> None:
        connection.adapters.register_dumper(object, Reprs)

    world.inbox()
    with psycopg_pool.ConnectionPool(world.url, configure=configure) as pool:
        inbox = Inbox("billing", pool)
        inbox.on("order")(lambda payload, tx: insert(tx, [payload["id"]]))
        assert [outcome.kind for outcome in inbox.process([order("a")])] == ["done"]
        inbox.close()
    assert world.effects() == ["a"]


@pytest.mark.only(("psycopg",))
def test_the_callers_connection_sends_arrays_as_before(world: World) -> None:
    """Also where psycopg chooses by the type of a column, and not by that of a value."""
    inbox = world.inbox()
    world.execute("CREATE TABLE tags (tags text[], numbers bigint[])")
    with psycopg.connect(world.url) as connection:
        assert inbox.claim(connection, "m")
        with connection.cursor().copy("COPY tags FROM STDIN (FORMAT BINARY)") as copy:
            copy.set_types(["text[]", "int8[]"])
            copy.write_row([["a", "b"], [1, 2]])
    assert world.query("SELECT * FROM tags") == [(["a", "b"], [1, 2])]


@pytest.mark.only(("psycopg", "psycopg-unpiped"))
def test_a_server_side_cursor_is_refused_in_a_pipeline(world: World) -> None:
    def look(_: Any, tx: Any) -> None:
        with tx.connection.cursor("name") as cursor:
            cursor.execute("SELECT generate_series(1, 3)")
            assert cursor.fetchall() == [(1,), (2,), (3,)]

    inbox = world.inbox()
    inbox.on("order")(look)
    (outcome,) = inbox.process([order("a")])
    if world.name == "psycopg":
        assert isinstance(outcome.error, psycopg.NotSupportedError)
        assert "pipeline=False" in str(outcome.error)
    else:
        assert outcome.kind == "done"


def insert(tx: Any, ids: list[str]) -> None:
    tx.execute(INSERT, ids=ids)


@pytest.mark.only(("psycopg",))
def test_a_unit_of_work_waits_for_the_server_three_times(world: World, tmp_path: Path) -> None:
    """To know what is new, whether the handlers' statements went well, and that it is committed."""
    world.inbox()
    with psycopg_pool.ConnectionPool(world.url, min_size=1, max_size=1) as pool:
        inbox = Inbox("billing", pool)
        inbox.on("order")(lambda payload, tx: insert(tx, [payload["id"]]))
        inbox.process([order("first")])

        def waits(work: Any) -> int:
            with (tmp_path / "trace").open("wb") as trace:
                with pool.connection() as connection:
                    connection.pgconn.trace(trace.fileno())
                work()
                with pool.connection() as connection:
                    connection.pgconn.untrace()
            return (tmp_path / "trace").read_text().count("ReadyForQuery")

        assert waits(lambda: None) == 0
        assert waits(lambda: inbox.process([order(f"{n}", key="k") for n in range(20)])) == 3
        assert waits(lambda: inbox.receive([order(f"{n}") for n in range(20, 40)])) == 2
        inbox.close()
    assert len(world.effects()) == 21


@pytest.mark.only(("psycopg",))
def test_reading_does_not_deallocate_prepared_statements_of_psycopg(world: World) -> None:
    """Workers run read-only statements once a second."""
    world.inbox()
    with psycopg_pool.ConnectionPool(world.url, min_size=1, max_size=1) as pool:
        inbox = Inbox("billing", pool)
        inbox.on("order")(lambda payload, tx: insert(tx, [payload["id"]]))
        for n in range(10):
            inbox.process([order(f"{n}")])
        inbox.status()
        with pool.connection() as connection:
            prepared = connection.execute("SELECT statement FROM pg_prepared_statements")
            assert any("INSERT INTO effects" in text for (text,) in prepared)
        inbox.close()
