"""Resequencing: numbered messages of a key run in the order of their numbers."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from test_dead import actions
from test_drain import LATER, Shop, kept, letters, past_due, redelivered
from test_retention import age, purge
from test_schema import read_rows

import oncebox.gaps
from oncebox import CloudEvents, Consumer, Delivery, Drainer, Gaps, Message, Reject, Retry
from oncebox.database import committed
from oncebox.database.steps import run
from oncebox.errors import ConfigurationError, NotFound, Unidentified
from oncebox.gaps import GapKeeper, skip_gap
from oncebox.outcome import Outcome
from oncebox.sources import FileSource
from oncebox.sources.contract import Batch
from oncebox.store.records import Deed, Gap
from oncebox.store.sequencing import Sequencing
from services import wait_until
from worlds import BOTH, SOME, World

NUMBERED = CloudEvents(sequence="number", epoch="era")
ONCE = Retry(max_attempts=1)
OLD = "0190a5f0-0000-7000-8000-00000000000"
"""The beginning of ids that came into being long ago."""


class Line(Shop):
    """A shop whose messages are numbered."""

    def __init__(self, world: World, **options: Any) -> None:
        super().__init__(world, **{"identity": NUMBERED, **options})

    def outcomes(self, *deliveries: Delivery) -> list[Outcome]:
        return self.world.process(self.inbox, deliveries)

    def gaps(self, act: str, *args: Any, **options: Any) -> Any:
        """What `inbox.gaps` does, in the colour of this world."""
        if self.world.is_async:
            return self.world.run(getattr(self.inbox.gaps, f"a{act}")(*args, **options))
        return getattr(self.inbox.gaps, act)(*args, **options)

    def look(self, what: str, *args: Any) -> Any:
        if self.world.is_async:
            return self.world.run(getattr(self.inbox.look, f"a{what}")(*args))
        return getattr(self.inbox.look, what)(*args)

    def missing(self, **wanted: Any) -> list[tuple[Any, ...]]:
        """The gaps: key, epoch, the missing number, the lowest that waits, how many wait."""
        found: list[Gap] = self.gaps("find", **wanted)
        return [(gap.key, gap.epoch, gap.next, gap.lowest, gap.early) for gap in found]


@pytest.fixture
def line(world: World) -> Line:
    return Line(world)


def step(number: int, key: str = "k", *, id: str | None = None, **more: Any) -> Delivery:
    """A numbered message; its id is its key and number."""
    return kept(id or f"{key}{number}", key, number=number, **more)


def steps(*numbers: int, key: str = "k") -> list[Delivery]:
    return [step(number, key) for number in numbers]


def early(world: World) -> list[str]:
    """What waits for numbers."""
    return sorted(id for id, state in world.states().items() if state == "early")


def let_wait(world: World, seconds: float, key: str | None = None) -> None:
    """Let numbers have been missing for so many seconds longer."""
    earlier = (
        f"waiting_since - interval '{seconds} seconds'"
        if world.is_postgres
        else f"waiting_since - {seconds} * 1000000"
    )
    world.execute(
        f"UPDATE oncebox_sequence SET waiting_since = {earlier}"
        + (f" WHERE key = '{key}'" if key else "")
    )


def lag(world: World, count: int | None) -> None:
    """Let a part of a source, which somebody reads, be behind by so many messages."""
    now, later = (
        ("clock_timestamp()", "clock_timestamp() + interval '1 hour'")
        if world.is_postgres
        else (str(time.time_ns() // 1000), str(2**62))
    )
    world.execute("DELETE FROM oncebox_position")
    world.execute(
        "INSERT INTO oncebox_position (consumer, source, part, next, lag, owner, until, seen_at, "
        f"moved_at) VALUES ('billing', 'topic', '0', 5, %s, 'reader', {later}, {now}, {now})",
        count,
    )


def set_mark(world: World) -> None:
    """Everything that comes now may be a duplicate of what was forgotten."""
    mark = "now() + interval '1 hour'" if world.is_postgres else str(4 * 10**15)
    world.execute(
        f"INSERT INTO oncebox_consumer (consumer, purged_before) VALUES ('billing', {mark})"
    )


# -- in order -------------------------------------------------------------------------------------


@pytest.mark.only(BOTH)
def test_what_comes_in_order_runs_at_once(world: World, line: Line) -> None:
    assert line.process(*steps(1, 2)) == ["done", "done"]
    assert line.process(*steps(3)) == ["done"]
    assert line.process(*steps(1, 2, key="other"), step(4)) == ["done"] * 3
    assert [id for id in line.ran() if id.startswith("k")] == ["k1", "k2", "k3", "k4"]
    assert line.missing() == []
    assert world.query("SELECT count(*) FROM oncebox_attempt") == [(0,)], "nothing was stored"


@pytest.mark.only(BOTH)
def test_what_comes_in_order_is_received_as_usual(world: World, line: Line) -> None:
    assert line.receive(*steps(1, 2)) == ["stored", "stored"]
    assert line.process(*steps(3)) == ["parked"], "it must not overtake what is stored"
    assert line.drain() == {"done": 3}
    assert line.ran() == ["k1", "k2", "k3"]
    assert line.process(*steps(4)) == ["done"]


@pytest.mark.only(BOTH)
def test_messages_without_keys_need_no_numbers(world: World, line: Line) -> None:
    assert line.process(kept("a", None), kept("b", None, number=7), step(2)) == [
        "done",
        "done",
        "parked",
    ]
    assert line.missing() == [("k", "", 1, 2, 1)]


@pytest.mark.only(BOTH)
def test_a_message_of_a_key_without_a_number_is_quarantined(world: World, line: Line) -> None:
    (outcome,) = line.outcomes(kept("1"))
    assert (outcome.kind, outcome.reason) == ("quarantined", "unidentified")
    assert "sequence number is missing" in str(outcome.error)
    assert line.process(step(1)) == ["done"]


# -- early ----------------------------------------------------------------------------------------


def test_what_comes_early_waits_for_its_number_and_runs_in_order(world: World, line: Line) -> None:
    """The whole of it, on every adapter."""
    assert line.process(step(3, occurred="x")) == ["parked"]
    assert line.process(*steps(2, 5)) == ["parked", "parked"]
    assert line.ran() == []
    assert world.states() == {"k2": "early", "k3": "early", "k5": "early"}
    assert world.pending() == []
    assert line.missing() == [("k", "", 1, 2, 3)]
    assert line.process(step(1)) == ["stored"], "it runs with what waited for it"
    assert world.states() == {"k1": "pending", "k2": "pending", "k3": "pending", "k5": "early"}
    assert line.drain() == {"done": 3}
    assert line.ran() == ["k1", "k2", "k3"]
    assert line.missing() == [("k", "", 4, 5, 1)]
    assert line.process(step(3, id="late"), step(5, id="taken")) == ["quarantined"] * 2
    assert [gap.lowest for gap in line.gaps("skip", "k", why="lost")] == [5]
    assert line.drain() == {"done": 1}
    assert line.process(*steps(6)) == ["done"]
    assert line.ran() == ["k5", "k6"]


@pytest.mark.only(SOME, quick=BOTH)
def test_what_is_received_early_waits_as_well(world: World, line: Line) -> None:
    assert line.receive(*steps(2, 4)) == ["parked", "parked"]
    assert line.drain() == {}
    assert line.receive(step(3), step(1), step(1, "other")) == ["stored"] * 3
    assert early(world) == []
    assert [row[2] for row in world.pending()] == ["ready"] * 5
    assert line.drain() == {"done": 5}
    assert [id for id in line.ran() if id != "other1"] == ["k1", "k2", "k3", "k4"]
    assert set(world.states().values()) == {"done"}


@pytest.mark.only(BOTH)
@pytest.mark.parametrize("receiving", [False, True])
def test_a_batch_out_of_order_runs_in_order(world: World, line: Line, receiving: bool) -> None:
    take = line.receive if receiving else line.process
    assert take(*steps(2, 1)) == ["stored", "stored"]
    assert line.drain() == {"done": 2}
    assert line.ran() == ["k1", "k2"]
    assert take(*steps(3)) == ["stored" if receiving else "done"]


@pytest.mark.only(BOTH)
def test_only_the_keys_that_are_out_of_order_are_stored(world: World, line: Line) -> None:
    batch = [step(2, "a"), step(1, "b"), step(1, "a"), step(2, "b"), step(2, "c")]
    assert line.process(*batch) == ["stored", "done", "stored", "done", "parked"]
    assert line.ran() == ["b1", "b2"]
    assert line.drain() == {"done": 2}
    assert line.ran() == ["a1", "a2"]


@pytest.mark.only(SOME, quick=BOTH)
def test_an_early_message_says_what_it_waits_for(world: World, line: Line) -> None:
    line.process(*steps(1, 4, 5), step(9, "other"))
    (detail,) = line.look("message", "k5")
    assert detail.message.state == "early"
    assert (detail.message.attempts, detail.message.processed_at) == (0, None)
    assert detail.waits == "for number 2 of its key: its own is 5"
    status = line.look("status")
    assert (status.early, status.gaps, status.ready, status.parked) == (3, 2, 0, 0)
    assert abs(datetime.now(UTC) - status.oldest_gap) < timedelta(hours=1)
    line.process(*steps(2, 3))
    line.drain()
    (detail,) = line.look("message", "k5")
    assert (detail.message.state, detail.waits) == ("done", None)
    assert [attempt.outcome for attempt in detail.attempts] == ["done"]
    status = line.look("status")
    assert (status.early, status.gaps) == (1, 1)


@pytest.mark.only(BOTH)
def test_duplicates_of_early_messages_are_absorbed(world: World, line: Line) -> None:
    assert line.process(*steps(2, 2)) == ["parked", "duplicate"]
    assert line.receive(*steps(2)) == ["duplicate"]
    assert line.process(*steps(1, 2)) == ["stored", "duplicate"]
    assert line.drain() == {"done": 2}
    assert line.process(*steps(1, 2)) == ["duplicate"] * 2
    assert line.ran() == ["k1", "k2"]


@pytest.mark.only(BOTH)
def test_an_early_message_keeps_all_that_its_handler_gets(world: World) -> None:
    seen: list[Message] = []

    def handle(message: Message, tx: Any) -> None:
        seen.append(message)

    line = Line(world)
    world.on(line.inbox, "whole", handle)
    two = step(2, type="whole", time="2026-01-02T03:04:05Z", dataschema="v1")
    line.process(two)
    line.process(*steps(1))
    line.drain()
    (message,) = seen
    assert (message.id, message.origin, message.key, message.type) == ("k2", "test", "k", "whole")
    assert message.payload == b'{"id":"k2"}'
    assert message.headers == {"content-type": "application/cloudevents+json"}
    assert message.occurred_at == datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@pytest.mark.only(BOTH)
def test_an_early_payload_is_there_until_it_ran_even_if_none_are_kept(world: World) -> None:
    line = Line(world, keep_payload=False)
    line.process(*steps(2))
    assert world.query("SELECT payload FROM oncebox_inbox") == [(None,)]
    line.process(*steps(1))
    assert line.drain() == {"done": 2}
    assert world.effects() == ["k1", "k2"]
    assert world.query("SELECT count(*) FROM oncebox_early") == [(0,)]


@pytest.mark.only(BOTH)
def test_an_early_message_that_was_redelivered_runs_alone(world: World, line: Line) -> None:
    line.process(redelivered(step(3)), step(2))
    line.process(*steps(1))
    alone = world.query("SELECT message_id, alone FROM oncebox_pending ORDER BY seq")
    assert [(id, bool(is_alone)) for id, is_alone in alone] == [
        ("k1", False),
        ("k2", False),
        ("k3", True),
    ]
    assert line.drain() == {"done": 3}
    assert line.ran() == ["k1", "k2", "k3"]


@pytest.mark.only(("sqlalchemy-psycopg",))
@pytest.mark.parametrize("act", ["process", "receive"])
def test_numbers_are_refused_at_levels_that_could_not_keep_an_order(world: World, act: str) -> None:
    Line(world)
    world._database = world.database().execution_options(isolation_level="REPEATABLE READ")
    line = Line(world)
    with pytest.raises(ConfigurationError, match="READ COMMITTED"):
        getattr(line, act)(*steps(1))
    assert world.states() == {}


@pytest.mark.only(BOTH)
def test_consumers_count_for_themselves(world: World, line: Line) -> None:
    other = Line(world, name="shipping")
    line.process(*steps(1, 3))
    assert other.process(*steps(3)) == ["parked"]
    assert other.missing() == [("k", "", 1, 3, 1)]
    assert line.missing() == [("k", "", 2, 3, 1)]
    with pytest.raises(NotFound):
        other.gaps("skip", "nobody", why="x")
    other.gaps("skip", "k", why="not wanted")
    assert other.drain() == {"done": 1}
    assert line.missing() == [("k", "", 2, 3, 1)]


# -- numbers that are not to be trusted -----------------------------------------------------------


@pytest.mark.only(BOTH)
def test_a_late_number_is_quarantined_and_can_be_run(world: World, line: Line) -> None:
    line.process(*steps(1, 2))
    (outcome,) = line.outcomes(step(1, id="again"))
    assert (outcome.kind, outcome.reason) == ("quarantined", "late number")
    assert world.states()["again"] == "quarantined"
    assert line.process(step(3)) == ["done"], "nobody waits for it"
    assert line.dead("retry", reason="late number", why="it is new").done == 1
    assert line.drain() == {"done": 1}
    assert line.ran() == ["k1", "k2", "k3", "again"]
    assert world.states()["again"] == "done"
    assert line.process(step(1, id="again")) == ["duplicate"]


@pytest.mark.only(BOTH)
def test_a_late_number_can_be_discarded(world: World, line: Line) -> None:
    line.receive(*steps(1), step(0))
    assert letters(world)[0][:3] == ("k0", "quarantined", "late number")
    assert line.dead("discard", reason="late number", why="old").done == 1
    assert world.states() == {"k1": "pending", "k0": "discarded"}
    assert line.process(step(0)) == ["duplicate"]


@pytest.mark.only(BOTH)
def test_a_number_that_is_taken_is_quarantined_and_can_be_run(world: World, line: Line) -> None:
    line.process(*steps(3))
    batch = [step(3, id="rival"), step(2), step(2, id="twin")]
    found = line.outcomes(*batch)
    assert [o.kind.value for o in found] == ["quarantined", "parked", "quarantined"]
    assert {o.reason for o in found} == {None, "number taken"}
    assert [row[:3] for row in letters(world)] == [
        ("rival", "quarantined", "number taken"),
        ("twin", "quarantined", "number taken"),
    ]
    line.process(*steps(1))
    line.drain()
    assert line.ran() == ["k1", "k2", "k3"]
    assert line.dead("retry", message_id="rival", why="both").done == 1
    assert line.dead("discard", message_id="twin", why="one is enough").done == 1
    assert line.drain() == {"done": 1}
    assert line.ran() == ["rival"]
    assert world.states()["twin"] == "discarded"


@pytest.mark.only(BOTH)
def test_other_bytes_of_an_early_message_are_quarantined_and_released_past_the_buffer(
    world: World, line: Line
) -> None:
    line.process(*steps(2))
    other = step(2, data={"id": "other"})
    assert line.process(other) == ["quarantined"]
    assert line.dead("retry", reason="other bytes", why="run it").done == 1
    assert line.drain() == {"done": 1}
    assert line.ran() == ["other"]
    assert early(world) == ["k2"]


@pytest.mark.only(BOTH)
@pytest.mark.parametrize("receiving", [False, True])
def test_a_message_that_came_too_late_counts_as_present(world: World, receiving: bool) -> None:
    """It may be a duplicate of what was forgotten: then its number was run before."""
    line = Line(world)
    set_mark(world)
    take = line.receive if receiving else line.process
    assert take(step(1, id=f"{OLD}1"), step(2)) == [
        "quarantined",
        "stored" if receiving else "done",
    ]
    assert take(step(4, id=f"{OLD}4"), step(5)) == ["quarantined", "parked"]
    assert line.missing() == [("k", "", 3, 4, 2)]
    assert line.look("status").early == 1, "the other one is a dead letter"
    assert take(step(3)) == ["stored"]
    assert line.drain()["done"] == (3 if receiving else 2)
    assert line.ran() == ["k2", "k3", "k5"]
    assert {row[2] for row in letters(world)} == {"too late"}
    assert line.missing() == []
    assert take(step(4, id="rival")) == ["quarantined"]
    assert letters(world)[-1][2] == "late number"
    assert line.dead("retry", reason="too late", why="they are new").done == 2
    assert line.drain() == {"done": 2}
    assert line.ran() == [f"{OLD}1", f"{OLD}4"]


@pytest.mark.only(BOTH)
def test_too_late_in_a_batch_out_of_order_does_not_run(world: World, line: Line) -> None:
    set_mark(world)
    batch = [step(3), step(2, id=f"{OLD}2"), step(1)]
    assert line.process(*batch) == ["stored", "quarantined", "stored"]
    assert line.drain() == {"done": 2}
    assert line.ran() == ["k1", "k3"]
    assert world.query("SELECT count(*) FROM oncebox_early") == [(0,)]


# -- types that nobody wants ----------------------------------------------------------------------


@pytest.mark.only(BOTH)
@pytest.mark.parametrize("by_name", [True, False], ids=["ignore()", "unknown_type"])
def test_ignored_messages_leave_no_gaps(world: World, by_name: bool) -> None:
    line = Line(world) if by_name else Line(world, unknown_type="ignore")
    if by_name:
        line.inbox.ignore("noise")
    noise = [step(n, type="noise") for n in range(7)]
    assert line.process(step(1), noise[2], step(3)) == ["done", "ignored", "done"]
    assert line.process(step(6), noise[5]) == ["parked", "parked"]
    assert line.process(noise[4]) == ["stored"]
    assert line.drain() == {"ignored": 2, "done": 1}
    assert line.receive(step(7), step(8, type="noise"), step(9)) == ["stored"] * 3
    assert line.drain() == {"ignored": 1, "done": 2}
    assert line.ran() == ["k1", "k3", "k6", "k7", "k9"]
    assert line.missing() == []
    assert line.process(noise[4]) == ["duplicate"]


@pytest.mark.only(BOTH)
def test_unknown_types_are_dead_letters_that_leave_no_gaps(world: World, line: Line) -> None:
    assert line.process(step(2), step(1, type="strange")) == ["stored"] * 2
    assert line.drain() == {"dead": 1, "done": 1}
    assert line.process(step(3, type="strange"), step(4)) == ["dead", "done"]
    assert line.ran() == ["k2", "k4"]


# -- failures -------------------------------------------------------------------------------------


@pytest.mark.only(BOTH)
def test_what_waited_for_a_number_waits_behind_a_failing_head(world: World) -> None:
    line = Line(world, retry=LATER)
    line.bad["k1"] = ValueError("not yet")
    assert line.process(*steps(1, 2, 5)) == ["failed", "parked", "parked"]
    assert early(world) == ["k5"], "the number of a message that fails is not missing"
    assert line.process(*steps(4)) == ["parked"]
    assert line.process(*steps(3)) == ["stored"]
    assert world.pending() == [
        ("k1", 1, "retrying"),
        *((f"k{n}", 0, "parked") for n in (2, 3, 4, 5)),
    ]
    assert line.drain() == {}
    line.bad.clear()
    line.ran()
    past_due(world)
    assert line.drain() == {"done": 5}
    assert line.ran() == ["k1", "k2", "k3", "k4", "k5"]


@pytest.mark.only(BOTH)
@pytest.mark.parametrize("act", ["retry", "discard"])
def test_what_waited_for_a_number_waits_behind_a_dead_letter(world: World, act: str) -> None:
    line = Line(world, retry=ONCE)
    line.bad["k1"] = ValueError("never")
    assert line.process(*steps(1, 3)) == ["dead", "parked"]
    assert early(world) == ["k3"]
    assert line.process(*steps(2)) == ["stored"]
    assert world.pending() == [("k2", 0, "parked"), ("k3", 0, "parked")]
    assert line.process(*steps(4)) == ["parked"]
    assert line.drain() == {}
    line.bad.clear()
    line.ran()
    assert line.dead(act, key="k", why="mended").done == 1
    line.drain()
    assert line.ran() == [*(["k1"] if act == "retry" else []), "k2", "k3", "k4"]


@pytest.mark.only(BOTH)
def test_an_early_message_that_dies_holds_what_follows(world: World) -> None:
    line = Line(world, retry=ONCE)
    line.bad["k2"] = Reject("no")
    line.process(*steps(3, 2))
    line.process(*steps(1))
    assert line.drain() == {"done": 1, "dead": 1, "parked": 1}
    assert world.pending() == [("k3", 0, "parked")]
    assert line.process(*steps(4)) == ["parked"]
    line.bad.clear()
    line.dead("retry", key="k", why="mended")
    assert line.drain() == {"done": 3}
    assert line.ran()[-3:] == ["k2", "k3", "k4"]


@pytest.mark.only(BOTH)
def test_a_batch_that_is_run_again_counts_its_numbers_once(world: World, line: Line) -> None:
    """The unit is rolled back as a whole, numbers included."""

    class Conflict(Exception):
        sqlstate = "40001"

    line.bad["k1"] = Conflict()
    stop = iter([None, None])
    original = line.handle

    def handle(payload: dict[str, Any], tx: Any) -> Any:
        if next(stop, 1) == 1:
            line.bad.clear()
        yield from original(payload, tx)

    world.on(line.inbox, "moody", handle)
    batch = [step(1, type="moody"), step(2), step(4)]
    assert line.process(*batch) == ["done", "done", "parked"]
    assert line.ran().count("k1") == 3
    assert world.effects() == ["k1", "k2"]
    assert line.missing() == [("k", "", 3, 4, 1)]


# -- epochs ---------------------------------------------------------------------------------------


@pytest.mark.only(SOME, quick=BOTH)
def test_epochs_of_a_key_are_counted_apart(world: World, line: Line) -> None:
    def at(era: str, number: int) -> Delivery:
        return step(number, id=f"{era}{number}", era=era)

    assert line.process(at("a", 1), at("b", 1), at("a", 2), at("b", 3)) == [
        *["done"] * 3,
        "parked",
    ]
    assert line.ran() == ["a1", "b1", "a2"]
    assert line.process(at("a", 4), at("b", 2), at("a", 3)) == ["stored"] * 3
    assert line.drain() == {"done": 4}
    ran = line.ran()
    assert [id for id in ran if id[0] == "a"] == ["a3", "a4"]
    assert [id for id in ran if id[0] == "b"] == ["b2", "b3"]
    assert line.process(at("a", 6), at("b", 5), at("b", 4)) == ["parked", "stored", "stored"]
    assert line.missing() == [("k", "a", 5, 6, 1)]
    assert line.drain() == {"done": 2}, "the gap of an epoch does not hold the next"
    assert line.process(at("", 1), at("c", 2)) == ["done", "parked"]
    line.gaps("skip", "k", why="both")
    assert line.missing() == []
    assert sorted(row[4] for row in actions(world)) == [
        "key 'k' of epoch 'a': number 5",
        "key 'k' of epoch 'c': number 1",
    ]


@pytest.mark.only(BOTH)
def test_where_one_epoch_is_out_of_order_the_other_does_not_overtake_it(
    world: World, line: Line
) -> None:
    """One transaction would run the one and store the other: the key is stored as a whole."""
    batch = [step(2, era="a", id="a2"), step(1, era="b", id="b1"), step(1, era="a", id="a1")]
    assert line.process(*batch) == ["stored"] * 3
    assert line.drain() == {"done": 3}
    assert line.ran() == ["a1", "a2", "b1"]


# -- gaps -----------------------------------------------------------------------------------------


@pytest.mark.only(SOME, quick=BOTH)
def test_a_number_that_does_not_come_is_skipped_after_the_limit(
    world: World, line: Line, caplog: pytest.LogCaptureFixture
) -> None:
    line.process(*steps(3, 4, 7))
    let_wait(world, 30)
    assert line.drain() == {}, "it may still come"
    let_wait(world, 31)
    assert line.drain() == {"done": 2}
    assert line.ran() == ["k3", "k4"]
    assert actions(world) == [
        ("skip", "oncebox", "not come within 60 seconds", None, "key 'k': numbers 1 to 2")
    ]
    assert "skipped key 'k': numbers 1 to 2; they did not come" in caplog.text
    assert line.missing() == [("k", "", 5, 7, 1)], "for the next one it is waited anew"
    assert line.drain() == {}
    assert line.process(*steps(2, 5)) == ["quarantined", "done"]
    assert letters(world)[0][2] == "late number"
    let_wait(world, 61)
    assert line.drain() == {"done": 1}
    assert line.ran() == ["k5", "k7"]


@pytest.mark.only(BOTH)
def test_every_step_of_a_key_gives_it_time(world: World, line: Line) -> None:
    line.process(*steps(5, 7))
    let_wait(world, 59)
    line.process(*steps(8))
    let_wait(world, 59)
    line.process(*steps(1, 2))
    (gap,) = line.gaps("find")
    assert gap.next == 3
    assert datetime.now(UTC) - gap.waiting_since < timedelta(seconds=50)
    assert line.drain() == {}
    line.process(*steps(9, 10))
    let_wait(world, 61)
    line.process(*steps(11))
    assert line.drain() == {"done": 1}, "one more that waits gives it no time"
    assert line.ran() == ["k1", "k2", "k5"]


@pytest.mark.only(BOTH)
def test_a_drainer_skips_what_it_saw_missing_for_long_enough(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oncebox.gaps, "LOOK_EVERY", 0.01)
    line = Line(world, gaps=Gaps(limit=timedelta(seconds=0.2)))
    line.process(*steps(2))
    drainer = Drainer(line.inbox, poll=0.05)
    drainer.on_beat = lambda waits: drainer.stop() if line.runs else None
    drainer.run()
    assert line.ran() == ["k2"]
    assert line.process(*steps(1)) == ["quarantined"]


@pytest.mark.only(BOTH)
def test_a_gap_can_be_held(world: World, caplog: pytest.LogCaptureFixture) -> None:
    line = Line(world, gaps=Gaps(then="hold"))
    line.process(*steps(3))
    let_wait(world, 3600)
    keeper = make_keeper(line, hurry=True)
    for _ in range(3):
        assert run(keeper.step()) is False
        keeper._look_at = 0
    told = [r.message for r in caplog.records if "did not come" in r.message]
    assert told == [
        "billing: key 'k': numbers 1 to 2 did not come: the key waits, and is held; "
        "see `oncebox gaps`"
    ]
    assert caplog.records[-1].levelno == logging.ERROR
    assert early(world) == ["k3"]
    assert actions(world) == []
    line.process(*steps(1, 2))
    assert line.drain() == {"done": 3}
    assert line.ran() == ["k1", "k2", "k3"]


@pytest.mark.only(BOTH)
def test_a_gap_that_is_too_long_is_held_and_does_not_hide_others(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """A number that is far off is rather wrong: those before it are not given up."""
    line = Line(world, gaps=Gaps(longest=5))
    far = [step(7, f"far {n}") for n in range(oncebox.gaps.AT_ONCE + 3)]
    line.process(*far)
    let_wait(world, 600)
    line.process(*steps(6))
    let_wait(world, 61)
    assert line.drain() == {"done": 1}
    assert line.ran() == ["k6"]
    assert "too many are missing to go on" in caplog.text
    assert len(early(world)) == len(far)
    line.gaps("skip", "far 0", why="it is right after all")
    assert line.drain() == {"done": 1}


@pytest.mark.only(BOTH)
def test_more_gaps_are_skipped_than_are_looked_at_at_once(
    world: World, line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oncebox.gaps, "AT_ONCE", 2)
    line.process(*(step(2, f"key {n}") for n in range(5)))
    let_wait(world, 61)
    assert line.drain() == {"done": 5}
    assert len(actions(world)) == 5


@pytest.mark.only(BOTH)
def test_where_the_first_number_may_be_any_the_lowest_begins(world: World) -> None:
    line = Line(world, gaps=Gaps(first=None, longest=1))
    assert line.process(*steps(42, 44, 43)) == ["parked"] * 3
    assert line.missing() == [("k", "", None, 42, 3)]
    (detail,) = line.look("message", "k43")
    assert detail.waits == "for what comes before of its key: its own is 43"
    assert line.drain() == {}
    let_wait(world, 61)
    assert line.drain() == {"done": 3}
    assert line.ran() == ["k42", "k43", "k44"]
    assert actions(world)[0][4] == "key 'k': what is before number 42"
    assert line.process(*steps(41, 45)) == ["quarantined", "done"]
    assert line.process(*steps(1, key="l")) == ["parked"], "nobody knows that it is the first"


@pytest.mark.only(BOTH)
def test_the_first_number_is_what_the_policy_says(world: World) -> None:
    line = Line(world, gaps=Gaps(first=0))
    assert line.process(*steps(0, 1)) == ["done", "done"]
    assert line.process(*steps(1, key="l")) == ["parked"]


# -- the clock of a gap ---------------------------------------------------------------------------


class Clock:
    """The time that passes between two looks of a worker."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(oncebox.gaps, "time", clock)
    return clock


