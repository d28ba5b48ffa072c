"""The contract of stores: replays."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from oncebox.model.filters import MessageFilter
from oncebox.model.outcome import Kind, Reason
from oncebox.model.replay import Replay
from oncebox.storage.records import AuditEntry
from oncebox.storage.steps import run
from support.stores import StoreHarness, arrival, entry, finish, locks_rows

START = AuditEntry("replay", "ada", "a bug")
CANCEL = AuditEntry("cancel", "bob", "a mistake")
DONE = MessageFilter(state="done")
NOW = datetime.now(UTC)


def begin(harness: StoreHarness, name: str = "again", pace: float | None = None) -> int:
    """Begin a replay of all messages that are done."""
    replay: int | None = harness.call("begin_replay", "c", name, DONE, pace, START)
    assert replay is not None
    return replay


def get(harness: StoreHarness, name: str = "again") -> Replay:
    (replay,) = harness.call("replays", "c", name=name, limit=9)
    assert isinstance(replay, Replay)
    return replay


def next_is_due(harness: StoreHarness) -> bool:
    due_in = harness.call("next_replay", "c")
    assert due_in is not None
    return bool(due_in <= 0)


def letter_of(harness: StoreHarness, id: str) -> None:
    """Let a stored message of a replay become a dead letter that blocks its key."""
    row = harness.stored(id)
    harness.call("remove", [row])
    dead = {"reason": Reason.rejected, "blocks_key": True, "stored": row}
    harness.record(entry(Kind.dead, id, row.seq, key=row.message.key, **dead))


def discard_of(harness: StoreHarness, id: str) -> None:
    letters = harness.letters(message_id=id)
    harness.call("discard_dead_letters", "c", letters, AuditEntry("discard", "ada", "noise"))


def test_messages_are_counted_by_whether_they_can_be_replayed(harness: StoreHarness) -> None:
    finish(harness, arrival("a"), arrival("b"))
    finish(harness, arrival("bare"), keep_payload=False)
    harness.receive(arrival("pending"))
    harness.record(entry(Kind.dead, "a", 1, reason=Reason.rejected))
    assert harness.call("count_messages", "c", DONE) == (1, 1, 2)
    assert harness.call("count_messages", "other", DONE) == (0, 0, 0)
    discard_of(harness, "a")
    assert harness.call("count_messages", "c", DONE) == (1, 1, 2)
    assert harness.call("count_messages", "c", MessageFilter(state="discarded")) == (1, 0, 3)


MATCHES: list[tuple[MessageFilter, int]] = [
    ({"ids": ["a", "missing"]}, 2),
    ({"ids": ["a"], "origin": "o"}, 1),
    ({"ids": ["a", "b"], "type": "t"}, 1),
    ({"ids": ["a", "c"], "key": "k"}, 1),
    ({"ids": ["a"], "since": NOW + timedelta(hours=1)}, 0),
    ({"ids": ["a"], "until": NOW - timedelta(hours=1)}, 0),
    ({"ids": []}, 0),
    ({"origin": "o"}, 1),
    ({"type": "t"}, 1),
    ({"key": "k"}, 1),
    ({"since": NOW - timedelta(hours=1)}, 4),
    ({"since": NOW + timedelta(hours=1)}, 0),
    ({"until": NOW - timedelta(hours=1)}, 0),
    ({"until": NOW + timedelta(hours=1)}, 4),
]


def test_a_filter_selects_the_messages_that_match_all_of_it(harness: StoreHarness) -> None:
    same_id = (arrival("a"), arrival("a", origin="o"))
    finish(harness, *same_id, arrival("b", type="t"), arrival("c", key="k"))
    for matching, count in MATCHES:
        wanted = MessageFilter(**{**DONE, **matching})
        assert harness.call("count_messages", "c", wanted) == (count, 0, 0), matching
        harness.call("begin_replay", "c", str(matching), wanted, None, START)
        assert get(harness, str(matching)).total == count, matching


def test_a_replay_begins_once_under_its_name(harness: StoreHarness) -> None:
    finish(harness, arrival("a"), arrival("b"))
    finish(harness, arrival("bare"), keep_payload=False)
    id = harness.call(
        "begin_replay", "c", "again", MessageFilter(ids=["a"], state="done"), 2, START
    )
    assert harness.call("begin_replay", "c", "again", DONE, None, CANCEL) is None
    replay = get(harness)
    assert (replay.id, replay.name, replay.state) == (id, "again", "running")
    assert (replay.by, replay.why, replay.pace) == ("ada", "a bug", 2)
    assert replay.wanted == '{"ids":["a"]}'
    counts = (replay.total, replay.stored, replay.skipped, replay.cancelled, replay.waiting)
    assert counts == (1, 0, 0, 0, 0)
    assert abs(replay.began_at - datetime.now(UTC)) < timedelta(hours=1)
    assert replay.ended_at is None
    assert harness.query("SELECT action, by_whom, why, reason, replay FROM oncebox_audit") == [
        ("replay", "ada", "a bug", "again", id)
    ]
    assert harness.call("begin_replay", "other", "again", DONE, None, START) is not None


def test_replays_are_listed_with_the_newest_first(harness: StoreHarness) -> None:
    for name in ("one", "two", "three"):
        begin(harness, name)
    listed = harness.call("replays", "c", name=None, limit=2)
    assert [replay.name for replay in listed] == ["three", "two"]
    assert [replay.name for replay in harness.call("replays", "c", name="one", limit=2)] == ["one"]
    assert harness.call("replays", "other", name=None, limit=2) == []


def test_a_replay_stores_its_messages_in_their_old_order(harness: StoreHarness) -> None:
    finish(harness, arrival("b", key="k"), arrival("c", key="k"))
    finish(harness, arrival("a", key="k"))
    id = begin(harness)
    harness.receive(arrival("new", key="k"))
    assert harness.call("continue_replay", "other") is False
    assert harness.pending() == {"new": "ready"}
    assert harness.call("continue_replay", "c") is True
    assert list(harness.pending()) == ["new", "b", "c", "a"]
    assert set(harness.pending().values()) == {"ready"}
    assert [row.replay for row in harness.take().rows] == [0, id, id, id]
    replay = get(harness)
    assert (replay.state, replay.stored, replay.waiting, replay.done) == ("running", 3, 3, 0)


def test_a_replay_ends_when_all_its_messages_are_stored(harness: StoreHarness) -> None:
    finish(harness, arrival("a"))
    assert harness.call("next_replay", "c") is None
    begin(harness)
    assert next_is_due(harness)
    assert harness.call("next_replay", "other") is None
    assert [harness.call("continue_replay", "c") for _ in range(3)] == [True, True, False]
    replay = get(harness)
    assert (replay.state, replay.is_over, replay.waiting) == ("stored", False, 1)
    assert replay.ended_at is not None
    assert harness.call("next_replay", "c") is None
    harness.call("remove", [harness.stored("a")])
    assert (get(harness).is_over, get(harness).done) == (True, 1)


def test_a_replayed_message_waits_if_its_key_is_blocked(harness: StoreHarness) -> None:
    finish(harness, arrival("a", key="k"), arrival("b", key="l"), arrival("c"))
    harness.record(entry(Kind.dead, "x", -1, key="k", blocks_key=True, reason=Reason.rejected))
    begin(harness)
    harness.call("continue_replay", "c")
    assert harness.pending() == {"a": "blocked", "b": "ready", "c": "ready"}


def test_a_replay_skips_messages_that_cannot_run_any_more(harness: StoreHarness) -> None:
    finish(harness, arrival("erased"), arrival("pending"), arrival("dead"), arrival("a"))
    begin(harness)
    with harness.transaction() as work:
        sql = "UPDATE oncebox_inbox SET payload = NULL WHERE message_id = 'erased'"
        run(work.execute(sql, {}))
    seqs = dict(harness.query("SELECT message_id, seq FROM oncebox_inbox"))
    harness.record(
        entry(Kind.stored, "pending", seqs["pending"], ready=True),
        entry(Kind.dead, "dead", seqs["dead"], reason=Reason.rejected),
    )
    harness.call("continue_replay", "c")
    assert harness.pending() == {"pending": "ready", "a": "ready"}
    assert (get(harness).stored, get(harness).skipped) == (1, 3)


def test_a_replay_keeps_its_pace_until_it_gets_another(harness: StoreHarness) -> None:
    finish(harness, arrival("a"), arrival("b"), arrival("c"))
    id = begin(harness, pace=0.001)
    assert harness.call("continue_replay", "c") is True
    assert list(harness.pending()) == ["a"]
    assert not next_is_due(harness)
    assert harness.call("continue_replay", "c") is False, "the next message is not due"
    faster = AuditEntry("pace", "bob", "too slow")
    assert harness.call("set_pace", "other", "again", None, faster) is False
    assert harness.call("set_pace", "c", "unknown", None, faster) is False
    assert not next_is_due(harness)
    assert harness.call("set_pace", "c", "again", None, faster) is True
    assert (get(harness).pace, next_is_due(harness)) == (None, True)
    assert harness.call("continue_replay", "c") is True
    assert list(harness.pending()) == ["a", "b", "c"]
    acted = "SELECT action, by_whom, why, reason, replay FROM oncebox_audit WHERE action = 'pace'"
    assert harness.query(acted) == [("pace", "bob", "too slow", "again", id)]


def test_a_cancelled_replay_takes_back_what_has_not_run(harness: StoreHarness) -> None:
    finish(harness, arrival("a", key="k"), arrival("b", key="k"), arrival("c", key="k"))
    harness.receive(arrival("new", key="l"))
    begin(harness, pace=0.001)
    harness.call("continue_replay", "c")
    assert harness.call("cancel_replay", "other", "again", CANCEL) is False
    assert harness.call("cancel_replay", "c", "again", CANCEL) is True
    replay = get(harness)
    assert (replay.state, replay.waiting, replay.cancelled) == ("cancelling", 1, 2)
    assert [harness.call("continue_replay", "c") for _ in range(3)] == [True, True, False]
    assert harness.pending() == {"new": "ready"}
    replay = get(harness)
    assert (replay.state, replay.is_over, replay.cancelled) == ("cancelled", True, 3)
    assert harness.call("cancel_replay", "c", "again", CANCEL) is False
    assert harness.call("set_pace", "c", "again", None, CANCEL) is False
    assert harness.query("SELECT by_whom, why FROM oncebox_audit WHERE action = 'cancel'") == [
        ("bob", "a mistake")
    ]


def test_a_cancelled_replay_removes_its_dead_letters_and_releases_their_keys(
    harness: StoreHarness,
) -> None:
    finish(harness, arrival("a", key="k"), arrival("b", key="l"))
    begin(harness)
    for _ in range(2):
        harness.call("continue_replay", "c")
    letter_of(harness, "a")
    letter_of(harness, "b")
    assert harness.receive(arrival("behind", key="k")) == "w"
    discard_of(harness, "b")
    replay = get(harness)
    assert (replay.waiting, replay.dead, replay.discarded) == (0, 1, 1)
    assert harness.call("cancel_replay", "c", "again", CANCEL) is True, "it may be stored already"
    harness.call("continue_replay", "c")
    assert harness.letters() == []
    assert harness.pending() == {"behind": "ready"}
    assert get(harness).cancelled == 1


def test_a_replay_that_waits_for_cancellation_comes_first(harness: StoreHarness) -> None:
    finish(harness, arrival("a"))
    begin(harness, "one")
    begin(harness, "two")
    harness.call("cancel_replay", "c", "two", CANCEL)
    assert harness.call("continue_replay", "c") is True
    assert (get(harness, "one").stored, get(harness, "two").state) == (0, "cancelled")


@locks_rows
def test_a_replay_is_continued_by_one_worker_at_a_time(harness: StoreHarness) -> None:
    finish(harness, arrival("a"))
    begin(harness)
    with harness.transaction() as work:
        assert run(harness.store.continue_replay(work, "c")) is True
        assert harness.call("continue_replay", "c") is False
    assert get(harness).stored == 1
