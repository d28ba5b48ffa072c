"""Which handler gets a message."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from oncebox.errors import HandlerError, PayloadTooLarge, Undecodable, UnknownType, UnknownVersion
from support.handlers import handle, handle_async, make, message, take_invoice


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


def test_an_unknown_type_and_an_unknown_version_have_different_reasons() -> None:
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


def test_a_payload_over_the_limit_is_not_routed() -> None:
    registry = make(payload_limit=3)
    registry.add(handle, "t", 1)
    assert registry.route(message(payload=b"123"))
    for type_ in ("t", "unknown"):
        with pytest.raises(
            PayloadTooLarge, match="has 4 bytes, payload_limit of the inbox is 3: raise it"
        ):
            registry.route(message(type_, payload=b"1234"))


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