def make_keeper(line: Line, *, hurry: bool = False) -> GapKeeper:
    inbox = line.inbox
    database = run(inbox._database_for(is_async=False))
    keeper = GapKeeper(database, inbox._store, inbox.name, inbox._gaps)
    if hurry:
        keeper.hurry()
    return keeper


def watch(keeper: GapKeeper, clock: Clock, seconds: float) -> bool:
    """Let time pass, and look; says whether anything was skipped."""
    clock.now += seconds
    return run(keeper.step())


@pytest.mark.only(BOTH)
def test_a_worker_gives_a_number_as_much_time_as_it_has_watched(
    world: World, line: Line, clock: Clock
) -> None:
    """Nobody knows what was before it began: everything may have stood still."""
    line.process(*steps(2))
    let_wait(world, 3600)
    keeper = make_keeper(line)
    assert not watch(keeper, clock, 0)
    assert not watch(keeper, clock, 59)
    assert watch(keeper, clock, 2)
    assert world.states() == {"k2": "pending"}


@pytest.mark.only(BOTH)
def test_a_worker_looks_once_a_second(world: World, line: Line, clock: Clock) -> None:
    keeper = make_keeper(line, hurry=True)
    assert not watch(keeper, clock, 0)
    line.process(*steps(2))
    let_wait(world, 61)
    assert not watch(keeper, clock, 0.9)
    assert watch(keeper, clock, 0.2)


