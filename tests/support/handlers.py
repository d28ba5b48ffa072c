"""Registries and handlers for the tests of registration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from oncebox.model.message import Message
from oncebox.model.ordering import Ordering
from oncebox.model.retry import Retry
from oncebox.processing.handlers import Registry


@dataclass
class Invoice:
    id: str
    total: int = 0


def make(*, payload_limit: int = 1000, ignore_unknown: bool = False) -> Registry:
    return Registry(
        retry=Retry(),
        ordering=Ordering.strict,
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


def take_invoice(invoice: Invoice) -> None: ...
