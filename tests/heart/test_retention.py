"""What is old and finished is forgotten; what comes after that is told from what is new."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import oncebox.housekeeping
from oncebox import Drainer, Inbox, Reject, Retention, Retry
from oncebox.database.steps import run
from oncebox.errors import ConfigurationError
from oncebox.forgetting import Pass
from worlds import BOTH, SOME, World, order, write_effect

pytestmark = pytest.mark.only(SOME)

TIMES = {"inbox": ("received_at", "minted_at"), "minute": ("minute",)}


def age(world: World, days: int, where: str = "true") -> None:
    """Let everything have happened so many days earlier."""
    for table, columns in TIMES.items():
        for column in columns:
            earlier = (
                f"{column} - interval '{days} days'"
                if world.is_postgres
                else f"{column} - {days} * 86400000000"
            )
            condition = where if table == "inbox" else "true"
            world.execute(f"UPDATE oncebox_{table} SET {column} = {earlier} WHERE {condition}")


def minted(id: str, days: float = 0, **more: Any) -> Any:
    """An order whose id came into being so many days ago."""
    at = datetime.now(UTC) - timedelta(days=days)
    return order(id, time=at.isoformat(), **more)


@pytest.fixture
def inbox(world: World) -> Inbox:
    made = world.inbox(retry=Retry(max_attempts=1))
    world.on(made, "order", write_effect)

    def refuse(payload: dict[str, Any], tx: Any) -> Any:
        yield from ()
        raise Reject("no")

    world.on(made, "bad", refuse)
    return made


def purge(world: World, inbox: Inbox) -> Any:
    keeping = inbox.housekeeping
    return world.run(keeping.apurge()) if world.is_async else keeping.purge()


def ids(world: World) -> list[str]:
    return sorted(row[0] for row in world.query("SELECT message_id FROM oncebox_inbox"))


def test_what_is_old_and_finished_is_forgotten(world: World, inbox: Inbox) -> None:
    world.process(inbox, [minted("old"), minted("bad", type="bad", key="k")])
    world.receive(inbox, [minted("waits")])
    age(world, 8)
    world.process(inbox, [minted("new")])
    purged = purge(world, inbox)
    assert (purged.forgotten, list(purged.held_by)) == (1, [])
    assert ids(world) == ["bad", "new", "waits"]
    assert world.drain(inbox) == {"done": 1}
    assert purge(world, inbox).forgotten == 1
    assert ids(world) == ["bad", "new"]
    # Of what is forgotten, no run is left either.
    assert world.query("SELECT count(*) FROM oncebox_attempt WHERE message_id <> 'bad'") == [(0,)]


def test_a_duplicate_that_comes_after_it_was_forgotten_is_quarantined(
    world: World, inbox: Inbox
) -> None:
    old = minted("old", days=8)
    world.process(inbox, [old])
    age(world, 8, "message_id = 'old'")
    world.process(inbox, [minted("new")])
    assert purge(world, inbox).forgotten == 1
    assert world.kinds(inbox, [old]) == ["quarantined"]
    assert world.effects() == ["new", "old"]
    # It was no duplicate after all? Then it is released.
    letter = world.query("SELECT id FROM oncebox_dead")[0][0]
    dead = inbox.dead
    if world.is_async:
        world.run(dead.aretry(letter, why="a late original"))
    else:
        dead.retry(letter, why="a late original")
    assert world.drain(inbox) == {"done": 1}
    assert world.effects() == ["new", "old", "old"]


@pytest.mark.only(BOTH)
def test_the_mark_waits_while_a_backlog_is_caught_up(world: World, inbox: Inbox) -> None:
    world.process(inbox, [minted("first", days=20)])
    age(world, 9)
    world.process(inbox, [minted("late", days=8.5)])
    horizon, count = inbox.housekeeping.horizon()
    assert count == 1
    assert horizon.held_by
    assert purge(world, inbox).forgotten == 1
    # The original that comes next is as old, and is not taken for a duplicate.
    assert world.kinds(inbox, [minted("later", days=8.4)]) == ["done"]


@pytest.mark.only(BOTH)
def test_what_came_into_being_after_the_mark_is_kept(world: World, inbox: Inbox) -> None:
    """Its duplicate would not be known by the mark: somebody's clock is wrong."""
    early = minted("early", days=1)
    world.process(inbox, [early, minted("old")])
    age(world, 8, "message_id = 'old'")
    column = (
        "received_at - interval '8 days'" if world.is_postgres else "received_at - 691200000000"
    )
    world.execute(f"UPDATE oncebox_inbox SET received_at = {column} WHERE message_id = 'early'")
    world.process(inbox, [minted("new")])
    assert purge(world, inbox).forgotten == 1
    assert ids(world) == ["early", "new"]
    assert world.kinds(inbox, [early]) == ["duplicate"]


