"""Messages of the past run once more: each one time, in its old order, and nothing is lost."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta, timezone
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
import psycopg_pool
import pytest
from test_drain import LATER, Shop, kept, past_due
from test_retention import age, minted, purge
from test_retention import ids as remembered

import oncebox.drain
from oncebox import Delivery, Inbox, Message, Order, Reject, Retention, Retry
from oncebox.database import seen
from oncebox.database.steps import arun, run
from oncebox.errors import ConfigurationError, NotFound
from oncebox.replays import Feeder, Preview
from oncebox.store import replaying
from oncebox.store.contract import Steps
from oncebox.store.records import Replay, Stored
from services import PATIENCE, wait_until
from worlds import BOTH, SOME, World, order, write_effect

pytestmark = pytest.mark.only(BOTH)
COLOURS = (*BOTH, "sqlalchemy-asyncpg")
"""Each database, and both colours."""

ONCE = Retry(max_attempts=1)
SLOW = 0.01
"""A pace at which one message is stored, and the next one long after the test."""


class Gate:
    """Where a message stays in the middle of its run."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.opened = threading.Event()

    def wait(self) -> None:
        self.reached.set()
        assert self.opened.wait(PATIENCE)


class Archive(Shop):
    """A shop, and its past."""

    def __init__(self, world: World, **options: Any) -> None:
        super().__init__(world, **{"retry": ONCE, **options})
        self.gates: dict[str, Gate] = {}

    def handle(self, payload: dict[str, Any], tx: Any) -> Iterator[Any]:
        if payload["id"] in self.gates:
            result = yield tx.execute("SELECT count(*) FROM effects")
            yield result.rows()  # what a pipeline held back is on the server by now
            self.gates[payload["id"]].wait()
        yield from super().handle(payload, tx)

    def past(self, *deliveries: Delivery) -> None:
        """These happened, one after the other."""
        for delivery in deliveries:
            assert self.process(delivery) == ["done"]
        self.ran()

    def replays(self, act: str, *args: Any, **options: Any) -> Any:
        """What `inbox.replays` does, in the colour of this world."""
        if self.world.is_async:
            return self.world.run(getattr(self.inbox.replays, f"a{act}")(*args, **options))
        return getattr(self.inbox.replays, act)(*args, **options)

    def start(self, name: str = "again", **options: Any) -> Replay:
        """Begin a replay, of all orders if nothing else is said."""
        replay: Replay = self.replays("start", name, why="a test", **(options or EVERYTHING))
        return replay

    def preview(self, **which: Any) -> tuple[int, int, int]:
        found: Preview = self.replays("preview", **which)
        return found.count, found.without_payload, found.in_other_states

    def cancel(self, name: str = "again") -> Replay:
        replay: Replay = self.replays("cancel", name, why="a mistake")
        return replay

    def feed(self) -> bool:
        """Let the replays store some more, and run nothing."""
        steps = self._feed(is_async=self.world.is_async)
        return bool(self.world.run(arun(steps)) if self.world.is_async else run(steps))

    def _feed(self, *, is_async: bool) -> Steps[bool]:
        database = yield from self.inbox._database_for(is_async)
        feeder = Feeder(database, self.inbox._store, self.inbox.name)
        return (yield from feeder.step())

    def far(self, name: str = "again") -> dict[str, int]:
        """How far a replay is: what is not zero."""
        replay = self.replays("get", name)
        counts = {name: getattr(replay, name) for name in COUNTS}
        assert sum(counts.values()) <= replay.total
        if replay.is_over:
            assert sum(counts.values()) == replay.total
            assert replay.waiting == 0
        return {name: value for name, value in counts.items() if value}


COUNTS = ("done", "waiting", "dead", "discarded", "skipped", "cancelled")
EVERYTHING: dict[str, Any] = {"type": "order"}


@pytest.fixture
def shop(world: World) -> Archive:
    return Archive(world)


@contextmanager
def held(shop: Archive, id: str, work: Callable[[], Any]) -> Iterator[None]:
    """Within this block somebody else is in the middle of running a message."""
    gate = shop.gates[id] = Gate()
    with ThreadPoolExecutor(1) as others:
        working = others.submit(work)
        try:
            assert gate.reached.wait(PATIENCE)
            yield
        finally:
            del shop.gates[id]
            gate.opened.set()
        working.result()


def received(world: World, id: str, at: datetime) -> None:
    """Let a message have arrived at this time."""
    moment = at if world.is_postgres else int(at.timestamp() * 1_000_000)
    world.execute("UPDATE oncebox_inbox SET received_at = %s WHERE message_id = %s", moment, id)


def make_due(world: World) -> None:
    """Let the time of every replay come."""
    past = "clock_timestamp() - interval '1 hour'" if world.is_postgres else "0"
    world.execute(f"UPDATE oncebox_replay SET due_at = {past}")


# -- which messages -------------------------------------------------------------------------------

