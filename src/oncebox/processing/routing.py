"""Routing: identify each delivery or stored message, find its handler, and decode its payload."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from oncebox.errors import (
    MissingId,
    OnceboxError,
    PayloadTooLarge,
    Undecodable,
    UnknownType,
    UnknownVersion,
)
from oncebox.model.message import Delivery, Message
from oncebox.model.outcome import Reason
from oncebox.processing.handlers import Registry, Route
from oncebox.storage.records import PendingMessage

ROUTING_ERRORS: dict[type[OnceboxError], Reason] = {
    Undecodable: Reason.undecodable,
    UnknownType: Reason.unknown_type,
    UnknownVersion: Reason.unknown_version,
    PayloadTooLarge: Reason.too_large,
}
"""The errors that make a message a dead letter before its handler runs."""

_ROUTING_ERRORS = tuple(ROUTING_ERRORS)

Rule = Callable[[Delivery], Message]
"""An identity. It raises MissingId, and nothing else."""


class Item:
    """A delivery, and what is known about it before the database is asked."""

    __slots__ = ("_decoded", "delivery", "error", "ignored", "key", "message", "route", "stored")

    def __init__(self, delivery: Delivery, stored: PendingMessage | None = None) -> None:
        self.delivery = delivery
        self.stored = stored
        """The pending message that it is; None for a new delivery."""
        self.message: Message | None = None
        self.key: str | None = None
        self.route: Route | None = None
        self.error: OnceboxError | None = None
        self.ignored = False
        self._decoded: Any = None

    def decode(self) -> None:
        """Decode the payload ahead of the transaction. Raises Undecodable."""
        if self.route is not None and self.message is not None:
            self._decoded = (self.route.decode(self.message),)

    def payload(self) -> Any:
        """The payload for one call of the handler: a second call gets a new object."""
        if self._decoded is None:
            self.decode()
        (value,), self._decoded = self._decoded, None
        return value


def read_deliveries(
    deliveries: Sequence[Delivery], identity: Rule, registry: Registry, *, decode: bool = True
) -> list[Item]:
    """Identify, route and decode new deliveries. An item keeps the error of a step that failed."""
    return [_read(delivery, identity, registry, decode) for delivery in deliveries]


def _read(delivery: Delivery, identity: Rule, registry: Registry, decode: bool) -> Item:
    item = Item(delivery)
    try:
        if delivery.defect is not None:
            raise MissingId(delivery.defect)
        message = identity(delivery)
    except MissingId as error:
        item.error = error
        return item
    # A redelivered message may crash its process, even while it is decoded: that comes later.
    _route(item, message, registry, decode=decode and not delivery.redelivered)
    return item


def read_stored(
    rows: Sequence[PendingMessage], registry: Registry, *, decode: bool = True
) -> list[Item]:
    """Route and decode stored messages. An item keeps the error of a step that failed."""
    items = [Item(row.delivery, row) for row in rows]
    for item, row in zip(items, rows, strict=True):
        _route(item, row.message, registry, decode=decode)
    return items


def _route(item: Item, message: Message, registry: Registry, *, decode: bool) -> None:
    item.message, item.key = message, message.key
    try:
        if registry.ignores(message):
            item.ignored = True
            return
        item.route = registry.route(message)
        if decode:
            item.decode()
    except _ROUTING_ERRORS as error:
        item.error = error


def select_batch(rows: Sequence[PendingMessage]) -> list[PendingMessage]:
    """The messages of the taken lanes that may run in one transaction, in order.

    A message that failed before, or may crash its process, runs alone, after all earlier messages
    of its lane. So a lane contributes its messages up to the first such message. A message that two
    replays contain is in a batch once.
    """
    if rows and rows[0].runs_separately:
        return [rows[0]]
    closed: set[int] = set()
    replayed: set[tuple[str, str]] = set()
    batch = []
    for row in rows:
        if row.runs_separately or (row.replay and (row.message.origin, row.message.id) in replayed):
            closed.add(row.lane)
        elif row.lane not in closed:
            batch.append(row)
            if row.replay:
                replayed.add((row.message.origin, row.message.id))
    return batch
