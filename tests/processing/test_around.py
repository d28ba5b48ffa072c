"""Hooks around handlers: inside the savepoint, in order, and their errors are the message's."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from contextvars import ContextVar
from typing import Any

import pytest

from oncebox import AsyncTransaction, Inbox, Reject, Transaction
from oncebox.errors import HandlerError
from support.worlds import World, order, write_effect

Steps = Callable[[Any], Iterator[None]]

tenant: ContextVar[str] = ContextVar("tenant")


def register(world: World, inbox: Inbox, hook: Steps) -> None:
    """Register a hook, sync or async as the world is."""
    if not world.is_async:
        inbox.around(hook)
        return

    @inbox.around
    async def asynchronous(tx: AsyncTransaction) -> AsyncIterator[None]:
        steps: Any = hook(tx)
        next(steps)
        try:
            yield
        except Exception as error:
            with suppress(StopIteration):  # the hook suppresses the error
                steps.throw(error)
        else:
            assert next(steps, "ended") == "ended"


def fail_if_bad(payload: dict[str, Any], tx: Any) -> Iterator[Any]:
    yield from write_effect(payload, tx)
    if payload["id"].startswith("bad"):
        raise ValueError("bad")


def test_hooks_run_around_each_handler_in_the_order_of_registration(world: World) -> None:
    inbox, log = world.inbox(), []

    def outer(tx: Any) -> Iterator[None]:
        log.append(f"outer {tx.message.id}")
        yield
        log.append("outer ends")

    def inner(tx: Any) -> Iterator[None]:
        log.append(f"inner {tx.message.id}")
        yield
        log.append("inner ends")

    register(world, inbox, outer)
    register(world, inbox, inner)
    world.on(inbox, "order", lambda payload, tx: log.append("handler"))
    assert world.kinds(inbox, [order("a"), order("a")]) == ["done", "duplicate"]
    assert log == ["outer a", "inner a", "handler", "inner ends", "outer ends"]


def test_a_hook_provides_the_context_of_a_handler(world: World) -> None:
    inbox, seen = world.inbox(), []

    def set_tenant(tx: Any) -> Iterator[None]:
        token = tenant.set(tx.message.key)
        try:
            yield
        finally:
            tenant.reset(token)

    register(world, inbox, set_tenant)
    world.on(inbox, "order", lambda payload, tx: seen.append(tenant.get()))
    world.process(inbox, [order("a", key="north"), order("b", key="south")])
    assert sorted(seen) == ["north", "south"]


def test_a_hook_sees_the_error_of_its_handler_and_may_replace_it(world: World) -> None:
    inbox, seen = world.inbox(), []

    def reject(tx: Any) -> Iterator[None]:
        try:
            yield
        except ValueError as error:
            seen.append((tx.message.id, str(error)))
            raise Reject("it will never work") from error

    register(world, inbox, reject)
    world.on(inbox, "order", fail_if_bad)
    assert world.kinds(inbox, [order("good"), order("bad")]) == ["done", "dead"]
    assert set(seen) == {("bad", "bad")}
    assert world.effects() == ["good"]


def test_a_hook_that_suppresses_an_error_does_not_make_the_message_done(world: World) -> None:
    inbox = world.inbox()

    def suppress(tx: Any) -> Iterator[None]:
        try:
            yield
        except ValueError:
            return

    register(world, inbox, suppress)
    world.on(inbox, "order", fail_if_bad)
    good, bad = world.process(inbox, [order("good"), order("bad")])
    assert (good.kind.value, bad.kind.value) == ("done", "failed")
    assert "suppressed the error" in str(bad.error)
    assert world.effects() == ["good"]


@pytest.mark.parametrize("fails", ["before", "after"])
def test_an_error_of_a_hook_fails_only_its_message_and_undoes_its_work(
    world: World, fails: str
) -> None:
    inbox = world.inbox()

    def hook(tx: Any) -> Iterator[None]:
        if tx.message.id == "bad" and fails == "before":
            raise KeyError("hook")
        yield
        if tx.message.id == "bad":
            raise KeyError("hook")

    register(world, inbox, hook)
    world.on(inbox, "order", write_effect)
    assert world.kinds(inbox, [order("good"), order("bad")]) == ["done", "failed"]
    assert world.effects() == ["good"]


@pytest.mark.only(("sqlite3", "psycopg", "django-sqlite", "sqlalchemy-psycopg"))
def test_the_writes_of_a_hook_are_committed_with_the_work_or_undone_with_it(world: World) -> None:
    inbox = world.inbox()

    @inbox.around
    def audit(tx: Transaction) -> Iterator[None]:
        tx.execute("INSERT INTO effects (id, body) VALUES (:id, '')", id=f"by {tx.message.id}")
        yield

    world.on(inbox, "order", fail_if_bad)
    assert world.kinds(inbox, [order("good"), order("bad")]) == ["done", "failed"]
    assert world.effects() == ["by good", "good"]


def test_a_hook_of_a_batch_handler_gets_all_its_messages(world: World) -> None:
    inbox, seen = world.inbox(), []

    def hook(tx: Any) -> Iterator[None]:
        seen.append([message.id for message in tx.messages])
        yield

    register(world, inbox, hook)
    world.on(inbox, "order", lambda payloads: None, batch=True)
    assert world.kinds(inbox, [order("a"), order("b")]) == ["done", "done"]
    assert seen == [["a", "b"]]


def test_hooks_run_around_stored_messages_too(world: World) -> None:
    inbox, seen = world.inbox(), []

    def hook(tx: Any) -> Iterator[None]:
        seen.append(tx.message.id)
        yield

    register(world, inbox, hook)
    world.on(inbox, "order", write_effect)
    world.receive(inbox, [order("a"), order("b", redelivered=True)])
    assert world.drain(inbox) == {"done": 2}
    assert sorted(seen) == ["a", "b"]


@pytest.mark.only(("sqlite3", "aiosqlite"))
def test_a_hook_does_not_suppress_an_interrupt(world: World) -> None:
    inbox = world.inbox()

    def suppress_all(tx: Any) -> Iterator[None]:
        try:
            yield
        except BaseException:
            return

    def interrupt(payload: dict[str, Any], tx: Any) -> None:
        raise KeyboardInterrupt

    if world.is_async:

        @inbox.around
        async def asynchronous(tx: AsyncTransaction) -> AsyncIterator[None]:
            with suppress(BaseException):
                yield
    else:
        inbox.around(suppress_all)
    world.on(inbox, "order", interrupt)
    with pytest.raises(KeyboardInterrupt):
        world.process(inbox, [order("a")])
    assert world.query("SELECT count(*) FROM oncebox_inbox") == [(0,)]


def plain(tx: Any) -> None:
    """Forgets to yield."""


def no_argument() -> Iterator[None]:
    yield


async def asynchronous(tx: Any) -> AsyncIterator[None]:
    yield


@pytest.mark.parametrize(
    ("hook", "says"),
    [
        (plain, "plain must be a generator function: write `yield` where the handler runs"),
        (no_argument, r"no_argument must take one argument, \(tx\)"),
        (asynchronous, "hook asynchronous is async, but handler write_effect is sync"),
    ],
)
def test_a_function_that_cannot_be_a_hook_is_refused(hook: Any, says: str) -> None:
    inbox = Inbox("billing", "sqlite:///billing.db")

    @inbox.on("order")
    def handler(payload: bytes, tx: Transaction) -> None: ...

    handler.__qualname__ = "write_effect"
    with pytest.raises(HandlerError, match=says.replace("write_effect", ".*handler")):
        inbox.around(hook)