NOON = datetime(2026, 7, 14, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


@pytest.mark.only(COLOURS, quick=BOTH)
def test_messages_are_chosen_by_what_is_known_of_them(world: World, shop: Archive) -> None:
    world.on(shop.inbox, "refund", shop.handle)
    shop.past(
        kept("1", "a"),
        kept("2", "b"),
        order("3", source="elsewhere"),
        order("4", type="refund", source="elsewhere"),
        order("4", type="refund", data={"id": "4 here"}),
    )
    for number in range(1, 5):
        received(world, str(number), NOON + number * HOUR)
    there, numbers = {"origin": "elsewhere"}, count()
    wanted: list[str]
    for which, wanted in (
        ({"ids": ("1", "3", "none")}, ["1", "3"]),
        ({"ids": {"4"}}, ["4", "4 here"]),
        ({"ids": ["4", "4"], **there}, ["4"]),
        ({"ids": []}, []),
        (there, ["3", "4"]),
        ({"type": "refund"}, ["4", "4 here"]),
        ({"key": "a"}, ["1"]),
        ({"since": NOON + 3 * HOUR}, ["3", "4", "4 here"]),
        ({"until": NOON + 3 * HOUR}, ["1", "2"]),
        ({"since": NOON + 2 * HOUR, "until": NOON + 3 * HOUR}, ["2"]),
        ({"since": (NOON + 4 * HOUR).astimezone(timezone(9 * HOUR))}, ["4", "4 here"]),
        ({"ids": ["1", "2", "3"], "type": "order", "key": "b", "since": NOON}, ["2"]),
        ({"type": "order", **there, "until": NOON}, []),
    ):
        assert shop.preview(**which) == (len(wanted), 0, 0), which
        name = str(next(numbers))
        assert shop.start(name, **which).total == len(wanted)
        shop.drain()
        assert sorted(shop.ran()) == wanted, which
        assert shop.far(name) == ({"done": len(wanted)} if wanted else {})


def test_only_what_is_finished_and_has_a_payload_can_be_replayed(world: World) -> None:
    shop = Archive(world)
    bare = Archive(world, keep_payload=False)
    shop.past(order("1"), order("2"))
    bare.past(order("bare"))
    shop.bad |= {"dead": Reject(), "gone": Reject()}
    shop.process(order("gone"))
    shop.dead("discard", everything=True, why="a test")
    shop.process(order("dead"))
    shop.receive(order("pending"))
    shop.bad.clear()
    assert shop.preview(type="order") == (2, 1, 3)
    assert shop.preview(type="order", state="discarded") == (1, 0, 5)
    assert shop.preview() == (2, 1, 3), "a look at everything costs nothing"
    assert shop.preview(ids=["1", "bare", "gone", "nobody"]) == (1, 1, 1)
    assert shop.start("discarded", state="discarded").total == 1
    assert shop.start().total == 2
    shop.ran()
    assert shop.drain() == {"done": 4}
    assert sorted(shop.ran()) == ["1", "2", "gone", "pending"]
    assert world.states()["gone"] == "discarded", "what it was, it stays"
    assert world.states()["dead"] == "dead"


def test_a_message_that_was_run_by_a_replay_can_be_replayed_again(
    world: World, shop: Archive
) -> None:
    shop.past(kept("1"), order("2"))
    for name in ("one", "two", "three"):
        shop.start(name)
        assert shop.drain() == {"done": 2}
    assert Counter(world.effects()) == {"1": 4, "2": 4}


def test_another_inbox_has_another_past(world: World, shop: Archive) -> None:
    other = Archive(world, name="shipping")
    shop.past(kept("1"), kept("2"))
    other.past(kept("1"), kept("3"))
    shop.start()
    assert other.drain() == {}
    assert other.preview(type="order") == (2, 0, 0)
    with pytest.raises(NotFound):
        other.replays("get", "again")
    with pytest.raises(NotFound):
        other.cancel()
    assert other.start(key="k").total == 2, "names are its own too"
    assert (shop.drain(), other.drain()) == ({"done": 2}, {"done": 2})
    assert (shop.ran(), other.ran()) == (["1", "2"], ["1", "3"])


# -- once more ------------------------------------------------------------------------------------


@pytest.mark.only(SOME, quick=BOTH)
def test_each_message_takes_effect_once_more(world: World, shop: Archive) -> None:
    shop.past(order("1"), kept("2"))
    shop.receive(kept("3"))
    shop.drain()
    before = world.query("SELECT * FROM oncebox_message ORDER BY seq")
    begun = shop.start(pace=1000, type="order")
    assert (begun.name, begun.state, begun.why) == ("again", "running", "a test")
    assert (begun.total, begun.stored, begun.waiting, begun.pace) == (3, 0, 0, 1000.0)
    assert begun.wanted == '{"type":"order"}'
    assert begun.began_at.tzinfo is not None
    assert not begun.is_over
    assert world.effects() == ["1", "2", "3"]
    assert shop.drain() == {"done": 3}
    wait_until(lambda: _is_over(shop), "it does not end")
    assert world.effects() == ["1", "1", "2", "2", "3", "3"]
    over = shop.replays("get", "again")
    assert (over.state, over.stored, over.done) == ("stored", 3, 3)
    assert over.began_at <= over.ended_at
    assert shop.drain() == {}
    assert world.effects() == ["1", "1", "2", "2", "3", "3"]
    assert world.query("SELECT * FROM oncebox_message ORDER BY seq") == before
    assert world.query("SELECT count(*) FROM oncebox_replay_item") == [(0,)]
    assert shop.process(order("1"), kept("4")) == ["duplicate", "done"]


def _is_over(shop: Archive, name: str = "again") -> bool:
    shop.drain()
    return bool(shop.replays("get", name).is_over)


def test_replays_are_found_the_newest_first(world: World, shop: Archive) -> None:
    assert shop.replays("find") == []
    shop.past(order("1"))
    for name in ("one", "two", "three"):
        shop.start(name)
    assert [replay.name for replay in shop.replays("find")] == ["three", "two", "one"]
    assert [replay.name for replay in shop.replays("find", limit=2)] == ["three", "two"]
    assert shop.replays("get", "two").name == "two"


def test_replays_that_overlap_run_a_message_once_each(world: World, shop: Archive) -> None:
    shop.past(*[kept(str(n), f"k{n % 2}" if n % 3 else None) for n in range(9)])
    shop.start("all")
    shop.start("some", ids=["1", "2", "3", "4"])
    assert shop.drain(batch=4) == {"done": 13}
    assert Counter(world.effects()) == {str(n): 3 if 1 <= n <= 4 else 2 for n in range(9)}
    assert (shop.far("all"), shop.far("some")) == ({"done": 9}, {"done": 4})


def test_a_list_never_holds_a_message_twice(world: World, shop: Archive) -> None:
    lists: list[list[str]] = []

    def handle(payloads: list[dict[str, Any]], tx: Any) -> Iterator[Any]:
        lists.append([payload["id"] for payload in payloads])
        for payload in payloads:
            yield from write_effect(payload, tx)

    world.on(shop.inbox, "many", handle, batch=True)
    shop.past(*[order(str(n), key="k" if n < 4 else None, type="many") for n in range(8)])
    for name in ("one", "two", "three"):
        shop.start(name, type="many")
    while shop.feed():
        pass
    lists.clear()
    assert shop.drain() == {"done": 24}
    assert all(len(ids) == len(set(ids)) for ids in lists)
    assert max(map(len, lists)) > 1
    assert Counter(world.effects()) == dict.fromkeys("01234567", 4)


def test_handlers_know_which_replay_they_run_for(world: World, shop: Archive) -> None:
    seen: list[tuple[str, int]] = []

    def one(message: Message, tx: Any) -> None:
        seen.append((message.id, message.replay))
        assert tx.message.replay == message.replay

    def many(messages: list[Message]) -> None:
        seen.extend((message.id, message.replay) for message in messages)

    world.on(shop.inbox, "one", one)
    world.on(shop.inbox, "many", many, batch=True)
    shop.past(order("1", type="one"), order("2", type="many"))
    shop.receive(order("3", type="one"))
    first = shop.start("first", origin="test")
    assert shop.drain() == {"done": 3}
    second = shop.start("second", ids=["3"])
    assert shop.drain() == {"done": 1}
    assert sorted(seen) == sorted(
        [("1", 0), ("2", 0), ("3", 0), ("1", first.id), ("2", first.id), ("3", second.id)]
    )


def test_runs_are_written_down_with_their_replay(world: World, shop: Archive) -> None:
    shop.past(kept("1"))
    shop.bad["1"] = ValueError("not again")
    replay = shop.start()
    assert shop.drain() == {"dead": 1}
    shop.bad.clear()
    shop.dead("retry", everything=True, why="mended")
    assert shop.drain() == {"done": 1}
    (found,) = shop.inbox.look.message("1")
    assert [(run.replay, run.number, run.outcome) for run in found.attempts] == [
        (replay.id, 1, "dead"),
        (replay.id, 2, "done"),
    ]
    assert [(act.act, act.replay) for act in found.actions] == [("retry", replay.id)]
    assert (found.message.state, found.message.attempts, found.letter) == ("done", 1, None)


def test_what_waits_for_the_longest_time_is_not_of_a_replay(world: World, shop: Archive) -> None:
    status = shop.inbox.look.status
    shop.past(order("1"), kept("2"))
    shop.start()
    shop.feed()
    assert (status().ready, status().oldest_pending) == (2, None)
    shop.receive(order("3"))
    ((at,),) = world.query("SELECT received_at FROM oncebox_inbox WHERE message_id = '3'")
    oldest = status().oldest_pending
    assert oldest is not None
    assert at == (oldest if world.is_postgres else round(oldest.timestamp() * 1_000_000))
    assert shop.drain() == {"done": 3}
    assert status().oldest_pending is None


def test_a_message_of_a_replay_that_kills_its_process_stays_one_of_it(
    world: World, shop: Archive
) -> None:
    """It is marked to run alone, as after a death: that must not make it a new message."""
    shop.past(kept("1"), kept("2"))
    shop.start()
    shop.feed()
    world.execute("UPDATE oncebox_pending SET alone = true")
    shop.bad["1"] = Reject()
    assert shop.drain() == {"dead": 1}
    assert shop.far() == {"dead": 1, "waiting": 1}
    shop.dead("discard", everything=True, why="a test")
    assert shop.drain() == {"done": 1}
    assert shop.far() == {"discarded": 1, "done": 1}
    assert world.states() == {"1": "done", "2": "done"}


# -- the order ------------------------------------------------------------------------------------


@pytest.mark.only(SOME, quick=BOTH)
def test_a_key_runs_in_its_old_order_behind_what_it_has_to_do(world: World, shop: Archive) -> None:
    shop.past(kept("c"), kept("x", "l"), kept("a"), kept("y", "l"), kept("b"))
    assert shop.receive(kept("live")) == ["stored"]
    shop.start()
    assert shop.feed()
    assert shop.process(kept("inline")) == ["parked"], "it must not overtake"
    assert shop.receive(kept("stored")) == ["stored"]
    assert shop.process(kept("other", "m")) == ["done"]
    shop.ran()
    assert shop.drain() == {"done": 8}
    ran = shop.ran()
    assert [id for id in ran if id in ("x", "y")] == ["x", "y"]
    assert [id for id in ran if id not in ("x", "y")] == [
        *("live", "c", "a", "b"),
        *("inline", "stored"),
    ]
    assert shop.process(kept("last")) == ["done"], "nothing is left to wait for"


def test_nothing_new_comes_between_the_messages_of_a_key(
    world: World, shop: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replaying, "AT_ONCE", 2)
    shop.past(kept("c"), order("0"), kept("a"), kept("x", "l"), kept("b"))
    shop.start()
    assert shop.feed()
    assert sorted(row[0] for row in world.pending()) == ["0", "a", "b", "c"]
    assert shop.receive(kept("new")) == ["stored"]
    assert shop.drain() == {"done": 6}
    ran = shop.ran()
    assert [id for id in ran if id in "cab" or id == "new"] == ["c", "a", "b", "new"]


def test_at_a_pace_new_messages_come_between(world: World, shop: Archive) -> None:
    """A whole key at once would break it; the order of the old ones is kept."""
    shop.past(kept("c"), kept("a"), kept("b"))
    shop.start(pace=SLOW, type="order")
    assert shop.feed()
    assert shop.process(kept("new")) == ["parked"]
    make_due(world)
    assert shop.feed()
    assert shop.drain() == {"done": 3}
    assert shop.ran() == ["c", "new", "a"]
    make_due(world)
    assert shop.drain() == {"done": 1}
    assert shop.ran() == ["b"]


@pytest.mark.only(COLOURS, quick=BOTH)
def test_behind_a_failing_head_a_replay_waits_and_goes_on_in_order(world: World) -> None:
    shop = Archive(world, retry=LATER)
    shop.past(kept("c"), kept("a"), kept("x", "l"), kept("b"))
    shop.bad["head"] = ValueError("not yet")
    assert shop.process(kept("head")) == ["failed"]
    shop.ran()
    shop.start()
    assert shop.drain() == {"done": 1}
    assert shop.ran() == ["x"]
    assert world.pending() == [
        ("head", 1, "retrying"),
        ("c", 0, "parked"),
        ("a", 0, "parked"),
        ("b", 0, "parked"),
    ]
    assert shop.far() == {"done": 1, "waiting": 3}
    assert shop.process(kept("new")) == ["parked"]
    shop.bad.clear()
    past_due(world)
    assert shop.drain() == {"done": 5}
    assert shop.ran() == ["head", "c", "a", "b", "new"]
    assert shop.far() == {"done": 4}


@pytest.mark.parametrize("act", ["retry", "discard"])
def test_behind_a_parking_dead_letter_a_replay_waits_and_goes_on_in_order(
    world: World, shop: Archive, act: str
) -> None:
    shop.past(kept("c"), kept("a"), kept("b"))
    shop.bad["letter"] = Reject()
    assert shop.process(kept("letter")) == ["dead"]
    shop.start()
    assert shop.drain() == {}
    assert shop.far() == {"waiting": 3}
    assert shop.process(kept("new")) == ["parked"]
    shop.bad.clear()
    shop.ran()
    shop.dead(act, everything=True, why="a test")
    shop.drain()
    assert shop.ran() == [*(["letter"] if act == "retry" else []), "c", "a", "b", "new"]
    assert shop.far() == {"done": 3}


def test_a_message_that_fails_in_a_replay_holds_its_key(world: World) -> None:
    shop = Archive(world, retry=LATER)
    shop.past(kept("c"), kept("a"), order("0"), kept("b"))
    shop.start()
    shop.bad["a"] = ValueError("not yet")
    assert shop.drain() == {"done": 2, "failed": 1, "parked": 1}
    assert shop.process(kept("new")) == ["parked"]
    assert world.states()["a"] == "done", "it was, and is"
    shop.ran()
    shop.bad.clear()
    past_due(world)
    assert shop.drain() == {"done": 3}
    assert shop.ran() == ["a", "b", "new"]
    assert Counter(world.effects()) == {**dict.fromkeys("0abc", 2), "new": 1}


# -- dead letters of a replay ---------------------------------------------------------------------


def died(shop: Archive) -> None:
    """A replay of three messages of a key, the first of which is a dead letter."""
    shop.past(kept("1"), kept("2"), kept("3"))
    shop.bad["1"] = Reject("not again")
    shop.start()
    assert shop.drain()["dead"] == 1
    shop.bad.clear()
    shop.ran()
    assert shop.far() == {"dead": 1, "waiting": 2}
    assert shop.process(kept("new")) == ["parked"]
    assert shop.world.states() == {"1": "done", "2": "done", "3": "done", "new": "pending"}


def test_a_dead_letter_of_a_replay_is_retried_at_the_head_of_its_key(
    world: World, shop: Archive
) -> None:
    died(shop)
    (letter,) = shop.dead("find")
    assert (letter.message_id, letter.replay) == ("1", shop.replays("get", "again").id)
    assert shop.dead("retry", letter.id, why="mended").done == 1
    assert shop.far() == {"waiting": 3}
    assert shop.drain() == {"done": 4}
    assert shop.ran() == ["1", "2", "3", "new"]
    assert shop.far() == {"done": 3}
    assert world.effects() == ["1", "1", "2", "2", "3", "3", "new"]


def test_a_dead_letter_of_a_replay_that_is_discarded_leaves_its_message_done(
    world: World, shop: Archive
) -> None:
    died(shop)
    assert shop.dead("discard", everything=True, why="enough").done == 1
    assert shop.far() == {"discarded": 1, "waiting": 2}
    assert shop.drain() == {"done": 3}
    assert shop.ran() == ["2", "3", "new"]
    assert shop.far() == {"done": 2, "discarded": 1}
    assert set(world.states().values()) == {"done"}
    assert shop.preview(type="order") == (4, 0, 0), "it may be replayed again"
    assert shop.preview(type="order", state="discarded") == (0, 0, 4)


@pytest.mark.only(COLOURS, quick=BOTH)
def test_a_cancelled_replay_takes_its_dead_letter_along_and_releases_its_key(
    world: World, shop: Archive
) -> None:
    died(shop)
    assert shop.cancel().state == "cancelled"
    assert shop.dead("find") == []
    assert shop.far() == {"cancelled": 3}
    assert shop.drain() == {"done": 1}
    assert shop.ran() == ["new"]
    assert shop.process(kept("next")) == ["done"]
    assert set(world.states().values()) == {"done"}


def test_a_letter_that_is_older_than_the_replay_is_not_taken_along(
    world: World, shop: Archive
) -> None:
    shop.past(kept("1"), kept("2"))
    shop.bad["letter"] = Reject()
    assert shop.process(kept("letter"), order("0")) == ["dead", "done"]
    shop.start()
    shop.drain()
    assert shop.cancel().state == "cancelled"
    assert [letter.message_id for letter in shop.dead("find")] == ["letter"]
    assert shop.process(kept("new")) == ["parked"], "its key still waits"


def test_where_a_key_skips_its_dead_letters_a_replay_goes_on(world: World) -> None:
    shop = Archive(world, order=Order.skip)
    shop.past(kept("1"), kept("2"))
    shop.bad["1"] = Reject()
    shop.start()
    assert shop.drain() == {"dead": 1, "done": 1}
    assert shop.replays("get", "again").is_over
    assert shop.far() == {"dead": 1, "done": 1}
    shop.bad.clear()
    shop.dead("retry", everything=True, why="mended")
    assert shop.drain() == {"done": 1}
    assert shop.far() == {"done": 2}


def test_a_replay_of_which_only_dead_letters_are_left_can_be_cancelled(world: World) -> None:
    shop = Archive(world, order=Order.skip)
    shop.past(kept("1"), kept("2"))
    shop.bad["1"] = Reject()
    shop.start()
    shop.drain()
    assert shop.replays("get", "again").is_over
    assert shop.cancel().state == "cancelled"
    assert shop.dead("find") == []
    assert shop.far() == {"cancelled": 1, "done": 1}


# -- cancelling -----------------------------------------------------------------------------------


def test_a_replay_that_is_cancelled_before_anything_runs_nothing(
    world: World, shop: Archive
) -> None:
    shop.past(kept("1"), kept("2"), order("3"))
    shop.start()
    cancelled = shop.cancel()
    assert (cancelled.state, cancelled.total, cancelled.is_over) == ("cancelled", 3, True)
    assert cancelled.ended_at is not None
    assert shop.drain() == {}
    assert shop.far() == {"cancelled": 3}
    assert world.effects() == ["1", "2", "3"]
    assert world.query("SELECT count(*) FROM oncebox_replay_item") == [(0,)]


@pytest.mark.parametrize("fed", [False, True])
def test_what_has_run_stays_when_a_replay_is_cancelled(
    world: World, shop: Archive, fed: bool
) -> None:
    shop.past(kept("1"), kept("2"), order("3"), kept("4"))
    shop.start(pace=SLOW, type="order")
    assert shop.drain() == {"done": 1}
    if fed:
        shop.replays("set_pace", "again", None, why="now")
        assert shop.feed()
        assert shop.far() == {"done": 1, "waiting": 3}
        assert shop.process(kept("new")) == ["parked"]
    assert shop.cancel().state == "cancelled"
    assert shop.far() == {"done": 1, "cancelled": 3}
    assert shop.drain() == ({"done": 1} if fed else {})
    assert world.effects() == ["1", "1", "2", "3", "4", *(["new"] if fed else [])]


def test_many_messages_are_taken_back_a_little_at_a_time(
    world: World, shop: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.past(*[kept(str(n), f"k{n % 3}" if n % 2 else None) for n in range(9)])
    shop.start()
    assert shop.feed()
    assert len(world.pending()) == 9
    monkeypatch.setattr(replaying, "AT_ONCE", 2)
    assert shop.cancel().state == "cancelled"
    assert shop.far() == {"cancelled": 9}
    assert world.pending() == []


@pytest.mark.only(("psycopg",))
def test_what_runs_while_its_replay_is_cancelled_runs_to_its_end(
    world: World, shop: Archive
) -> None:
    shop.past(kept("1"), kept("2"), kept("3"), order("4"))
    shop.start(ids=["1", "2", "3"])
    with held(shop, "1", lambda: shop.drain(batch=1)):
        assert shop.cancel().state == "cancelling"
        assert shop.far() == {"waiting": 1, "cancelled": 2}
        assert shop.process(kept("new")) == ["parked"]
    wait_until(lambda: _is_over(shop), "it is not cancelled")
    assert shop.replays("get", "again").state == "cancelled"
    assert shop.far() == {"done": 1, "cancelled": 2}
    assert world.effects() == ["1", "1", "2", "3", "4", "new"]


@pytest.mark.only(("psycopg",))
def test_what_dies_while_its_replay_is_cancelled_is_no_dead_letter(
    world: World, shop: Archive
) -> None:
    shop.past(kept("1"), kept("2"))
    shop.bad["1"] = Reject()
    shop.start()
    with held(shop, "1", lambda: shop.drain(batch=1)):
        assert shop.cancel().state == "cancelling"
        assert shop.process(kept("new")) == ["parked"]
    wait_until(lambda: _is_over(shop), "it is not cancelled")
    assert shop.far() == {"cancelled": 2}
    assert shop.dead("find") == []
    assert world.effects() == ["1", "2", "new"]


@pytest.mark.only(("sqlite3",))
def test_a_cancel_waits_for_what_runs_where_there_is_one_writer(
    world: World, shop: Archive
) -> None:
    shop.past(*[kept(str(n)) for n in range(9)])
    shop.start()
    with ThreadPoolExecutor(1) as others:
        with held(shop, "0", lambda: shop.drain(batch=1)):
            cancelling = others.submit(world.inbox(migrate=False).replays.cancel, "again", why="x")
        assert cancelling.result().state == "cancelled"
    done = shop.far()["done"]
    assert shop.far() == {"done": done, "cancelled": 9 - done}
    assert len(world.effects()) == 9 + done
    assert shop.drain() == {}


def test_a_batch_that_was_taken_back_meanwhile_is_not_run(
    world: World, shop: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The replay is cancelled between the take and the removal of its messages."""
    shop.past(kept("1"), kept("2"))
    shop.start()
    shop.feed()
    cut = oncebox.drain.cut

    def late(rows: Any) -> Any:
        monkeypatch.setattr(oncebox.drain, "cut", cut)
        if world.is_postgres:
            world.inbox(migrate=False).replays.cancel("again", why="a mistake")
        return cut(rows)

    monkeypatch.setattr(oncebox.drain, "cut", late)
    monkeypatch.setattr(oncebox.drain, "PAUSES", (0.001,) * 4)
    done = {} if world.is_postgres else {"done": 2}
    assert shop.drain() == done
    assert shop.far() == (done or {"cancelled": 2})
    assert shop.dead("find") == []


@pytest.mark.parametrize("fed", [False, True])
def test_a_replay_is_cancelled_whatever_the_others_do(
    world: World, shop: Archive, monkeypatch: pytest.MonkeyPatch, fed: bool
) -> None:
    monkeypatch.setattr(replaying, "AT_ONCE", 1)
    monkeypatch.setattr(replaying, "AMPLE", 2)
    shop.past(*[order(str(n)) for n in range(5)])
    shop.start("first")
    shop.start("second")
    while fed and shop.feed():
        pass
    waiting = shop.far("first")
    make_due(world)
    assert shop.cancel("second").state == "cancelled"
    assert shop.far("second") == {"cancelled": 5}
    assert shop.far("first") == waiting, "whose cancel it is not"
    assert shop.drain() == {"done": 5}
    assert shop.far("first") == {"done": 5}


# -- how fast -------------------------------------------------------------------------------------


@pytest.mark.only(COLOURS, quick=BOTH)
def test_a_pace_can_be_changed(world: World, shop: Archive) -> None:
    shop.past(*[order(str(n)) for n in range(6)])
    shop.start(pace=SLOW, type="order")
    assert shop.drain() == {"done": 1}
    assert shop.drain() == {}, "the next one is due later"
    assert shop.replays("set_pace", "again", 3.7, why="a little faster").pace == 3.7
    assert shop.feed()
    assert shop.far() == {"done": 1, "waiting": 3}
    assert shop.replays("set_pace", "again", None, why="at once", by="ada").pace is None
    assert shop.drain() == {"done": 5}
    assert shop.far() == {"done": 6}
    assert world.query("SELECT act, by_whom, why, reason FROM oncebox_action ORDER BY id")[2] == (
        *("pace", "ada"),
        *("at once", "again"),
    )


def test_a_pace_that_was_not_kept_is_made_up_for_a_little(world: World, shop: Archive) -> None:
    """Nobody drained for an hour: not all that would have been due is stored now."""
    shop.past(*[order(str(n)) for n in range(30)])
    shop.start(pace=1, type="order")
    make_due(world)
    while shop.feed():
        pass
    assert 1 <= len(world.pending()) < 30


def test_no_more_is_stored_while_there_is_ample(
    world: World, shop: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replaying, "AT_ONCE", 4)
    monkeypatch.setattr(replaying, "AMPLE", 6)
    shop.past(*[order(str(n)) for n in range(20)])
    shop.start()
    assert [shop.feed() for _ in range(4)] == [True, True, False, False]
    assert len(world.pending()) == 8
    shop.start("other", ids=["1", "2"])
    make_due(world)
    assert any(shop.feed() for _ in range(2)), "another one goes on"
    assert shop.far("other") == {"waiting": 2}
    assert shop.drain() == {"done": 22}
    assert shop.far() == {"done": 20}


def test_a_drain_goes_on_until_all_is_stored_and_done(
    world: World, shop: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where there was ample a moment ago."""
    monkeypatch.setattr(replaying, "AT_ONCE", 4)
    monkeypatch.setattr(replaying, "AMPLE", 2)
    monkeypatch.setattr(oncebox.drain, "TURN_EVERY", 0.0)
    shop.past(*[order(str(n)) for n in range(20)])
    shop.start()
    assert shop.drain(batch=1) == {"done": 20}
    assert shop.far() == {"done": 20}


def test_no_more_is_stored_while_much_waits(
    world: World, shop: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replaying, "AT_ONCE", 2)
    monkeypatch.setattr(replaying, "MOST", 4)
    shop.past(*[kept(str(n), "k") for n in range(4)], *[order(f"x{n}") for n in range(8)])
    shop.bad["letter"] = Reject()
    shop.process(kept("letter"))
    shop.start()
    assert shop.drain() == {}
    assert [row[2] for row in world.pending()] == ["parked"] * 4
    shop.bad.clear()
    shop.dead("retry", everything=True, why="mended")
    assert shop.drain() == {"done": 13}
    assert shop.far() == {"done": 12}


def test_a_busy_drain_feeds_replays_too(world: World, shop: Archive) -> None:
    waiting: list[list[str]] = []

    def handle(payload: dict[str, Any]) -> None:
        waiting.append([row[0] for row in world.pending()])

    world.on(shop.inbox, "live", handle)
    shop.past(kept("old"))
    shop.receive(*[kept(str(n), type="live") for n in range(3)])
    shop.start()
    assert shop.drain(batch=1) == {"done": 4}
    assert "old" in waiting[-1]


# -- what is gone meanwhile -----------------------------------------------------------------------


@pytest.mark.only(COLOURS, quick=BOTH)
def test_what_was_erased_since_is_skipped_and_counted(world: World, shop: Archive) -> None:
    shop.past(kept("1"), kept("erased"), kept("2"), kept("pruned"), kept("3"))
    shop.start()
    world.execute("UPDATE oncebox_inbox SET payload = NULL WHERE message_id = 'erased'")
    world.execute("DELETE FROM oncebox_inbox WHERE message_id = 'pruned'")
    assert shop.drain() == {"done": 3}
    assert shop.ran() == ["1", "2", "3"]
    assert shop.far() == {"done": 3, "skipped": 2}
    replay = shop.replays("get", "again")
    assert (replay.is_over, replay.total, replay.stored) == (True, 5, 3)


def test_a_replay_of_which_nothing_is_left_ends(world: World, shop: Archive) -> None:
    shop.past(kept("1"), order("2"))
    shop.start()
    world.execute("DELETE FROM oncebox_inbox")
    assert shop.drain() == {}
    assert shop.far() == {"skipped": 2}
    assert shop.replays("get", "again").is_over


@pytest.mark.only(COLOURS, quick=BOTH)
def test_what_is_to_be_replayed_is_not_forgotten(world: World, shop: Archive) -> None:
    old = ["dead", "pending", "replayed"]
    shop.past(*[minted(id, key=id) for id in old], minted("other"))
    age(world, 8)
    shop.past(minted("new"))
    shop.start(ids=["replayed", "pending", "dead"])
    assert purge(world, shop.inbox).forgotten == 1
    assert remembered(world) == sorted([*old, "new"])
    shop.bad["dead"] = Reject()
    shop.feed()
    assert purge(world, shop.inbox).forgotten == 0
    world.execute(
        "UPDATE oncebox_pending SET available_at = %s WHERE message_id = 'pending'",
        datetime.now(UTC) + HOUR if world.is_postgres else 2**62,
    )
    shop.drain()
    assert shop.far() == {"done": 1, "dead": 1, "waiting": 1}
    assert purge(world, shop.inbox).forgotten == 1
    assert remembered(world) == ["dead", "new", "pending"]
    past_due(world)
    shop.drain()
    shop.dead("discard", everything=True, why="a test")
    assert purge(world, shop.inbox).forgotten == 2
    assert remembered(world) == ["new"]
    assert shop.far() == {"done": 2, "discarded": 1}


@pytest.mark.only(("psycopg",))
def test_nothing_is_forgotten_while_a_replay_begins(
    world: World, shop: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who forgets cannot see yet what is wanted."""
    _grow_old(world, shop)
    store: Any = shop.inbox._store
    act_on = store._act_on
    forgotten: list[int] = []

    def slowly(*args: Any) -> Iterator[Any]:
        forgotten.append(purge(world, Archive(world).inbox).forgotten)
        return (yield from act_on(*args))

    monkeypatch.setattr(store, "_act_on", slowly)
    shop.start(ids=["old"])
    assert forgotten == [0]
    assert shop.drain() == {"done": 1}
    assert shop.far() == {"done": 1}
    assert purge(world, shop.inbox).forgotten == 1
    assert world.query("SELECT count(*) FROM oncebox_attempt") == [(0,)]


@pytest.mark.only(("psycopg",))
@pytest.mark.parametrize("way", ["forget", "forget_these"])
def test_what_is_forgotten_when_a_replay_begins_is_not_replayed(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """It runs neither before nor after the end of that: its run would never be forgotten."""
    archive = str(tmp_path / "archive") if way == "forget_these" else None
    shop = Archive(world, retention=Retention(archive=archive))
    _grow_old(world, shop)
    store: Any = shop.inbox._store
    forget = getattr(store, way)
    with ThreadPoolExecutor(1) as others:
        begun: list[Future[Replay]] = []

        def slowly(*args: Any, **options: Any) -> Iterator[Any]:
            count = yield from forget(*args, **options)
            begun.append(others.submit(Archive(world).start, ids=["old"]))
            wait_until(lambda: begun[0].done() or _somebody_waits(world), "nobody waits")
            return count

        monkeypatch.setattr(store, way, slowly)
        assert purge(world, shop.inbox).forgotten == 1
        assert begun[0].result().total == 0
    assert shop.drain() == {}
    assert remembered(world) == ["new"]


@pytest.mark.only(("psycopg",))
def test_what_is_forgotten_is_not_replayed_at_any_isolation_level(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who waited for a purge sees what it forgot."""
    shop = Archive(world)
    _grow_old(world, shop)
    store: Any = shop.inbox._store
    forget = store.forget
    begun: list[Future[Replay]] = []
    with _strict_pool(world) as pool, ThreadPoolExecutor(1) as others:
        other = Inbox("billing", pool)
        start = partial(other.replays.start, "strict", why="a test", ids=["old"])

        def slowly(*args: Any, **options: Any) -> Iterator[Any]:
            count = yield from forget(*args, **options)
            begun.append(others.submit(start))
            wait_until(lambda: begun[0].done() or _somebody_waits(world), "nobody waits")
            return count

        monkeypatch.setattr(store, "forget", slowly)
        assert purge(world, shop.inbox).forgotten == 1
        assert begun[0].result().total == 0
        other.close()


@pytest.mark.only(("psycopg",))
def test_what_is_to_be_replayed_is_not_forgotten_at_any_isolation_level(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who purges sees a replay that began before it had the lock."""
    shop = Archive(world)
    _grow_old(world, shop)
    with _strict_pool(world) as pool:
        other = Inbox("billing", pool, retention=Retention())
        store: Any = other._store
        be_polite = store._be_polite

        def slowly(connection: Any) -> Iterator[Any]:
            yield from be_polite(connection)
            if not world.query("SELECT 1 FROM oncebox_replay"):
                shop.start(ids=["old"])

        monkeypatch.setattr(store, "_be_polite", slowly)
        assert other.housekeeping.purge().forgotten == 0
        other.close()
    assert shop.drain() == {"done": 1}


def _strict_pool(world: World) -> psycopg_pool.ConnectionPool:
    def configure(connection: psycopg.Connection) -> None:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ

    return psycopg_pool.ConnectionPool(world.url, configure=configure, open=True)


def _grow_old(world: World, shop: Archive) -> None:
    """One message is old enough to be forgotten."""
    shop.past(minted("old"))
    age(world, 8)
    shop.past(minted("new"))


def _somebody_waits(world: World) -> bool:
    waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    return bool(world.query(waiting)[0][0])


# -- others ---------------------------------------------------------------------------------------


@pytest.mark.only(("psycopg",))
def test_a_key_whose_lock_cannot_be_had_does_not_keep_the_drain(
    world: World, shop: Archive
) -> None:
    """Somebody handles a message of the key at this moment, and takes his time."""
    shop.past(kept("1"), kept("2"), kept("3", "l"))
    shop.start()
    with held(shop, "live", lambda: shop.process(kept("live"))):
        shop.receive(order("other"))
        assert shop.drain() == {"done": 1}
        assert shop.far() == {}
        assert shop.replays("get", "again").state == "running"
    wait_until(lambda: _is_over(shop), "it does not go on")
    ran = shop.ran()
    assert [id for id in ran if id in ("live", "1", "2")] == ["live", "1", "2"]
    assert shop.far() == {"done": 3}


@pytest.mark.only(("psycopg",))
def test_a_replay_is_fed_by_one_at_a_time(
    world: World, shop: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody else has its row: that is not waited for, and nothing is stored twice."""
    shop.past(order("1"), order("2"))
    shop.start()
    store: Any = shop.inbox._store
    store_again = store._store_again
    fed: list[bool] = []

    def slowly(*args: Any) -> Iterator[Any]:
        monkeypatch.setattr(store, "_store_again", store_again)
        other = Archive(world)
        fed.append(other.feed())
        return (yield from store_again(*args))

    monkeypatch.setattr(store, "_store_again", slowly)
    assert shop.feed()
    assert fed == [False]
    assert len(world.pending()) == 2
    assert shop.drain() == {"done": 2}


@pytest.mark.only(("sqlalchemy-psycopg",))
def test_nothing_is_replayed_at_levels_that_could_not_keep_an_order(world: World) -> None:
    shop = Archive(world)
    shop.past(kept("1"))
    shop.start()
    world._database = world.database().execution_options(isolation_level="REPEATABLE READ")
    with pytest.raises(ConfigurationError, match="READ COMMITTED"):
        Archive(world).feed()
    assert world.pending() == []
    assert shop.drain() == {"done": 1}


def test_a_lost_message_of_a_cancelled_replay_is_no_dead_letter(
    world: World, shop: Archive
) -> None:
    """Its transaction got lost, and it is gone: because it was taken back."""
    shop.past(order("1"))
    shop.start()
    shop.feed()
    ((seq,),) = world.query("SELECT seq FROM oncebox_pending")
    replay = shop.replays("get", "again")

    world.execute("DELETE FROM oncebox_pending")
    assert run(_vanished(shop, seq, replay.id)) == [seq]
    for state in ("cancelling", "cancelled"):
        world.execute("UPDATE oncebox_replay SET state = %s", state)
        assert run(_vanished(shop, seq, replay.id)) == []


def _vanished(shop: Archive, seq: int, replay: int) -> Steps[list[int]]:
    database = yield from shop.inbox._database_for(False)
    message = Message("1", b"", origin="test", replay=replay)
    row = Stored(message, Delivery(b""), 0, seq, replay=replay)
    look = lambda work: shop.inbox._store.vanished(work, "billing", [row], within=60)  # noqa: E731
    return [found.seq for found in (yield from seen(database, look))]


# -- refusals and the audit -----------------------------------------------------------------------

REFUSED = pytest.mark.only(("sqlite3", "psycopg-async"))


WHICH = "say which messages are to be replayed"
FINISHED = "only messages that are done or discarded can be replayed"


@REFUSED
def test_a_replay_says_which_messages(world: World, shop: Archive) -> None:
    shop.past(order("1"))
    mistakes: list[tuple[dict[str, Any], str]] = [
        ({}, WHICH),
        ({"type": None, "since": None}, WHICH),
        ({"state": "done"}, WHICH),
        ({"topic": "orders"}, "unknown filter 'topic'; the filters are ids, origin"),
        ({"ids": "1"}, "ids is a list of message ids"),
        ({"ids": [1, "2"]}, "ids is a list of message ids"),
        ({"since": "2026-07-14"}, "since is a datetime, not '2026-07-14'"),
        ({"until": datetime(2026, 7, 14)}, "until needs a time zone"),
        ({"type": "order", "state": "pending"}, FINISHED),
        ({"type": "order", "state": None}, FINISHED),
    ]
    for which, says in mistakes:
        with pytest.raises(ConfigurationError, match=says):
            shop.replays("start", "again", why="a test", **which)
        if says is not WHICH:
            with pytest.raises(ConfigurationError, match=says):
                shop.preview(**which)
    assert shop.replays("find") == []


@REFUSED
def test_a_replay_has_a_name_a_reason_and_a_pace(world: World, shop: Archive) -> None:
    shop.past(order("1"), order("2"))
    for name in ("", "x" * 101, "a\nb", "a\0", None, 7):
        with pytest.raises(ConfigurationError, match="1 to 100 printable characters"):
            shop.start(name)  # type: ignore[arg-type]
    for why in ("", "  ", None):
        for act, args in (("start", ()), ("cancel", ()), ("set_pace", (1,))):
            with pytest.raises(ConfigurationError, match=r"\(\) is written down: say why"):
                more = EVERYTHING if act == "start" else {}
                shop.replays(act, "again", *args, why=why, **more)
    for pace in (0, -1, True, "fast", float("nan"), float("inf"), 1e-300):
        with pytest.raises(ConfigurationError, match="pace is a number of messages per second"):
            shop.start(pace=pace, type="order")
    assert shop.replays("find") == []
    assert world.query("SELECT count(*) FROM oncebox_action") == [(0,)]
    assert shop.start("x" * 100).total == 2
    assert shop.start("Grüße, Ada").total == 2


@REFUSED
def test_a_name_is_used_once(world: World, shop: Archive) -> None:
    shop.past(order("1"), order("2"))
    shop.start()
    with pytest.raises(ConfigurationError, match="there is a replay 'again' already: give another"):
        shop.start(ids=["1"])
    shop.drain()
    with pytest.raises(ConfigurationError, match="there is a replay 'again' already"):
        shop.start()
    assert Counter(world.effects()) == {"1": 2, "2": 2}
    assert world.query("SELECT count(*) FROM oncebox_action") == [(1,)]


@REFUSED
def test_only_what_goes_on_can_be_changed(world: World, shop: Archive) -> None:
    shop.past(kept("1"), kept("2"))
    for act, args in (("get", ()), ("cancel", ()), ("set_pace", (1,))):
        with pytest.raises(NotFound, match="there is no replay 'again' in this inbox"):
            shop.replays(act, "again", *args, **({"why": "x"} if act != "get" else {}))
    shop.start()
    with pytest.raises(ConfigurationError, match="pace is a number"):
        shop.replays("set_pace", "again", 0, why="x")
    shop.feed()
    shop.feed()
    with pytest.raises(ConfigurationError, match="is stored, it cannot be changed"):
        shop.replays("set_pace", "again", 1, why="x")
    shop.drain()
    for act, args in (("cancel", ()), ("set_pace", (1,))):
        with pytest.raises(ConfigurationError, match="replay 'again' is over"):
            shop.replays(act, "again", *args, why="x")
    shop.start("second")
    shop.cancel("second")
    with pytest.raises(ConfigurationError, match="replay 'second' is over"):
        shop.cancel("second")


@pytest.mark.only(COLOURS, quick=BOTH)
def test_what_operators_did_is_written_down(world: World, shop: Archive) -> None:
    shop.past(order("1"))
    replay = shop.replays("start", "again", why="a bug", by="ada", type="order", pace=SLOW)
    assert (replay.by, replay.why) == ("ada", "a bug")
    shop.replays("set_pace", "again", 2, why="faster", by="bob")
    cancelled = shop.replays("cancel", "again", why="no bug", by="eve")
    assert shop.replays("find") == [cancelled]
    assert world.query(
        "SELECT act, by_whom, why, reason, replay, message_id FROM oncebox_action ORDER BY id"
    ) == [
        ("replay", "ada", "a bug", "again", replay.id, None),
        ("pace", "bob", "faster", "again", replay.id, None),
        ("cancel", "eve", "no bug", "again", replay.id, None),
    ]
