"""Which functions can be handlers, and which one a message goes to."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from oncebox.errors import (
    HandlerError,
    PayloadTooLarge,
    Undecodable,
    UnknownType,
    UnknownVersion,
)
from oncebox.handlers import Registry
from oncebox.message import Message
from oncebox.ordering import Order
from oncebox.retry import Retry


@dataclass
class Invoice:
    id: str
    total: int = 0


def make(*, payload_limit: int = 1000, ignore_unknown: bool = False) -> Registry:
    return Registry(
        retry=Retry(),
        order=Order.park,
        payload_limit=payload_limit,
        ignore_unknown=ignore_unknown,
    )


def message(type_: str = "t", version: int = 1, payload: bytes = b'{"id": "i-1"}') -> Message:
    return Message("1", payload, type=type_, version=version)


def handle(payload: dict[str, Any]) -> None: ...


async def handle_async(payload: dict[str, Any]) -> None: ...


def decoded(function: Callable[..., Any], *, batch: bool = False) -> Any:
    """What this function would get for a message."""
    registry = make()
    registry.add(function, "t", 1, batch=batch)
    return registry.route(message()).decode(message())


def takes_tx(function: Callable[..., Any]) -> bool:
    registry = make()
    registry.add(function, "t", 1)
    return registry.route(message()).handler.takes_tx


# -- signatures -----------------------------------------------------------------------------------


def test_a_handler_takes_the_payload_and_perhaps_the_transaction() -> None:
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
def test_what_is_not_a_function_is_refused(thing: Any) -> None:
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


# -- colours --------------------------------------------------------------------------------------


class AsyncCallable:
    async def __call__(self, payload: dict[str, Any]) -> None: ...

    async def handle(self, payload: dict[str, Any]) -> None: ...


@pytest.mark.parametrize(
    "function",
    [handle_async, functools.partial(handle_async), AsyncCallable(), AsyncCallable().handle],
    ids=["function", "partial", "object", "method"],
)
def test_handlers_of_two_colours_are_refused(function: Any) -> None:
    registry = make()
    registry.add(handle, "a", 1)
    with pytest.raises(
        HandlerError, match="is async, but handler handle is sync: an inbox is sync"
    ):
        registry.add(function, "b", 1)
    assert len(registry) == 1


def test_the_database_may_fix_the_colour_first() -> None:
    registry = make()
    registry.set_colour(True, "the database")
    registry.add(handle_async, "a", 1)
    with pytest.raises(HandlerError, match="handle is sync, but the database is async"):
        registry.add(handle, "b", 1)


def test_a_refused_handler_leaves_the_colour_open() -> None:
    async def wrong() -> None: ...

    registry = make()
    with pytest.raises(HandlerError):
        registry.add(wrong, "t", 1)
    registry.add(handle, "t", 1)
    assert registry.is_async is False


# -- types and versions of registrations ----------------------------------------------------------


def test_a_second_handler_for_the_same_messages_is_refused() -> None:
    registry = make()
    registry.add(handle, "t", 1)
    registry.add(handle, "t", 2)
    with pytest.raises(
        HandlerError, match=r"'t' version 1 already has the handler handle: .*never"
    ):
        registry.add(lambda payload: None, "t", 1)
    assert len(registry) == 2


@pytest.mark.parametrize("bad", [0, -1, "1", 1.0, True, None])
def test_a_version_is_an_integer_from_one(bad: Any) -> None:
    with pytest.raises(HandlerError, match=f"handle: a version is an integer from 1, not {bad!r}"):
        make().add(handle, "t", bad)
    with pytest.raises(HandlerError, match="a version is an integer from 1"):
        make().add_upcaster(handle, "t", bad)


@pytest.mark.parametrize("bad", ["", None, 5])
def test_a_type_is_a_text(bad: Any) -> None:
    with pytest.raises(HandlerError, match="a message type is a non-empty text"):
        make().add(handle, bad, 1)
    with pytest.raises(HandlerError, match="a message type is a non-empty text"):
        make().ignore(bad)


def test_policies_can_be_overridden_per_handler() -> None:
    registry = make()
    registry.add(handle, "a", 1)
    registry.add(handle, "b", 1, retry=Retry(max_attempts=1), order=Order.skip)
    usual, special = (registry.route(message(type_)).handler for type_ in "ab")
    assert (usual.retry.max_attempts, usual.order) == (5, Order.park)
    assert (special.retry.max_attempts, special.order) == (1, Order.skip)


# -- annotations ----------------------------------------------------------------------------------


def take_invoice(invoice: Invoice) -> None: ...


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


def test_a_local_class_that_cannot_be_seen_is_refused_with_a_remedy() -> None:
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


def test_an_annotation_that_is_no_type_is_refused() -> None:
    def handler(payload: 5) -> None: ...  # type: ignore[valid-type]

    with pytest.raises(HandlerError, match="cannot be decoded into 5"):
        make().add(handler, "t", 1)


# -- batch handlers -------------------------------------------------------------------------------


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


# -- routes ---------------------------------------------------------------------------------------


def test_a_message_goes_to_the_handler_of_its_type_and_version() -> None:
    registry = make()
    registry.add(handle, "a", 1)
    registry.add(take_invoice, "a", 2)
    assert registry.route(message("a", 1)).handler.function is handle
    assert registry.route(message("a", 2)).handler.function is take_invoice
    assert registry.route(message("a", 2)) is registry.route(message("a", 2))


def test_a_later_registration_takes_effect() -> None:
    registry = make()
    registry.add(handle, "t", 2)
    registry.add_upcaster(lambda value: value, "t", 1)
    assert registry.route(message()).handler.version == 2
    registry.add(handle, "t", 1)
    assert registry.route(message()).handler.version == 1


def test_an_unknown_type_is_told_from_an_unknown_version() -> None:
    registry = make()
    registry.add(handle, "t", 2)
    registry.add(handle, "t", 1)
    with pytest.raises(UnknownType, match="no handler for type 'x'"):
        registry.route(message("x"))
    with pytest.raises(UnknownType, match="the message has no type"):
        registry.route(message(""))
    with pytest.raises(UnknownVersion, match="for 't' with version 3; handlers take version 1, 2"):
        registry.route(message("t", 3))
    with pytest.raises(UnknownVersion, match=r"with version .not a number."):
        registry.route(message("t", 0))


def test_a_catch_all_takes_every_other_type_and_version() -> None:
    registry = make()
    registry.add(handle, "t", 1)
    registry.add(take_invoice, "*", 1)
    assert registry.route(message("t")).handler.function is handle
    for other in (message("x"), message("x", 7), message("", 0)):
        assert registry.route(other).handler.function is take_invoice


def test_a_catch_all_does_not_hide_an_unknown_version() -> None:
    registry = make()
    registry.add(handle, "t", 1)
    registry.add(handle, "*", 1)
    with pytest.raises(UnknownVersion):
        registry.route(message("t", 2))


def test_a_payload_over_the_limit_is_not_even_routed() -> None:
    registry = make(payload_limit=3)
    registry.add(handle, "t", 1)
    assert registry.route(message(payload=b"123"))
    for type_ in ("t", "unknown"):
        with pytest.raises(PayloadTooLarge, match="has 4 bytes, the limit is 3"):
            registry.route(message(type_, payload=b"1234"))


# -- upcasters ------------------------------------------------------------------------------------


def add_total(value: dict[str, Any]) -> dict[str, Any]:
    return {**value, "total": 1}


def double_total(value: dict[str, Any]) -> dict[str, Any]:
    return {**value, "total": value["total"] * 2}


def test_upcasters_lift_a_message_version_by_version() -> None:
    registry = make()
    registry.add(take_invoice, "t", 3)
    registry.add_upcaster(add_total, "t", 1)
    registry.add_upcaster(double_total, "t", 2)
    totals = {}
    for version in (1, 2, 3):
        given = message("t", version, b'{"id": "i-1", "total": 5}')
        totals[version] = registry.route(given).decode(given).total
    assert totals == {1: 2, 2: 10, 3: 5}


def test_a_chain_of_upcasters_that_leads_nowhere_is_an_unknown_version() -> None:
    registry = make()
    registry.add(take_invoice, "t", 1)
    registry.add_upcaster(add_total, "t", 2)
    with pytest.raises(UnknownVersion, match="version 2"):
        registry.route(message("t", 2))


@pytest.mark.parametrize(
    "upcaster",
    [double_total, functools.partial(double_total)],
    ids=["function", "partial"],
)
def test_an_upcaster_that_fails_makes_the_message_undecodable(upcaster: Any) -> None:
    registry = make()
    registry.add(take_invoice, "t", 2)
    registry.add_upcaster(upcaster, "t", 1)
    with pytest.raises(Undecodable, match=r"double_total.* failed: KeyError: 'total'"):
        registry.route(message()).decode(message())


def test_an_upcast_value_of_the_wrong_shape_is_undecodable() -> None:
    registry = make()
    registry.add(take_invoice, "t", 2)
    registry.add_upcaster(lambda value: [value], "t", 1)
    with pytest.raises(Undecodable, match="ValidationError"):
        registry.route(message()).decode(message())
    with pytest.raises(Undecodable):
        registry.route(message()).decode(message(payload=b"not json"))


def test_an_async_or_second_upcaster_is_refused() -> None:
    registry = make()
    with pytest.raises(HandlerError, match="handle_async must be a plain function"):
        registry.add_upcaster(handle_async, "t", 1)
    registry.add_upcaster(add_total, "t", 1)
    with pytest.raises(HandlerError, match="'t' version 1 already has an upcaster"):
        registry.add_upcaster(double_total, "t", 1)


# -- ignored types --------------------------------------------------------------------------------


def test_types_are_ignored_by_name_and_pattern() -> None:
    registry = make()
    registry.ignore("a.b", "c.*")
    ignored = {
        type_: registry.ignores(message(type_)) for type_ in ("a.b", "c.x", "c.", "a.bc", "c")
    }
    assert ignored == {"a.b": True, "c.x": True, "c.": True, "a.bc": False, "c": False}


def test_patterns_respect_case() -> None:
    registry = make()
    registry.ignore("order.*")
    assert not registry.ignores(message("Order.created"))


@pytest.mark.parametrize("everything", ["*", "**"])
def test_ignoring_everything_is_refused(everything: str) -> None:
    registry = make()
    with pytest.raises(HandlerError, match="would drop every message"):
        registry.ignore("a", everything)
    assert not registry.ignores(message("a"))


def test_unknown_types_are_ignored_only_on_request() -> None:
    strict, lenient = make(), make(ignore_unknown=True)
    for registry in (strict, lenient):
        registry.add(handle, "t", 1)
    assert not strict.ignores(message("x"))
    assert lenient.ignores(message("x"))
    assert not lenient.ignores(message("t"))
    assert not lenient.ignores(message("t", version=9))


def test_with_a_catch_all_no_type_is_unknown() -> None:
    registry = make(ignore_unknown=True)
    registry.add(handle, "*", 1)
    assert not registry.ignores(message("x"))
