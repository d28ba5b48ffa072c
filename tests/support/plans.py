"""Plans of batches, for the tests of their rules."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from oncebox.model.identity.rules import Identity, Json
from oncebox.model.message import Delivery, Message
from oncebox.model.ordering import Ordering
from oncebox.model.retry import Retry
from oncebox.processing.handlers import Registry
from oncebox.processing.plan import Plan
from oncebox.processing.routing import Item, read_deliveries, read_stored, select_batch
from oncebox.storage.records import Claims, PendingMessage

IDENTITY = Json("id", type="type", key="key", version="version")
ERROR = ValueError("bad")


def registry(*, ordering: Ordering = Ordering.strict, retry: Retry | None = None) -> Registry:
    made = Registry(retry=retry or Retry(jitter=0), ordering=ordering, payload_limit=200)

    def handle(payload: dict[str, Any]) -> None: ...

    made.add(handle, "t", 1)
    made.add(handle, "once", 1, retry=Retry(max_attempts=1))
    made.add(handle, "skip", 1, ordering=Ordering.skip_dead, retry=Retry(max_attempts=1))
    made.add_upcaster(lambda value: value["missing"], "t", 2)
    made.add(handle, "t", 3)
    made.ignore("ignored.*")
    return made


def a(id_: str, key: str | None = None, type_: str = "t", **more: Any) -> Delivery:
    return Delivery(json.dumps({"id": id_, "type": type_, "key": key, **more}).encode())


def bad(id_: str, key: str | None = None, type_: str = "t") -> Delivery:
    """Its upcaster fails: undecodable, with a handler of its own."""
    return a(id_, key, type_, version=2)


def plan(
    *deliveries: Delivery,
    ordering: Ordering = Ordering.strict,
    identity: Identity = IDENTITY,
    **fate: Any,
) -> Plan:
    items = read_deliveries(deliveries, identity, registry(ordering=ordering))
    return Plan(items, ordering=ordering, random=lambda: 0.5, **fate)


def claims(answers: str) -> Claims:
    """Sequence numbers from 1 for what is new."""
    return Claims(answers, [n if a in "nwrl" else None for n, a in enumerate(answers, start=1)])


def decide(made: Plan, answers: str) -> list[Item]:
    assert len(answers) == len(made.arrivals)
    return made.decide(claims(answers))


def ids(items: list[Item]) -> list[str]:
    return [item.message.id for item in items if item.message]


def kinds(made: Plan) -> list[str]:
    return [outcome.kind.value for outcome in made.outcomes]


def again(delivery: Delivery) -> Delivery:
    return msgspec.structs.replace(delivery, redelivered=True)


def stored(
    id_: str, seq: int, *, key: str | None = None, lane: int = 0, type_: str = "t", **more: Any
) -> PendingMessage:
    version = more.pop("version", 1)
    message = Message(id_, b"{}", type=type_, version=version, key=key)
    return PendingMessage(message, Delivery(b"{}"), lane, seq, **more)


def resumed(
    *rows: PendingMessage, ordering: Ordering = Ordering.strict, **fate: Any
) -> tuple[Plan, list[Item]]:
    items = read_stored(rows, registry(ordering=ordering))
    made = Plan(items, ordering=ordering, random=lambda: 0.5, **fate)
    return made, made.resume()


def cut_ids(*rows: PendingMessage) -> list[str]:
    return [row.message.id for row in select_batch(rows)]