@pytest.mark.only(BOTH)
def test_the_clock_of_a_gap_stands_still_while_a_source_lags(
    world: World, line: Line, clock: Clock
) -> None:
    keeper = make_keeper(line)
    line.process(*steps(2))
    let_wait(world, 3600)
    lag(world, 10)
    assert not watch(keeper, clock, 61)
    assert not watch(keeper, clock, 3600)
    lag(world, 0)
    assert not watch(keeper, clock, 59)
    lag(world, 1)
    assert not watch(keeper, clock, 10)
    lag(world, 0)
    assert not watch(keeper, clock, 59)
    assert watch(keeper, clock, 2)


@pytest.mark.only(BOTH)
def test_a_lag_that_ended_before_the_limit_was_over_counts_as_well(
    world: World, line: Line, clock: Clock
) -> None:
    keeper = make_keeper(line)
    line.process(*steps(2))
    lag(world, 10)
    assert not watch(keeper, clock, 3600)
    lag(world, 0)
    let_wait(world, 61)
    assert not watch(keeper, clock, 59)
    assert watch(keeper, clock, 2)


@pytest.mark.only(BOTH)
def test_a_part_that_nobody_reads_lags(world: World, line: Line, clock: Clock) -> None:
    keeper = make_keeper(line)
    line.process(*steps(2))
    let_wait(world, 3600)
    lag(world, 0)
    world.execute("UPDATE oncebox_position SET owner = NULL")
    assert not watch(keeper, clock, 61)
    lag(world, None)
    assert watch(keeper, clock, 61), "nothing is to come of what has ended"


