"""The drain: what was stored runs again, in the order of its keys."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from oncebox import Inbox, Retry
from worlds import World, order, write_effect

AT_ONCE = Retry(max_attempts=3, first=timedelta(0), cap=timedelta(0), jitter=0)


class Shop:
    """An inbox whose handler fails for the ids in `bad`."""

    def __init__(self, world: World, **options: Any) -> None:
        self.world = world
        self.bad: dict[str, Exception] = {}
        self.runs: list[str] = []
        self.inbox: Inbox = world.inbox(**{"retry": AT_ONCE, **options})
        world.on(self.inbox, "order", self.handle)

    def handle(self, payload: dict[str, Any], tx: Any) -> Iterator[Any]:
        self.runs.append(payload["id"])
        yield from write_effect(payload, tx)
        if payload["id"] in self.bad:
            raise self.bad[payload["id"]]


@pytest.fixture
def shop(world: World) -> Shop:
    return Shop(world)


def test_what_was_received_is_run_by_the_drain(world: World, shop: Shop) -> None:
    assert world.receive(shop.inbox, [order("1"), order("2"), order("1")]) == [
        "stored",
        "stored",
        "duplicate",
    ]
    assert world.effects() == []
    assert world.states() == {"1": "pending", "2": "pending"}
    assert world.drain(shop.inbox) == {"done": 2}
    assert world.effects() == ["1", "2"]
    assert world.states() == {"1": "done", "2": "done"}
    assert world.drain(shop.inbox) == {}
    assert world.receive(shop.inbox, [order("1")]) == ["duplicate"]


def test_a_failed_message_runs_again_and_its_followers_after_it(world: World, shop: Shop) -> None:
    shop.bad["1"] = ValueError("not yet")
    batch = [order("1", key="k"), order("2", key="k"), order("3", key="other")]
    assert world.kinds(shop.inbox, batch) == ["failed", "parked", "done"]
    shop.bad.clear()
    assert world.drain(shop.inbox) == {"done": 2}
    assert world.effects() == ["1", "2", "3"]
    assert shop.runs[-2:] == ["1", "2"]
    assert world.pending() == []
