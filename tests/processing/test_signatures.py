"""Handlers that could never run are refused when they are registered."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import pytest

from oncebox import AsyncTransaction, Delivery, Inbox, Transaction
from oncebox.errors import HandlerError


@pytest.fixture
def inbox() -> Inbox:
    return Inbox("billing", "sqlite:///billing.db")


def takes_list(orders: list[dict[str, Any]]) -> None: ...
def takes_one(order: dict[str, Any]) -> None: ...
def takes_connection(order: dict[str, Any], connection: sqlite3.Connection) -> None: ...
def takes_async(order: dict[str, Any], tx: AsyncTransaction) -> None: ...
async def takes_sync(order: dict[str, Any], tx: Transaction) -> None: ...
def takes_array(order: Sequence[int]) -> None: ...
def takes_either(order: dict[str, Any], tx: Transaction | None) -> None: ...
def takes_psycopg(order: dict[str, Any], tx: Transaction[Any, Any]) -> None: ...
def takes_annotated(order: dict[str, Any], tx: Annotated[Transaction, "ours"]) -> None: ...
def takes_any(order: dict[str, Any], tx: Any) -> None: ...


@pytest.mark.parametrize(
    ("handler", "says"),
    [
        (takes_list, r"takes list\[.*\], but it gets one payload at a time: add batch=True"),
        (takes_connection, "is sync and gets the transaction as its second argument: annotate "
                           "connection as Transaction, not Connection"),
        (takes_async, "is sync .* annotate tx as Transaction, not AsyncTransaction"),
        (takes_sync, "is async .* annotate tx as AsyncTransaction, not Transaction"),
    ],
)  # fmt: skip
def test_a_handler_with_wrong_annotations_is_refused(
    inbox: Inbox, handler: Callable[..., Any], says: str
) -> None:
    with pytest.raises(HandlerError, match=f"{handler.__name__} {says}"):
        inbox.on("order")(handler)


def test_a_batch_handler_that_takes_no_list_is_refused(inbox: Inbox) -> None:
    refused: Any = takes_one
    with pytest.raises(HandlerError, match=r"batch handler takes_one must take list\[...\]"):
        inbox.on("order", batch=True)(refused)


@pytest.mark.parametrize(
    "handler", [takes_array, takes_either, takes_psycopg, takes_any, takes_annotated]
)
def test_a_handler_with_right_annotations_is_accepted(
    inbox: Inbox, handler: Callable[..., Any]
) -> None:
    assert inbox.on("order")(handler) is handler


def test_an_upcast_chain_with_a_hole_is_refused_before_the_first_message(inbox: Inbox) -> None:
    inbox.on("order", version=4)(takes_one)
    inbox.upcast("order", from_version=1)(lambda old: old)
    inbox.upcast("order", from_version=3)(lambda old: old)
    with pytest.raises(
        HandlerError, match=r"converts 'order' to version 2, but version 2 has neither"
    ):
        inbox.process([Delivery(b"{}")])