@pytest.mark.only(BOTH)
def test_who_drains_once_waits_for_sources_too(world: World, line: Line) -> None:
    line.process(*steps(2))
    let_wait(world, 3600)
    lag(world, 3)
    assert line.drain() == {}
    lag(world, 0)
    assert line.drain() == {"done": 1}


class HaltingSource(FileSource):
    """A file that is read to its end only when it is let."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.let = threading.Event()
        self._has_begun = False

    def read(self, limit: int, seconds: float) -> Batch | None:
        if self._has_begun and not self.let.wait(0.05):
            return None
        self._has_begun = True
        return super().read(1, seconds)


@pytest.mark.only(BOTH)
def test_what_a_source_still_has_is_waited_for(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real source, its consumer and a drainer."""
    monkeypatch.setattr(oncebox.gaps, "LOOK_EVERY", 0.01)
    line = Line(world, gaps=Gaps(limit=timedelta(seconds=0.1)))
    lines = [step(n, partitionkey="k").body + b"\n" for n in (2, 1)]
    (tmp_path / "events").write_bytes(b"".join(lines))
    source = HaltingSource(tmp_path / "events")
    drainer = Drainer(line.inbox, poll=0.02)
    drainer.on_beat = lambda waits: drainer.stop() if len(line.runs) == 2 else None
    services = [Consumer(line.inbox, source, mode="stored"), drainer]
    threads = [threading.Thread(target=service.run) for service in services]
    for thread in threads:
        thread.start()
    long = timedelta(seconds=0.6)
    wait_until(
        lambda: any(datetime.now(UTC) - g.waiting_since > long for g in line.gaps("find")),
        "the gap does not grow old",
    )
    source.let.set()
    for thread in threads:
        thread.join(60)
    assert line.ran() == ["k1", "k2"]
    assert actions(world) == []


