"""Old finished messages are purged, and a late duplicate of a purged message is quarantined."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

import oncebox.operations.purge
from oncebox import Inbox, Reject, Retention, Retry, Worker
from oncebox.errors import ConfigurationError
from oncebox.operations.purge_pass import Pass
from support.inboxes import produced, purge
from support.internals import database_of
from support.tables import age, message_ids
from support.worlds import BOTH, SOME, World, write_effect

pytestmark = pytest.mark.only(SOME)
pytestmark = pytest.mark.only(SOME)


@pytest.fixture
def inbox(world: World) -> Inbox:
    made = world.inbox(retry=Retry(max_attempts=1))
    world.on(made, "order", write_effect)

    def refuse(payload: dict[str, Any], tx: Any) -> Any:
        yield from ()
        raise Reject("no")

    world.on(made, "bad", refuse)
    return made


def test_old_finished_messages_are_purged(world: World, inbox: Inbox) -> None:
    world.process(inbox, [produced("old"), produced("bad", type="bad", key="k")])
    world.receive(inbox, [produced("waits")])
    age(world, 8)
    world.process(inbox, [produced("new")])
    purged = purge(world, inbox)
    assert (purged.purged, list(purged.held_back_by)) == (1, [])
    assert message_ids(world) == ["bad", "new", "waits"]
    assert world.drain(inbox) == {"done": 1}
    assert purge(world, inbox).purged == 1
    assert message_ids(world) == ["bad", "new"]
    # Of a purged message, no run is left either.
    assert world.query("SELECT count(*) FROM oncebox_attempt WHERE message_id <> 'bad'") == [(0,)]


def test_a_duplicate_of_a_purged_message_is_quarantined(world: World, inbox: Inbox) -> None:
    old = produced("old", days=8)
    world.process(inbox, [old])
    age(world, 8, "message_id = 'old'")
    world.process(inbox, [produced("new")])
    assert purge(world, inbox).purged == 1
    assert world.kinds(inbox, [old]) == ["quarantined"]
    assert world.effects() == ["new", "old"]
    # It was not a duplicate after all? Then it is released.
    letter = world.query("SELECT id FROM oncebox_dead_letter")[0][0]
    dead = inbox.dead_letters
    if world.is_async:
        world.run(dead.aretry(letter, why="a late original"))
    else:
        dead.retry(letter, why="a late original")
    assert world.drain(inbox) == {"done": 1}
    assert world.effects() == ["new", "old", "old"]


@pytest.mark.only(BOTH)
def test_the_watermark_waits_during_the_catch_up_of_a_backlog(world: World, inbox: Inbox) -> None:
    world.process(inbox, [produced("first", days=20)])
    age(world, 9)
    world.process(inbox, [produced("late", days=8.5)])
    purge_limit, count = inbox.purge.preview()
    assert count == 1
    assert purge_limit.held_back_by
    assert purge(world, inbox).purged == 1
    # The original that comes next is as old, and is not taken for a duplicate.
    assert world.kinds(inbox, [produced("later", days=8.4)]) == ["done"]


@pytest.mark.only(BOTH)
def test_a_message_produced_after_the_watermark_is_kept(world: World, inbox: Inbox) -> None:
    """The watermark would not catch its duplicate: the clock of a producer is wrong."""
    early = produced("early", days=1)
    world.process(inbox, [early, produced("old")])
    age(world, 8, "message_id = 'old'")
    column = (
        "received_at - interval '8 days'" if world.is_postgres else "received_at - 691200000000"
    )
    world.execute(f"UPDATE oncebox_inbox SET received_at = {column} WHERE message_id = 'early'")
    world.process(inbox, [produced("new")])
    assert purge(world, inbox).purged == 1
    assert message_ids(world) == ["early", "new"]
    assert world.kinds(inbox, [early]) == ["duplicate"]


@pytest.mark.only(BOTH)
def test_nothing_is_purged_while_no_message_arrives(world: World, inbox: Inbox) -> None:
    world.process(inbox, [produced("old")])
    age(world, 30)
    assert purge(world, inbox).purged == 0
    assert world.kinds(inbox, [produced("next", days=29)]) == ["done"]


@pytest.mark.only(BOTH)
def test_many_messages_are_purged_in_chunks(
    world: World, inbox: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And others have their turn between two steps."""
    many = [produced(f"m{n}") for n in range(3000)]
    for start in range(0, 3000, 500):
        world.process(inbox, many[start : start + 500])
    age(world, 8)
    world.process(inbox, [produced("new")])
    told: list[int] = []
    rests: list[float] = []
    monkeypatch.setattr(database_of(inbox), "sleep", rests.append)
    purged = inbox.purge.run(progress=told.append)
    assert purged.purged == told[-1] == 3000
    assert told == sorted(told)
    assert len(told) == len(rests) > 1
    assert all(rest > 0 for rest in rests)
    assert message_ids(world) == ["new"]


@pytest.mark.only(BOTH)
def test_only_one_worker_purges(
    world: World, inbox: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oncebox.operations.purge, "ASK_INTERVAL", 0.05)
    world.process(inbox, [produced("old")])
    age(world, 8)
    world.process(inbox, [produced("new")])
    drainer = Worker(inbox, poll=0.02)
    drainer.on_beat = lambda waits: drainer.stop() if message_ids(world) == ["new"] else None
    drainer.run()
    world.process(inbox, [produced("second")])
    age(world, 8, "message_id = 'second'")
    beats = iter(range(20))
    again = Worker(inbox, poll=0.02)
    again.on_beat = lambda waits: again.stop() if next(beats, None) is None else None
    again.run()
    assert message_ids(world) == ["new", "second"], "it was not its turn"


@pytest.mark.only(BOTH)
def test_while_messages_wait_the_purge_gets_a_share_of_the_time(
    world: World, inbox: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oncebox.operations.purge, "ASK_INTERVAL", 0.0)
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
        world.process(inbox, [produced(f"m{n}", note=padding) for n in range(start, start + 500)])
    age(world, 8)
    world.receive(inbox, [produced(f"w{n}", type="note") for n in range(300)])
    Worker(inbox, batch=1, until_idle=True).run()
    assert len(message_ids(world)) == 300
    keyed = [number for number, event in enumerate(events) if event == "keep"]
    between = events[keyed[0] : keyed[-1]]
    assert between.count("run") > 2 * len(keyed)


@pytest.mark.only(BOTH)
def test_without_retention_everything_is_kept(world: World) -> None:
    inbox = world.inbox(retention=None)
    with pytest.raises(ConfigurationError, match="has no retention"):
        inbox.purge.run()


def test_retention_is_a_value() -> None:
    with pytest.raises(ConfigurationError, match="Retention"):
        Inbox("billing", "sqlite:///x.db", retention=7)  # type: ignore[arg-type]
    assert Retention(days=30).age == timedelta(days=30)
