"""An inbox with a handler that fails on demand, and messages for it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from oncebox import Delivery, Inbox, Retry
from support.worlds import World, order, write_effect

AT_ONCE = Retry(max_attempts=3, initial_delay=timedelta(0), max_delay=timedelta(0), jitter=0)
LATER = Retry(initial_delay=timedelta(hours=1), max_delay=timedelta(hours=1), jitter=0)
ONCE = Retry(max_attempts=1)


class InboxHarness:
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

    def process(self, *deliveries: Delivery) -> list[str]:
        return self.world.kinds(self.inbox, deliveries)

    def receive(self, *deliveries: Delivery) -> list[str]:
        return self.world.receive(self.inbox, deliveries)

    def drain(self, **options: Any) -> dict[str, int]:
        return self.world.drain(self.inbox, **options)

    def dead(self, act: str, *ids: Any, **options: Any) -> Any:
        """Call a method of `inbox.dead`, sync or async as the world is."""
        if self.world.is_async:
            return self.world.run(getattr(self.inbox.dead_letters, f"a{act}")(*ids, **options))
        return getattr(self.inbox.dead_letters, act)(*ids, **options)

    def ran(self) -> list[str]:
        """The ids that ran since the last call, in order."""
        ran, self.runs[:] = list(self.runs), []
        return ran


def keyed(id: str, key: str | None = "k", **more: Any) -> Delivery:
    """A message of a key that has an order."""
    return order(id, key=key, **more)


def redelivered(delivery: Delivery) -> Delivery:
    """The delivery with the broker's redelivery flag."""
    return msgspec.structs.replace(delivery, redelivered=True)


def produced(id: str, days: float = 0, **more: Any) -> Any:
    """An order that was produced this many days ago."""
    at = datetime.now(UTC) - timedelta(days=days)
    return order(id, time=at.isoformat(), **more)


def purge(world: World, inbox: Inbox) -> Any:
    keeping = inbox.purge
    return world.run(keeping.arun()) if world.is_async else keeping.run()


def make_dead_letters(harness: InboxHarness, *deliveries: Delivery) -> None:
    """Make dead letters of these messages; a retry of them succeeds."""
    harness.bad |= {json.loads(d.body)["data"]["id"]: ValueError("once") for d in deliveries}
    assert "done" not in harness.process(*deliveries)
    harness.bad.clear()
    harness.ran()
