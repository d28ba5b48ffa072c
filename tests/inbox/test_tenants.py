"""Several tenants in one inbox do not wait for each other and share no ids."""

from __future__ import annotations

import json
from typing import Any

import pytest

from oncebox import BusinessKey, Delivery, Inbox, Json
from support.worlds import BOTH, SOME, World

pytestmark = [pytest.mark.only(SOME), pytest.mark.empty_database]

COMPOSED = Json("id", origin="tenant", type="type", key=("tenant", "order"))
PER_ORIGIN = Json("id", origin="tenant", type="type", key="order", key_per_origin=True)


def order(id: str, tenant: str, **fields: Any) -> Delivery:
    return Delivery(json.dumps({"id": id, "tenant": tenant, "type": "order", **fields}).encode())


def write(payload: dict[str, Any], tx: Any) -> Any:
    if payload.get("bad"):
        raise ValueError
    effect = f"{payload['tenant']} {payload['id']}"
    yield tx.execute("INSERT INTO effects (id, body) VALUES (:id, '')", id=effect)


def make(world: World, identity: Json, **options: Any) -> Inbox:
    inbox = world.inbox(identity=identity, **options)
    world.on(inbox, "order", write)
    return inbox


@pytest.mark.parametrize("identity", [COMPOSED, PER_ORIGIN], ids=["composed", "per origin"])
def test_a_failed_order_of_one_tenant_does_not_block_the_equal_order_of_another(
    world: World, identity: Json
) -> None:
    inbox = make(world, identity)
    batch = [
        order("1", "a", order=7, bad=True),
        order("1", "b", order=7),
        order("2", "a", order=7),
        order("2", "b", order=7),
    ]
    assert world.kinds(inbox, batch) == ["failed", "done", "blocked", "done"]
    assert world.effects() == ["b 1", "b 2"]


def test_several_producers_share_an_aggregate_unless_keys_are_scoped(world: World) -> None:
    inbox = make(world, Json("id", origin="tenant", type="type", key="order"))
    batch = [order("1", "a", order=7, bad=True), order("1", "b", order=7)]
    assert world.kinds(inbox, batch) == ["failed", "blocked"]


@pytest.mark.only(BOTH)
def test_each_tenant_has_sequence_numbers_of_its_own(world: World) -> None:
    identity = Json(
        "id", origin="tenant", type="type", key="order", key_per_origin=True, sequence="n"
    )
    inbox = make(world, identity)
    batch = [
        order("1", "a", order=7, n=1),
        order("1", "b", order=7, n=1),
        order("2", "b", order=7, n=2),
        order("2", "a", order=7, n=2),
    ]
    assert world.kinds(inbox, batch) == ["done"] * 4
    assert world.query("SELECT count(*) FROM oncebox_dead_letter") == [(0,)]


def test_a_cancellation_is_not_a_duplicate_of_its_order(world: World) -> None:
    inbox = world.inbox(identity=BusinessKey("order", type="type"))
    ran: list[str] = []
    for name in ("order.confirmed", "order.cancelled"):
        world.on(inbox, name, lambda payload, name=name: ran.append(name))
    confirmed, cancelled = (
        Delivery(json.dumps({"type": name, "order": 7}).encode())
        for name in ("order.confirmed", "order.cancelled")
    )
    batch = [confirmed, confirmed, cancelled, cancelled]
    assert world.kinds(inbox, batch) == ["done", "duplicate", "done", "duplicate"]
    assert ran == ["order.confirmed", "order.cancelled"]
