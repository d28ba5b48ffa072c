"""Handlers that use an ORM: its session and its models are part of the claim's transaction."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from sqlalchemy import insert, select
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from oncebox import Kind, SqlAlchemy
from oncebox.errors import ConfigurationError
from support.worlds import SQLALCHEMY, World, order

DJANGO = ("django-postgres", "django-sqlite")


class Base(DeclarativeBase):
    pass


class Effect(Base):
    __tablename__ = "effects"
    id: Mapped[str] = mapped_column(primary_key=True)
    body: Mapped[str]


class Account(Base):
    __tablename__ = "accounts"
    name: Mapped[str] = mapped_column(primary_key=True)
    balance: Mapped[int]


def orm(culprit: Any) -> Any:
    """A handler that adds an object, and does something bad for messages that are bad."""

    def handler(payload: dict[str, Any], tx: Any) -> Any:
        tx.session.add(Effect(id=payload["id"], body=""))
        if payload["id"].startswith("bad"):
            yield from culprit(tx.session)

    return handler


def batch() -> list[Any]:
    return [order("a", key="1"), order("bad", key="2"), order("c", key="3"), order("d", key="4")]


# -- SQLAlchemy -----------------------------------------------------------------------------------


@pytest.mark.only(SQLALCHEMY)
def test_objects_of_the_session_are_flushed_and_committed(world: World) -> None:
    world.execute("INSERT INTO accounts VALUES ('alice', 1)")

    def deposit(payload: dict[str, Any], tx: Any) -> Any:
        account = yield tx.session.get(Account, "alice")
        account.balance += 10
        found = yield tx.session.execute(select(Account.balance))
        assert found.scalar_one() % 10 == 1

    inbox = world.inbox()
    world.on(inbox, "order", deposit)
    assert world.kinds(inbox, [order("a"), order("b"), order("a")]).count("done") == 2
    assert world.query("SELECT balance FROM accounts") == [(21,)]


@pytest.mark.only(SQLALCHEMY)
@pytest.mark.parametrize("ending", ["rollback", "close", "rollback and write", "retry loop"])
def test_a_handler_that_invalidates_its_session_fails_only_its_message(
    world: World, ending: str
) -> None:
    def end(session: Any) -> Any:
        yield session.flush()
        if ending == "close":
            yield session.close()
            raise ValueError
        for _ in range(3 if ending == "retry loop" else 1):
            with contextlib.suppress(Exception):
                yield session.rollback()
                if ending != "rollback":
                    session.add(Effect(id="leaked", body=""))
                    yield session.commit()

    inbox = world.inbox()
    world.on(inbox, "order", orm(end))
    assert world.kinds(inbox, batch()) == ["done", "failed", "done", "done"]
    assert world.effects() == ["a", "c", "d"]


@pytest.mark.only(SQLALCHEMY)
def test_a_commit_of_the_session_is_not_propagated(world: World) -> None:
    """It flushes; the work is committed with the claim, or not at all."""

    def commit_then_fail(session: Any) -> Any:
        yield session.commit()
        raise ValueError

    inbox = world.inbox()
    world.on(inbox, "order", orm(commit_then_fail))
    assert world.kinds(inbox, batch()) == ["done", "failed", "done", "done"]
    assert world.effects() == ["a", "c", "d"]


@pytest.mark.only(SQLALCHEMY)
@pytest.mark.parametrize("flush_once", [False, True])
def test_a_failed_flush_fails_only_its_message(world: World, flush_once: bool) -> None:
    world.execute("CREATE UNIQUE INDEX once ON effects (body) WHERE body <> ''")
    world.execute("INSERT INTO effects VALUES ('x', 'taken')")

    def collide(session: Any) -> Any:
        session.add(Effect(id="y", body="taken"))
        yield

    world.use_database(SqlAlchemy(world.database(), flush_once=flush_once))
    inbox = world.inbox()
    world.on(inbox, "order", orm(collide))
    assert world.kinds(inbox, batch()) == ["done", "failed", "done", "done"]
    assert world.effects() == ["a", "c", "d", "x"]


@pytest.mark.only(SQLALCHEMY)
@pytest.mark.parametrize("method", ["rollback", "close", "expunge_all"])
def test_with_flush_once_a_failed_message_keeps_the_changes_of_others(
    world: World, method: str
) -> None:
    def discard(session: Any) -> Any:
        with contextlib.suppress(Exception):
            yield getattr(session, method)()
        yield from ()

    world.use_database(SqlAlchemy(world.database(), flush_once=True))
    inbox = world.inbox()
    world.on(inbox, "order", orm(discard))
    kinds = world.kinds(inbox, batch())
    assert kinds[0] == kinds[2] == kinds[3] == "done"
    assert {"a", "c", "d"} <= set(world.effects())
    assert ("bad" in world.effects()) == (kinds[1] == "done")


@pytest.mark.only(SQLALCHEMY)
def test_with_flush_once_the_objects_of_a_batch_are_written_together(world: World) -> None:
    world.execute("INSERT INTO accounts VALUES ('alice', 0)")

    def deposit(payload: dict[str, Any], tx: Any) -> Any:
        account = yield tx.session.get(Account, "alice")
        account.balance += 1

    world.use_database(SqlAlchemy(world.database(), flush_once=True))
    inbox = world.inbox()
    world.on(inbox, "order", deposit)
    assert world.kinds(inbox, [order(str(n)) for n in range(10)]) == ["done"] * 10
    assert world.query("SELECT balance FROM accounts") == [(10,)]


@pytest.mark.only(SQLALCHEMY)
def test_savepoints_of_the_session_work(world: World) -> None:
    world.execute("CREATE UNIQUE INDEX once ON effects (id)")

    async def asynchronous(payload: dict[str, Any], tx: Any) -> None:
        for id in ("x", "x", "y"):
            with contextlib.suppress(Exception):
                async with tx.session.begin_nested():
                    await tx.session.execute(insert(Effect).values(id=id, body=""))

    def synchronous(payload: dict[str, Any], tx: Any) -> None:
        for id in ("x", "x", "y"):
            with contextlib.suppress(Exception), tx.session.begin_nested():
                tx.session.execute(insert(Effect).values(id=id, body=""))

    inbox = world.inbox()
    inbox.on("order")(asynchronous if world.is_async else synchronous)
    (outcome,) = world.process(inbox, [order("a")])
    assert outcome.kind is Kind.done, outcome.error
    assert world.effects() == ["x", "y"]


# -- Django ---------------------------------------------------------------------------------------


def alias(world: World) -> str:
    return str(world.database().alias)


@pytest.mark.only(DJANGO)
def test_models_just_work(world: World) -> None:
    inbox = world.inbox()
    from support.django_app import models

    @inbox.on("order")
    def create(payload: dict[str, Any]) -> None:
        models.Effect.objects.using(alias(world)).create(id=payload["id"], body="")
        if payload["id"] == "bad":
            raise ValueError

    assert world.kinds(inbox, batch()) == ["done", "failed", "done", "done"]
    assert world.effects() == ["a", "c", "d"]


@pytest.mark.only(DJANGO)
@pytest.mark.parametrize("how", ["outside", "inside", "set_rollback", "nested and caught"])
def test_errors_that_django_would_roll_back_silently_fail_the_message(
    world: World, how: str
) -> None:
    world.execute("CREATE UNIQUE INDEX once ON effects (id)")
    inbox = world.inbox()
    from django.db import transaction

    from support.django_app import models

    effects = models.Effect.objects.using(alias(world))

    @inbox.on("order")
    def create(payload: dict[str, Any]) -> None:
        effects.create(id=payload["id"], body="")
        if payload["id"] != "bad":
            return
        if how == "set_rollback":
            transaction.set_rollback(True, using=alias(world))
        elif how == "nested and caught":
            with contextlib.suppress(Exception), transaction.atomic(using=alias(world)):
                effects.create(id="bad", body="")
        elif how == "inside":
            with contextlib.suppress(Exception), transaction.atomic(alias(world), savepoint=False):
                effects.create(id="bad", body="")
        else:
            with contextlib.suppress(Exception):
                effects.create(id="bad", body="")

    fine = how == "nested and caught"  # there Django has a savepoint of its own
    assert world.kinds(inbox, batch()) == ["done", "done" if fine else "failed", "done", "done"]
    assert world.effects() == (["a", "bad", "c", "d"] if fine else ["a", "c", "d"])


@pytest.mark.only(DJANGO)
def test_on_commit_runs_once_per_done_message_and_its_errors_change_nothing(world: World) -> None:
    inbox = world.inbox()
    from django.db import transaction

    called: list[str] = []

    def note(id: str) -> None:
        called.append(id)
        raise RuntimeError("too late to matter")

    @inbox.on("order")
    def register(payload: dict[str, Any]) -> None:
        transaction.on_commit(lambda: note(payload["id"]), using=alias(world))
        if payload["id"] == "bad":
            raise ValueError

    assert world.kinds(inbox, batch()) == ["done", "failed", "done", "done"]
    assert sorted(called) == ["a", "c", "d"]


@pytest.mark.only(DJANGO)
def test_process_inside_an_atomic_block_is_refused(world: World) -> None:
    """There the commit would not be one, and the outcomes would lie."""
    inbox = world.inbox()
    from django.db import transaction

    @inbox.on("order")
    def nothing(payload: dict[str, Any]) -> None: ...

    world.kinds(inbox, [order("a")])
    with transaction.atomic(using=alias(world)):
        with pytest.raises(ConfigurationError, match="cannot run inside"):
            inbox.process([order("b")])