@pytest.mark.only(BOTH)
def test_nothing_is_forgotten_while_nothing_comes(world: World, inbox: Inbox) -> None:
    world.process(inbox, [minted("old")])
    age(world, 30)
    assert purge(world, inbox).forgotten == 0
    assert world.kinds(inbox, [minted("next", days=29)]) == ["done"]


@pytest.mark.only(BOTH)
def test_many_messages_are_forgotten_a_little_at_a_time(
    world: World, inbox: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And others have their turn between two steps."""
    many = [minted(f"m{n}") for n in range(3000)]
    for start in range(0, 3000, 500):
        world.process(inbox, many[start : start + 500])
    age(world, 8)
    world.process(inbox, [minted("new")])
    told: list[int] = []
    rests: list[float] = []
    monkeypatch.setattr(run(inbox._database_for(False)), "sleep", rests.append)
    purged = inbox.housekeeping.purge(progress=told.append)
    assert purged.forgotten == told[-1] == 3000
    assert told == sorted(told)
    assert len(told) == len(rests) > 1
    assert all(rest > 0 for rest in rests)
    assert ids(world) == ["new"]


@pytest.mark.only(BOTH)
def test_of_all_drainers_one_keeps_house(
    world: World, inbox: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oncebox.housekeeping, "ASK_EVERY", 0.05)
    world.process(inbox, [minted("old")])
    age(world, 8)
    world.process(inbox, [minted("new")])
    drainer = Drainer(inbox, poll=0.02)
    drainer.on_beat = lambda waits: drainer.stop() if ids(world) == ["new"] else None
    drainer.run()
    world.process(inbox, [minted("second")])
    age(world, 8, "message_id = 'second'")
    beats = iter(range(20))
    again = Drainer(inbox, poll=0.02)
    again.on_beat = lambda waits: again.stop() if next(beats, None) is None else None
    again.run()
    assert ids(world) == ["new", "second"], "it was not its turn"


@pytest.mark.only(BOTH)
def test_while_messages_wait_the_house_gets_a_share_of_the_time(
    world: World, inbox: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oncebox.housekeeping, "ASK_EVERY", 0.0)
    events: list[str] = []
    step = Pass.step

    def spied(passing: Pass) -> Any:
        events.append("keep")
        return step(passing)

    def note(payload: dict[str, Any], tx: Any) -> Any:
        yield from ()
        events.append("run")

    monkeypatch.setattr(Pass, "step", spied)
    world.on(inbox, "note", note)
    padding = "x" * 1500
    for start in range(0, 1500, 500):
        world.process(inbox, [minted(f"m{n}", note=padding) for n in range(start, start + 500)])
    age(world, 8)
    world.receive(inbox, [minted(f"w{n}", type="note") for n in range(300)])
    Drainer(inbox, batch=1, until_idle=True).run()
    assert len(ids(world)) == 300
    kept = [number for number, event in enumerate(events) if event == "keep"]
    between = events[kept[0] : kept[-1]]
    assert between.count("run") > 2 * len(kept)


@pytest.mark.only(BOTH)
def test_without_retention_everything_is_kept(world: World) -> None:
    inbox = world.inbox(retention=None)
    with pytest.raises(ConfigurationError, match="keeps everything"):
        inbox.housekeeping.purge()


def test_retention_is_a_value() -> None:
    with pytest.raises(ConfigurationError, match="Retention"):
        Inbox("billing", "sqlite:///x.db", retention=7)  # type: ignore[arg-type]
    assert Retention(days=30).age == timedelta(days=30)