# -- operators ------------------------------------------------------------------------------------


@pytest.mark.only(BOTH)
def test_gaps_are_found_the_oldest_first(world: World, line: Line) -> None:
    line.process(step(1), step(4), step(3, "l"), step(9, "l"))
    let_wait(world, 5, key="l")
    assert line.missing() == [("l", "", 1, 3, 2), ("k", "", 2, 4, 1)]
    assert line.missing(limit=1) == [("l", "", 1, 3, 2)]
    assert line.missing(key="k") == [("k", "", 2, 4, 1)]
    assert line.missing(key="m") == []
    (gap,) = line.gaps("find", key="k")
    assert abs(datetime.now(UTC) - gap.waiting_since) < timedelta(hours=1)


@pytest.mark.only(SOME, quick=BOTH)
def test_an_operator_lets_a_key_go_on(world: World, line: Line) -> None:
    line.process(step(1), step(4), step(5), step(7), step(2, "l"))
    (skipped,) = line.gaps("skip", "k", why="the producer lost it", by="ada")
    assert (skipped.key, skipped.next, skipped.lowest) == ("k", 2, 4)
    assert actions(world) == [
        ("skip", "ada", "the producer lost it", None, "key 'k': numbers 2 to 3")
    ]
    assert line.drain() == {"done": 2}
    assert line.missing() == [("l", "", 1, 2, 1), ("k", "", 6, 7, 1)]
    assert line.process(*steps(3, 6)) == ["quarantined", "stored"]
    line.drain()
    assert line.ran() == ["k1", "k4", "k5", "k6", "k7"]
    with pytest.raises(NotFound, match="key 'k' waits for no number"):
        line.gaps("skip", "k", why="again")
    with pytest.raises(ConfigurationError, match="say why"):
        line.gaps("skip", "l", why=" ")
    assert len(actions(world)) == 1


