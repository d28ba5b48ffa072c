"""An inbox whose messages have sequence numbers."""

from __future__ import annotations

import time
from typing import Any

from oncebox import CloudEvents, Delivery
from oncebox.model.gap import Gap
from oncebox.model.outcome import Outcome
from oncebox.operations.gaps import GapSkipper
from oncebox.storage.steps import run
from support.inboxes import InboxHarness, keyed
from support.internals import database_of, gaps_of, store_of
from support.worlds import World

NUMBERED = CloudEvents(sequence="number", epoch="era")


class SequenceHarness(InboxHarness):
    """An inbox whose messages have sequence numbers."""

    def __init__(self, world: World, **options: Any) -> None:
        super().__init__(world, **{"identity": NUMBERED, **options})

    def outcomes(self, *deliveries: Delivery) -> list[Outcome]:
        return self.world.process(self.inbox, deliveries)

    def gaps(self, act: str, *args: Any, **options: Any) -> Any:
        """Call a method of `inbox.gaps`, sync or async as the world is."""
        if self.world.is_async:
            return self.world.run(getattr(self.inbox.gaps, f"a{act}")(*args, **options))
        return getattr(self.inbox.gaps, act)(*args, **options)

    def look(self, what: str, *args: Any) -> Any:
        if self.world.is_async:
            return self.world.run(getattr(self.inbox, f"a{what}")(*args))
        return getattr(self.inbox, what)(*args)

    def message(self, id: str) -> Any:
        messages = self.inbox.messages
        return self.world.run(messages.aget(id)) if self.world.is_async else messages.get(id)

    def missing(self, **wanted: Any) -> list[tuple[Any, ...]]:
        """The gaps: key, epoch, the missing number, the lowest that waits, how many wait."""
        found: list[Gap] = self.gaps("find", **wanted)
        return [(gap.key, gap.epoch, gap.next, gap.lowest, gap.waiting) for gap in found]


def step(number: int, key: str = "k", *, id: str | None = None, **more: Any) -> Delivery:
    """A message with a sequence number; its id is its key and number."""
    return keyed(id or f"{key}{number}", key, number=number, **more)


def steps(*numbers: int, key: str = "k") -> list[Delivery]:
    return [step(number, key) for number in numbers]


def awaiting_sequence(world: World) -> list[str]:
    """The ids of messages that wait for a sequence number."""
    return sorted(id for id, state in world.states().items() if state == "awaiting_sequence")


def age_gaps(world: World, seconds: float, key: str | None = None) -> None:
    """Make gaps this many seconds older."""
    earlier = (
        f"waiting_since - interval '{seconds} seconds'"
        if world.is_postgres
        else f"waiting_since - {seconds} * 1000000"
    )
    world.execute(
        f"UPDATE oncebox_sequence SET waiting_since = {earlier}"
        + (f" WHERE key = '{key}'" if key else "")
    )


def set_lag(world: World, count: int | None) -> None:
    """Record a partition with an owner that is this many messages behind."""
    now, later = (
        ("clock_timestamp()", "clock_timestamp() + interval '1 hour'")
        if world.is_postgres
        else (str(time.time_ns() // 1000), str(2**62))
    )
    world.execute("DELETE FROM oncebox_position")
    world.execute(
        "INSERT INTO oncebox_position (consumer, source, partition, next, lag, owner, "
        "until, seen_at, "
        f"moved_at) VALUES ('billing', 'topic', '0', 5, %s, 'reader', {later}, {now}, {now})",
        count,
    )


class Clock:
    """A clock that a test moves between two checks of a worker."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


def make_keeper(harness: SequenceHarness, *, hurry: bool = False) -> GapSkipper:
    inbox = harness.inbox
    database = database_of(inbox)
    keeper = GapSkipper(database, store_of(inbox), inbox.name, gaps_of(inbox))
    if hurry:
        keeper.hurry()
    return keeper


def watch(keeper: GapSkipper, clock: Clock, seconds: float) -> bool:
    """Let time pass, and run the keeper once; True if it skipped a gap."""
    clock.now += seconds
    return run(keeper.step())
