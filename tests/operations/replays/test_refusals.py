"""Replays that are refused, and the audit log."""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from typing import Any

import pytest

from oncebox.errors import ConfigurationError, NotFound
from support.inboxes import keyed
from support.replays import EVERYTHING, SLOW, SYNC_AND_ASYNC, ReplayHarness
from support.worlds import BOTH, World, order

pytestmark = pytest.mark.only(BOTH)
REFUSED = pytest.mark.only(("sqlite3", "psycopg-async"))
WHICH = "a replay without a filter would run every finished message again"
FINISHED = "state must be done or discarded"


@REFUSED
def test_a_replay_needs_a_filter(world: World, harness: ReplayHarness) -> None:
    harness.past(order("1"))
    mistakes: list[tuple[dict[str, Any], str]] = [
        ({}, WHICH),
        ({"type": None, "since": None}, WHICH),
        ({"state": "done"}, WHICH),
        ({"topic": "orders"}, "unknown filter 'topic', known: ids, origin"),
        ({"ids": "1"}, "ids must be a list of message ids"),
        ({"ids": [1, "2"]}, "ids must be a list of message ids"),
        ({"since": "2026-07-14"}, "since must be a datetime, got '2026-07-14'"),
        ({"until": datetime(2026, 7, 14)}, "until needs a time zone"),
        ({"type": "order", "state": "pending"}, FINISHED),
        ({"type": "order", "state": None}, FINISHED),
    ]
    for which, says in mistakes:
        with pytest.raises(ConfigurationError, match=says):
            harness.replays("start", "again", why="a test", **which)
        if says is not WHICH:
            with pytest.raises(ConfigurationError, match=says):
                harness.preview(**which)
    assert harness.replays("find") == []


@REFUSED
def test_a_replay_has_a_name_a_reason_and_a_pace(world: World, harness: ReplayHarness) -> None:
    harness.past(order("1"), order("2"))
    for name in ("", "x" * 101, "a\nb", "a\0", None, 7):
        with pytest.raises(ConfigurationError, match="1 to 100 printable characters"):
            harness.start(name)  # type: ignore[arg-type]
    for why in ("", "  ", None):
        for act, args in (("start", ()), ("cancel", ()), ("set_pace", (1,))):
            with pytest.raises(ConfigurationError, match="is missing: the audit log"):
                more = EVERYTHING if act == "start" else {}
                harness.replays(act, "again", *args, why=why, **more)
    for pace in (0, -1, True, "fast", float("nan"), float("inf"), 1e-300):
        with pytest.raises(
            ConfigurationError, match="pace must be a number of messages per second"
        ):
            harness.start(pace=pace, type="order")
    assert harness.replays("find") == []
    assert world.query("SELECT count(*) FROM oncebox_audit") == [(0,)]
    assert harness.start("x" * 100).total == 2
    assert harness.start("Grüße, Ada").total == 2


@REFUSED
def test_a_name_is_used_once(world: World, harness: ReplayHarness) -> None:
    harness.past(order("1"), order("2"))
    harness.start()
    with pytest.raises(
        ConfigurationError, match="a replay named 'again' exists already: use another"
    ):
        harness.start(ids=["1"])
    harness.drain()
    with pytest.raises(ConfigurationError, match="a replay named 'again' exists already"):
        harness.start()
    assert Counter(world.effects()) == {"1": 2, "2": 2}
    assert world.query("SELECT count(*) FROM oncebox_audit") == [(1,)]


@REFUSED
def test_only_a_running_replay_can_be_changed(world: World, harness: ReplayHarness) -> None:
    harness.past(keyed("1"), keyed("2"))
    for act, args in (("get", ()), ("cancel", ()), ("set_pace", (1,))):
        with pytest.raises(NotFound, match="there is no replay 'again' in this inbox"):
            harness.replays(act, "again", *args, **({"why": "x"} if act != "get" else {}))
    harness.start()
    with pytest.raises(ConfigurationError, match="pace must be a number"):
        harness.replays("set_pace", "again", 0, why="x")
    harness.feed()
    harness.feed()
    with pytest.raises(ConfigurationError, match="is stored and cannot be changed"):
        harness.replays("set_pace", "again", 1, why="x")
    harness.drain()
    for act, args in (("cancel", ()), ("set_pace", (1,))):
        with pytest.raises(ConfigurationError, match="replay 'again' has ended"):
            harness.replays(act, "again", *args, why="x")
    harness.start("second")
    harness.cancel("second")
    with pytest.raises(ConfigurationError, match="replay 'second' has ended"):
        harness.cancel("second")


@pytest.mark.only(SYNC_AND_ASYNC, quick=BOTH)
def test_actions_of_operators_are_recorded(world: World, harness: ReplayHarness) -> None:
    harness.past(order("1"))
    replay = harness.replays("start", "again", why="a bug", by="ada", type="order", pace=SLOW)
    assert (replay.by, replay.why) == ("ada", "a bug")
    harness.replays("set_pace", "again", 2, why="faster", by="bob")
    cancelled = harness.replays("cancel", "again", why="no bug", by="eve")
    assert harness.replays("find") == [cancelled]
    assert world.query(
        "SELECT action, by_whom, why, reason, replay, message_id FROM oncebox_audit ORDER BY id"
    ) == [
        ("replay", "ada", "a bug", "again", replay.id, None),
        ("pace", "bob", "faster", "again", replay.id, None),
        ("cancel", "eve", "no bug", "again", replay.id, None),
    ]