@pytest.mark.only(("psycopg",))
def test_a_key_that_is_busy_is_left_alone(world: World, line: Line) -> None:
    line.process(*steps(2))
    let_wait(world, 61)
    began, go_on = threading.Event(), threading.Event()

    def slow(payload: dict[str, Any]) -> None:
        began.set()
        assert go_on.wait(30)

    world.on(line.inbox, "slow", slow)
    thread = threading.Thread(target=line.process, args=[step(1, type="slow", era="other")])
    thread.start()
    try:
        assert began.wait(30)
        assert line.gaps("skip", "k", why="now") == []
        assert line.drain() == {}
        assert actions(world) == []
    finally:
        go_on.set()
        thread.join()
    assert len(line.gaps("skip", "k", why="now")) == 1


@pytest.mark.only(BOTH)
def test_a_gap_that_has_changed_meanwhile_is_not_skipped(world: World, line: Line) -> None:
    """Between the look and the lock of the key the number came, and another one is missing."""
    line.process(*steps(2))
    (gap,) = line.gaps("find")
    line.process(*steps(1, 4))
    inbox = line.inbox
    skip = partial(
        skip_gap, store=inbox._store, consumer=inbox.name, gap=gap, deed=Deed("skip", "x", "y")
    )
    assert run(committed(run(inbox._database_for(is_async=False)), skip)) is False
    assert line.missing() == [("k", "", 3, 4, 1)]
    assert actions(world) == []


