"""What becomes of a batch, on every database and adapter."""

from __future__ import annotations

from typing import Any

import pytest

from support.worlds import ALL, World, order, write_effect


def failing(payload: dict[str, Any], tx: Any) -> Any:
    yield tx.execute("INSERT INTO effects (id, body) VALUES (:id, '')", id=payload["id"])
    if payload["id"].startswith("bad"):
        raise ValueError("bad message")


@pytest.mark.only(ALL, quick=ALL)
def test_a_message_takes_effect_once(world: World) -> None:
    inbox = world.inbox()
    world.on(inbox, "order", write_effect)
    assert world.kinds(inbox, [order("a"), order("b"), order("a")]) == ["done", "done", "duplicate"]
    assert world.kinds(inbox, [order("b"), order("c")]) == ["duplicate", "done"]
    assert world.effects() == ["a", "b", "c"]


def test_only_the_bad_message_fails_and_blocks_its_key(world: World) -> None:
    inbox = world.inbox()
    world.on(inbox, "order", failing)
    batch = [order("bad", key="k"), order("x", key="l"), order("later", key="k"), order("y")]
    assert world.kinds(inbox, batch) == ["failed", "done", "blocked", "done"]
    assert world.kinds(inbox, [order("latest", key="k")]) == ["blocked"]
    assert world.effects() == ["x", "y"]
    assert world.pending() == [
        ("bad", 1, "retrying"),
        ("later", 0, "blocked"),
        ("latest", 0, "blocked"),
    ]


def test_two_consumers_each_get_the_message(world: World) -> None:
    first, second = world.inbox("billing"), world.inbox("shipping")
    world.on(first, "order", write_effect)
    world.on(second, "order", write_effect)
    assert world.kinds(first, [order("a")]) == world.kinds(second, [order("a")]) == ["done"]
    assert world.effects() == ["a", "a"]
