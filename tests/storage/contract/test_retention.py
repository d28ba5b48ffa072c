"""The contract of stores: retention."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from oncebox.model.filters import MessageFilter
from oncebox.model.outcome import Kind, Reason
from oncebox.model.position import Position
from oncebox.storage.steps import run
from support.stores import (
    AUDIT,
    FAILED_ONCE,
    NOW,
    RETRYING,
    WORKER,
    StoreHarness,
    arrival,
    entry,
    finish,
    make_older,
    moment,
    purge_all,
    stored_ids,
)

DAY = timedelta(days=1)
WATERMARK = NOW - DAY


def test_a_claim_reports_messages_below_the_watermark(harness: StoreHarness) -> None:
    harness.call("set_watermark", "c", NOW)
    with harness.transaction() as work:
        old = arrival("old", produced_at=NOW - DAY)
        new = arrival("new", produced_at=NOW + DAY)
        assert harness.claim(work, old, new, arrival("undated")).answers == "lnn"


def test_a_message_that_is_too_late_is_not_stored(harness: StoreHarness) -> None:
    harness.call("set_watermark", "c", NOW)
    assert harness.receive(arrival("old", produced_at=NOW - DAY)) == "l"
    assert harness.pending() == {}


def test_the_watermark_only_moves_forward(harness: StoreHarness) -> None:
    assert harness.call("set_watermark", "c", NOW) == NOW
    assert harness.call("set_watermark", "c", NOW - DAY) == NOW
    assert harness.call("set_watermark", "c", NOW + DAY) == NOW + DAY
    assert harness.call("set_watermark", "other", NOW) == NOW


def test_one_worker_at_a_time_has_the_turn_to_purge(harness: StoreHarness) -> None:
    assert harness.call("take_purge_turn", consumer="c", every=3600) is True
    assert harness.call("take_purge_turn", consumer="c", every=3600) is False
    assert harness.call("take_purge_turn", consumer="other", every=3600) is True
    assert harness.call("take_purge_turn", consumer="c", every=-60) is True


def test_a_turn_to_purge_does_not_move_the_watermark(harness: StoreHarness) -> None:
    harness.call("take_purge_turn", consumer="c", every=3600)
    assert harness.receive(arrival("old", produced_at=NOW - 9999 * DAY)) == "n"
    harness.call("set_watermark", "c", NOW)
    harness.call("take_purge_turn", consumer="c", every=-60)
    assert harness.receive(arrival("too late", produced_at=NOW - DAY)) == "l"


def test_the_progress_of_arrivals_is_unknown_before_the_first_message(
    harness: StoreHarness,
) -> None:
    progress = harness.call("arrival_progress", "c")
    assert (progress.received_at, progress.produced_at) == (None, None)
    assert list(progress.partitions) == []


def test_the_progress_of_arrivals_shows_how_old_recent_messages_are(harness: StoreHarness) -> None:
    finish(harness, arrival("a", produced_at=NOW - 2 * DAY), arrival("b", produced_at=NOW))
    finish(harness, arrival("long ago", produced_at=NOW - 9 * DAY))
    make_older(harness, DAY, "message_id = 'long ago'")
    harness.record(entry(Kind.done, "a", 1))
    harness.call("take_over", "c", "topic", WORKER, Position("0", 5), any_owner=True)
    progress = harness.call("arrival_progress", "c")
    assert abs(progress.received_at - datetime.now(UTC)) < timedelta(hours=1)
    assert progress.produced_at == NOW - 2 * DAY
    assert [partition.name for partition in progress.partitions] == ["topic 0"]


def test_a_duplicate_does_not_count_as_an_arrival(harness: StoreHarness) -> None:
    harness.record(entry(Kind.duplicate, "a", 1))
    assert harness.call("arrival_progress", "c").received_at is None


def test_a_claim_of_the_caller_is_an_arrival(harness: StoreHarness) -> None:
    harness.call("claim_one", "c", arrival("a", produced_at=NOW - DAY))
    progress = harness.call("arrival_progress", "c")
    assert abs(progress.received_at - datetime.now(UTC)) < timedelta(hours=1)
    assert progress.produced_at == NOW - DAY


def test_old_messages_are_counted_whether_finished_or_not(harness: StoreHarness) -> None:
    finish(harness, arrival("old"), arrival("new"))
    harness.receive(arrival("pending"))
    harness.call("claim_one", "other", arrival("old"))
    make_older(harness, 2 * DAY, "message_id <> 'new'")
    assert harness.call("count_old", "c", WATERMARK) == 2
    assert harness.call("count_old", "c", WATERMARK - 2 * DAY) == 0
    assert harness.call("count_old", "unknown", WATERMARK) == 0


def test_a_purge_deletes_old_finished_messages_with_their_attempts(harness: StoreHarness) -> None:
    finish(harness, *[arrival(id) for id in ("old", "new", "produced later", "dead")])
    harness.receive(arrival("pending"))
    harness.call("claim_one", "other", arrival("theirs"))
    seqs = dict(harness.query("SELECT message_id, seq FROM oncebox_inbox"))
    later = {"retry_in": timedelta(0), "stored": None}
    harness.record(
        entry(Kind.dead, "dead", seqs["dead"], reason=Reason.rejected, **FAILED_ONCE),
        *[entry(Kind.failed, id, -seqs[id], **{**RETRYING, **later}) for id in ("old", "new")],
    )
    make_older(harness, 2 * DAY, "message_id <> 'new'")
    future = f"produced_at = {moment(harness, NOW)}"
    with harness.transaction() as work:
        sql = f"UPDATE oncebox_inbox SET {future} WHERE message_id = 'produced later'"
        run(work.execute(sql, {}))
    windows = harness.call("old_windows", "c", WATERMARK)
    assert sum(harness.call("purge", "c", WATERMARK, window) for window in windows) == 1
    assert stored_ids(harness) == ["dead", "new", "pending", "produced later", "theirs"]
    attempts = harness.query("SELECT message_id FROM oncebox_attempt ORDER BY id")
    assert attempts == [("dead",), ("new",)]
    assert sum(harness.call("purge", "c", WATERMARK, window) for window in windows) == 0


def test_the_windows_of_a_purge_contain_every_old_message_once(harness: StoreHarness) -> None:
    finish(harness, *[arrival(f"old {n}", body=b"x" * 100) for n in range(1_200)])
    make_older(harness, 2 * DAY)
    finish(harness, arrival("new"))
    windows = harness.call("old_windows", "c", WATERMARK)
    assert len(windows) > 1
    sizes = [harness.call("old_size", "c", WATERMARK, window) for window in windows]
    assert [sum(column) for column in zip(*sizes, strict=True)] == [1_200, 120_000]
    assert harness.call("old_windows", "c", WATERMARK - 2 * DAY) == []
    assert harness.call("old_windows", "other", WATERMARK) == []
    counts = [harness.call("purge", "c", WATERMARK, window) for window in windows]
    assert counts == [count for count, _ in sizes]
    assert stored_ids(harness) == ["new"]


def test_the_size_of_a_window_counts_messages_of_its_consumer(harness: StoreHarness) -> None:
    finish(harness, arrival("a", body=b"123"), arrival("b", body=b"45"))
    harness.call("claim_one", "other", arrival("a", body=b"6"))
    make_older(harness, 2 * DAY)
    (window,) = harness.call("old_windows", "c", WATERMARK)
    assert harness.call("old_size", "c", WATERMARK, window) == (2, 5)
    assert harness.call("old_size", "unknown", WATERMARK, window) == (0, 0)


def test_a_message_that_is_to_be_replayed_is_not_purged(harness: StoreHarness) -> None:
    finish(harness, arrival("replayed"), arrival("old"))
    make_older(harness, 2 * DAY)
    wanted = MessageFilter(ids=["replayed"], state="done")
    harness.call("begin_replay", "c", "again", wanted, None, AUDIT)
    assert purge_all(harness, WATERMARK) == 1
    assert stored_ids(harness) == ["replayed"]
    harness.call("continue_replay", "c")
    assert purge_all(harness, WATERMARK) == 0, "it is pending"
    harness.call("remove", harness.take().rows)
    assert purge_all(harness, WATERMARK) == 1


def test_nothing_is_purged_while_a_restore_pauses_it(harness: StoreHarness) -> None:
    finish(harness, arrival("old"))
    make_older(harness, 2 * DAY)
    assert harness.call("purge_paused_until", "c") is None
    pause = {"last_seq": 0, "file": "f", "audit": AUDIT}
    harness.call("begin_restore", "c", keep=3600, **pause)
    until = harness.call("purge_paused_until", "c")
    assert timedelta(minutes=30) < until - datetime.now(UTC) < timedelta(hours=2)
    assert harness.call("purge_paused_until", "other") is None
    assert purge_all(harness, WATERMARK) == 0
    harness.call("begin_restore", "c", keep=60, **pause)
    assert harness.call("purge_paused_until", "c") == until, "a pause is not shortened"


def test_a_pause_ends_by_itself(harness: StoreHarness) -> None:
    finish(harness, arrival("old"))
    make_older(harness, 2 * DAY)
    harness.call("begin_restore", "c", keep=-60, last_seq=0, file="f", audit=AUDIT)
    assert harness.call("purge_paused_until", "c") is None
    assert purge_all(harness, WATERMARK) == 1


def test_counters_are_purged_up_to_the_watermark(harness: StoreHarness) -> None:
    harness.record(entry(Kind.done, "old", 1))
    make_older(harness, 2 * DAY, table="minute_counter", column="minute")
    harness.record(entry(Kind.done, "new", 2), entry(Kind.done, "new too", 3))
    harness.call("record", "other", "w:0", [entry(Kind.done, "theirs", 4)])
    harness.call("purge_counters", "c", WATERMARK)
    counted = "SELECT consumer, done FROM oncebox_minute_counter ORDER BY consumer"
    assert harness.query(counted) == [("c", 2), ("other", 1)]


def test_failures_of_unclaimed_messages_are_purged_with_the_counters(harness: StoreHarness) -> None:
    finish(harness, arrival("claimed"))
    for id, worker in (("claimed", "own_loop"), ("unclaimed", "own_loop"), ("stored", "w:0")):
        failed = entry(Kind.failed, id, -len(id), retry_in=timedelta(0), **FAILED_ONCE)
        harness.call("record", "c", worker, [failed])
    harness.call("purge_counters", "c", WATERMARK)
    assert len(harness.query("SELECT * FROM oncebox_attempt")) == 3, "they are too young"
    make_older(harness, 2 * DAY, table="attempt", column="ended_at")
    harness.call("purge_counters", "c", WATERMARK)
    left = harness.query("SELECT message_id FROM oncebox_attempt ORDER BY id")
    assert left == [("claimed",), ("stored",)]