# -- many -----------------------------------------------------------------------------------------


def tell_of(monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    """Let stores store so many early messages of a key at once."""
    monkeypatch.setattr(Sequencing, "at_once", limit)


@pytest.mark.only(BOTH)
@pytest.mark.parametrize("count", [8, 9, 10, 11])
def test_a_long_line_of_early_messages_is_stored_bit_by_bit(
    world: World, line: Line, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    tell_of(monkeypatch, 3)
    numbers = list(range(2, count + 1))
    random.Random(count).shuffle(numbers)
    assert set(line.process(*steps(*numbers))) == {"parked"}
    assert line.process(*steps(1)) == ["stored"]
    assert len(world.pending()) == 4
    assert line.drain() == {"done": count}
    assert line.ran() == [f"k{n}" for n in range(1, count + 1)]
    assert line.missing() == []
    assert line.look("status").gaps == 0
    assert line.process(step(count + 1)) == ["done"]


@pytest.mark.only(BOTH)
def test_a_line_that_was_cut_goes_on_with_what_arrives(
    world: World, line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    tell_of(monkeypatch, 2)
    line.process(*steps(2, 3, 4, 5, 6, 8))
    line.process(*steps(1))
    assert line.process(*steps(9)) == ["parked"]
    assert len(world.pending()) == 5
    line.drain()
    assert line.process(*steps(7)) == ["stored"]
    line.drain()
    assert line.ran() == [f"k{n}" for n in range(1, 10)]


@pytest.mark.only(BOTH)
def test_a_number_is_taken_also_by_one_that_is_not_told_of(
    world: World, line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    tell_of(monkeypatch, 2)
    line.process(*steps(2, 3, 4, 6))
    assert line.process(step(6, id="rival"), step(4, id="rogue"), step(1)) == [
        "quarantined",
        "quarantined",
        "stored",
    ]
    assert {row[2] for row in letters(world)} == {"number taken"}
    line.drain()
    assert line.ran() == ["k1", "k2", "k3", "k4"]
    assert line.missing() == [("k", "", 5, 6, 1)]


@pytest.mark.only(BOTH)
def test_a_count_that_is_through_is_no_gap(
    world: World, line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More waited than was told of, but it was admitted all the same, with its rival."""
    tell_of(monkeypatch, 2)
    line.process(*steps(2, 3, 4))
    line.process(step(4, id="rival"), step(1))
    let_wait(world, 61)
    assert line.missing() == []
    line.drain()
    assert line.ran() == ["k1", "k2", "k3", "k4"]
    assert actions(world) == []


@pytest.mark.only(BOTH)
@pytest.mark.parametrize("seed", [1, 2])
def test_whoever_brings_them_and_in_whatever_order_they_run_in_order(
    world: World, seed: int
) -> None:
    """Threads bring messages of few keys, one by one and in batches, with duplicates."""
    line, chance = Line(world), random.Random(seed)
    everything = [step(n, key) for key in "abc" for n in range(1, 31)]
    chance.shuffle(everything)
    copies = [*everything, *chance.sample(everything, 20)]
    shares = [copies[n::3] for n in range(3)]
    errors: list[BaseException] = []

    def bring(share: list[Delivery], take: Callable[..., Any]) -> None:
        try:
            while share:
                batch = [share.pop() for _ in range(min(len(share), 5))]
                take(*batch)
        except BaseException as error:
            errors.append(error)

    takes = [line.process, line.receive, line.process]
    threads = [
        threading.Thread(target=bring, args=pair) for pair in zip(shares, takes, strict=True)
    ]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        line.drain()
    line.drain()
    assert errors == []
    ran = line.ran()
    for key in "abc":
        assert [id for id in ran if id[0] == key] == [f"{key}{n}" for n in range(1, 31)]
    assert letters(world) == []
    assert set(world.states().values()) == {"done"}


FILL = {
    "sequence": "INSERT INTO oncebox_sequence (consumer, key, epoch, next) "
    "SELECT 'billing', 'old ' || n, '', 2 FROM generate_series(1, 50000) n",
    "early": "INSERT INTO oncebox_early (consumer, key, epoch, number, seq, lane, origin, "
    "message_id, type, version, payload, alone) SELECT 'billing', 'old ' || n, '', 9, -n, 0, '', "
    "n, '', 1, '', false FROM generate_series(1, 50000) n",
    "inbox": "INSERT INTO oncebox_inbox (consumer, origin, message_id, seq, type, version) "
    "SELECT 'billing', '', n, -n, '', 1 FROM generate_series(1, 50000) n",
    "pending": "INSERT INTO oncebox_pending (consumer, lane, seq, origin, message_id, type, "
    "version, key, payload) SELECT 'billing', 0, -n, '', n, '', 1, 'old ' || n, '' "
    "FROM generate_series(1, 50000) n",
}


@pytest.mark.only(("psycopg",))
@pytest.mark.parametrize("table", FILL)
def test_numbers_planned_on_an_empty_table_do_not_scan_a_full_one(
    world: World, line: Line, table: str
) -> None:
    """A session keeps the plans that it made when there was nothing to scan."""

    def play(*keys: str) -> None:
        line.process(*(step(n, key) for key in keys for n in (3, 2, 5)))
        line.process(*(step(1, key) for key in keys))
        run(keeper.step())
        keeper._look_at = 0

    keeper = make_keeper(line, hurry=True)
    world.execute(f"ALTER TABLE oncebox_{table} SET (autovacuum_enabled = off)")
    world.execute(FILL[table].replace("50000", "1"))
    world.execute("ANALYZE")  # now the planner knows how small the tables are
    for number in range(12):  # long enough for a generic plan
        play(f"warm {number}")
    world.execute(FILL[table].replace("(1, 50000)", "(2, 50000)"))
    play(*(f"new {number}" for number in range(50)))
    line.inbox.close()  # a session reports what it read when it ends, at the latest
    wait_until(lambda: read_rows(world, table) > 0, "nothing was read")
    assert read_rows(world, table) < 10_000, "200 messages must not read the whole table"


# -- other acts -----------------------------------------------------------------------------------


@pytest.mark.only(BOTH)
def test_a_purge_leaves_what_waits_for_numbers(world: World, line: Line) -> None:
    line.process(*steps(1, 3))
    age(world, 8)
    line.process(step(1, "new"))
    assert purge(world, line.inbox).forgotten == 1
    assert world.states() == {"k3": "early", "new1": "done"}
    assert line.process(*steps(2)) == ["stored"], "what was forgotten is still counted"
    assert line.drain() == {"done": 2}
    assert line.ran() == ["k1", "new1", "k2", "k3"]


@pytest.mark.only(BOTH)
def test_a_replay_runs_in_the_order_of_numbers_and_without_what_is_early(
    world: World, line: Line
) -> None:
    line.process(*steps(3, 2))
    line.process(*steps(1, 6))
    line.drain()
    line.process(*steps(4))
    line.ran()
    preview = line.inbox.replays.preview(key="k")
    assert (preview.count, preview.in_other_states) == (4, 1)
    assert line.inbox.replays.start("again", key="k", why="a test").total == 4
    assert line.drain() == {"done": 4}
    assert line.ran() == ["k1", "k2", "k3", "k4"]
    assert early(world) == ["k6"]
    assert line.missing() == [("k", "", 5, 6, 1)]


class Mendable(CloudEvents):
    """An identity that knows no delivery until it is mended."""

    mended = False

    def __call__(self, delivery: Delivery) -> Message:
        if not self.mended:
            raise Unidentified("who is it?")
        return super().__call__(delivery)


@pytest.mark.only(SOME, quick=BOTH)
def test_released_deliveries_are_put_in_order(world: World) -> None:
    """As if they arrived now: nobody knew their numbers before."""
    identity = Mendable(sequence="number")
    line = Line(world, identity=identity)
    assert line.process(*steps(5, 3, 2)) == ["quarantined"] * 3
    identity.mended = True
    acted = line.dead("retry", state="quarantined", why="mended")
    assert (acted.done, acted.left) == (3, 0)
    assert letters(world) == []
    assert early(world) == ["k2", "k3", "k5"]
    assert line.drain() == {}
    assert line.process(*steps(1)) == ["stored"]
    assert line.drain() == {"done": 3}
    assert line.ran() == ["k1", "k2", "k3"]


@pytest.mark.only(BOTH)
def test_released_deliveries_may_be_quarantined_for_another_reason(world: World) -> None:
    identity = Mendable(sequence="number")
    line = Line(world, identity=identity)
    line.process(step(1, id="lost"), step(4, id="rival"), step(2))
    identity.mended = True
    line.process(*steps(1, 4))
    acted = line.dead("retry", state="quarantined", why="mended")
    assert (acted.done, acted.left) == (1, 2)
    assert [row[:3] for row in letters(world)] == [
        ("lost", "quarantined", "late number"),
        ("rival", "quarantined", "number taken"),
    ]
    assert line.drain() == {"done": 1}
    assert line.dead("retry", state="quarantined", why="all the same").done == 2
    assert line.drain() == {"done": 2}
    assert line.ran() == ["k1", "k2", "lost", "rival"]
