"""Handlers that break their transaction, and errors of drivers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from oncebox import Kind, Outcome
from support.worlds import World, order, write_effect


def good_and_bad(culprit: Callable[[Any], Iterator[Any]]) -> Callable[..., Any]:
    """A handler that works, except for messages whose id begins with "bad"."""

    def handle(payload: dict[str, Any], tx: Any) -> Iterator[Any]:
        yield from write_effect(payload, tx)
        if payload["id"].startswith("bad"):
            yield from culprit(tx)

    return handle


def enforce_foreign_keys(connection: Any, _: Any) -> None:
    cursor = connection.cursor()
    cursor.execute("PRAGMA foreign_keys=ON")
    cursor.close()


class Conflict(Exception):
    """What a driver raises for a serialization failure."""

    sqlstate = "40001"


def assert_only_bad_fails(world: World, culprit: Any) -> Outcome:
    """Assert that among good messages only the bad one fails, and nothing of its work stays."""
    inbox = world.inbox()
    world.on(inbox, "order", good_and_bad(culprit))
    batch = [order("a", key="1"), order("bad", key="2"), order("c", key="3"), order("d", key="4")]
    outcomes = world.process(inbox, batch)
    assert [o.kind for o in outcomes] == [Kind.done, Kind.failed, Kind.done, Kind.done]
    assert world.effects() == ["a", "c", "d"]
    assert world.pending() == [("bad", 1, "retrying")]
    # The database, the connection and the inbox go on as if nothing had been.
    assert world.kinds(inbox, [*batch, order("e")]) == ["duplicate"] * 4 + ["done"]
    assert world.effects() == ["a", "c", "d", "e"]
    return outcomes[1]
