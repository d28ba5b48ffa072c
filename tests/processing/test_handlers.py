"""Which functions can be handlers."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from oncebox import Inbox
from oncebox.errors import HandlerError
from oncebox.model.ordering import Ordering
from oncebox.model.retry import Retry
from support.handlers import (
    Invoice,
    decoded,
    handle,
    handle_async,
    make,
    message,
    take_invoice,
    takes_tx,
)


def test_a_handler_takes_the_payload_and_optionally_the_transaction() -> None:
    assert not takes_tx(lambda payload: None)
    assert not takes_tx(lambda payload, *, verbose=False: None)
    assert not takes_tx(lambda payload, limit=3: None)
    assert not takes_tx(lambda payload, *more, **options: None)
    assert takes_tx(lambda payload, tx: None)
    assert takes_tx(lambda payload, tx=None: None)
    assert takes_tx(lambda payload, anything: None)
    assert takes_tx(lambda payload, tx, limit=3: None)


@pytest.mark.parametrize(
    "function",
    [
        lambda: None,
        lambda *payloads: None,
        lambda **options: None,
        lambda a, b, c: None,
        lambda payload, *, tx: None,
        lambda payload=None: None,
        lambda payload, other, tx=None: None,
        lambda payload, limit=3, tx=None: None,
    ],
    ids=["none", "star", "keywords", "three", "keyword-only", "optional", "3-with-tx", "tx-third"],
)
def test_a_function_with_another_signature_is_refused(function: Callable[..., Any]) -> None:
    with pytest.raises(HandlerError, match=r"must take \(payload\) or \(payload, tx\)"):
        make().add(function, "t", 1)


def test_the_error_names_the_function() -> None:
    def create_invoice() -> None: ...

    with pytest.raises(HandlerError, match="create_invoice must take"):
        make().add(create_invoice, "t", 1)


@pytest.mark.parametrize("thing", [42, "handler", dict])
def test_an_object_that_is_not_a_function_is_refused(thing: Any) -> None:
    with pytest.raises(HandlerError, match="is not a function"):
        make().add(thing, "t", 1)


def yielding(payload: Any) -> Iterator[int]:
    yield 1


async def yielding_async(payload: Any) -> AsyncIterator[int]:
    yield 1


class Yielding:
    def __call__(self, payload: Any) -> Iterator[int]:
        yield 1


@pytest.mark.parametrize(
    "function",
    [yielding, yielding_async, functools.partial(yielding), Yielding().__call__, Yielding()],
    ids=["sync", "async", "partial", "method", "object"],
)
def test_a_generator_is_refused_because_it_would_never_run(function: Any) -> None:
    with pytest.raises(HandlerError, match="is a generator and would never run"):
        make().add(function, "t", 1)


class AsyncCallable:
    async def __call__(self, payload: dict[str, Any]) -> None: ...

    async def handle(self, payload: dict[str, Any]) -> None: ...


@pytest.mark.parametrize(
    "function",
    [handle_async, functools.partial(handle_async), AsyncCallable(), AsyncCallable().handle],
    ids=["function", "partial", "object", "method"],
)
def test_sync_and_async_handlers_together_are_refused(function: Any) -> None:
    registry = make()
    registry.add(handle, "a", 1)
    with pytest.raises(
        HandlerError, match="is async, but handler handle is sync: all of an inbox must be sync"
    ):
        registry.add(function, "b", 1)
    assert len(registry.types) == 1


def test_the_database_may_decide_first_between_sync_and_async() -> None:
    inbox = Inbox("billing", "sqlite+aiosqlite://")
    inbox.on("a")(handle_async)
    with pytest.raises(HandlerError, match="handle is sync, but the database is async"):
        inbox.on("b")(handle)


def test_a_refused_handler_does_not_decide_between_sync_and_async() -> None:
    async def wrong() -> None: ...

    registry = make()
    with pytest.raises(HandlerError):
        registry.add(wrong, "t", 1)
    registry.add(handle, "t", 1)
    assert registry.is_async is False


def test_a_second_handler_for_the_same_messages_is_refused() -> None:
    registry = make()
    registry.add(handle, "t", 1)
    registry.add(handle, "t", 2)
    with pytest.raises(
        HandlerError, match=r"'t' version 1 already has the handler handle: .*never"
    ):
        registry.add(lambda payload: None, "t", 1)


@pytest.mark.parametrize("bad", [0, -1, "1", 1.0, True, None])
def test_a_version_is_an_integer_from_one(bad: Any) -> None:
    with pytest.raises(
        HandlerError, match=f"handle: a version must be an int of at least 1, got {bad!r}"
    ):
        make().add(handle, "t", bad)
    with pytest.raises(HandlerError, match="a version must be an int of at least 1"):
        make().add_upcaster(handle, "t", bad)


@pytest.mark.parametrize("bad", ["", None, 5])
def test_a_type_is_a_text(bad: Any) -> None:
    with pytest.raises(HandlerError, match="a message type must be a non-empty str"):
        make().add(handle, bad, 1)
    with pytest.raises(HandlerError, match="a message type must be a non-empty str"):
        make().ignore(bad)


def test_policies_can_be_overridden_per_handler() -> None:
    registry = make()
    registry.add(handle, "a", 1)
    registry.add(handle, "b", 1, retry=Retry(max_attempts=1), ordering=Ordering.skip_dead)
    usual, special = (registry.route(message(type_)).handler for type_ in "ab")
    assert (usual.retry.max_attempts, usual.ordering) == (5, Ordering.strict)
    assert (special.retry.max_attempts, special.ordering) == (1, Ordering.skip_dead)


def take_invoice_and_tx(invoice: Invoice, tx: DoesNotExist) -> None: ...  # type: ignore[name-defined]  # noqa: F821


class Billing:
    def __call__(self, invoice: Invoice) -> None: ...

    def take(self, invoice: Invoice) -> None: ...

    @classmethod
    def take_as_class(cls, invoice: Invoice) -> None: ...


def with_limit(limit: int, invoice: Invoice) -> None: ...


def logged(function: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(function)
    def wrapper(*args: Any) -> None:
        function(*args)

    return wrapper


@pytest.mark.parametrize(
    "function",
    [
        take_invoice,
        take_invoice_and_tx,
        logged(take_invoice),
        Billing().take,
        Billing.take_as_class,
        Billing(),
        functools.partial(with_limit, 3),
        functools.partial(take_invoice),
    ],
    ids=[
        "function",
        "with tx",
        "wrapped",
        "method",
        "class method",
        "object",
        "partial",
        "empty partial",
    ],
)
def test_a_postponed_annotation_is_resolved_for_every_callable(function: Any) -> None:
    assert decoded(function) == Invoice("i-1")


def test_an_annotation_that_was_not_postponed_is_taken_as_it_is() -> None:
    def handler(payload) -> None: ...  # type: ignore[no-untyped-def]

    handler.__annotations__["payload"] = Invoice
    assert decoded(handler) == Invoice("i-1")


def test_an_unannotated_payload_is_plain_json() -> None:
    assert decoded(lambda payload: None) == {"id": "i-1"}


def test_a_local_class_of_the_closure_is_resolved() -> None:
    @dataclass
    class Local:
        id: str

    def handler(payload: Local) -> None:
        Local("used here")

    assert decoded(handler) == Local("i-1")


def test_a_handler_that_refers_to_itself_is_resolved() -> None:
    registry = make()

    def register(function: Callable[..., None]) -> Callable[..., None]:
        registry.add(function, "t", 1)
        return function

    @register
    def handler(invoice: Invoice) -> None:
        handler(invoice)

    assert registry.route(message()).decode(message()) == Invoice("i-1")


def test_a_local_class_that_cannot_be_resolved_is_refused_with_advice() -> None:
    @dataclass
    class Local:
        id: str

    def handler(payload: Local) -> None: ...

    with pytest.raises(HandlerError, match=r"'Local' cannot be resolved .*at module level"):
        make().add(handler, "t", 1)


def test_an_annotation_that_means_nothing_is_refused() -> None:
    def handler(payload: Nothing) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(HandlerError, match="'Nothing' cannot be resolved"):
        make().add(handler, "t", 1)


def test_an_annotation_that_is_not_a_type_is_refused() -> None:
    def handler(payload: 5) -> None: ...  # type: ignore[valid-type]

    with pytest.raises(HandlerError, match="cannot be decoded into 5"):
        make().add(handler, "t", 1)


def test_a_batch_handlers_payloads_are_the_items_of_its_list() -> None:
    def typed(invoices: list[Invoice]) -> None: ...

    assert decoded(typed, batch=True) == Invoice("i-1")
    assert decoded(lambda payloads, tx: None, batch=True) == {"id": "i-1"}


def test_a_batch_handler_without_a_list_is_refused() -> None:
    def bare(invoices: list) -> None: ...  # type: ignore[type-arg]

    def single(invoice: Invoice) -> None: ...

    def other(invoices: tuple[Invoice, ...]) -> None: ...

    for function in (bare, single, other):
        with pytest.raises(HandlerError, match=r"must take list\[\.\.\.\]"):
            make().add(function, "t", 1, batch=True)
