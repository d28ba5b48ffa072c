"""The contract of stores: positions of sources."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from oncebox.errors import NotOwner
from oncebox.model.position import Advance, Gauge, Position, Skip
from oncebox.storage.records import WorkerInfo
from support.stores import StoreHarness

FIRST = WorkerInfo("elsewhere:1:0", "0.1.first", batch=5, timeout=60, heartbeat_timeout=90)
SECOND = WorkerInfo("elsewhere:2:0", "0.1.second", batch=3, timeout=60, heartbeat_timeout=90)
LOST = WorkerInfo("elsewhere:3:0", "0.1.lost", batch=4, timeout=60, heartbeat_timeout=-1)
START = Position("0", 17, "log")


def take_over(
    harness: StoreHarness,
    worker: WorkerInfo,
    start: Position = START,
    *,
    source: str = "topic",
    any_owner: bool = True,
) -> Position | None:
    position: Position | None = harness.call(
        "take_over", "c", source, worker, start, any_owner=any_owner
    )
    return position


def read_position(harness: StoreHarness, partition: str = "0") -> Position:
    """The position of a partition, without its time."""
    found: dict[str, Position] = harness.call("positions", "c", "topic")
    return msgspec.structs.replace(found[partition], moved_at=None)


def columns(harness: StoreHarness, names: str) -> tuple[Any, ...]:
    """Columns of the only position."""
    (row,) = harness.query(f"SELECT {names} FROM oncebox_position")
    return row


def advance(owner: WorkerInfo = FIRST, *, old: int = 17, new: int = 20, **more: Any) -> Advance:
    return Advance("topic", "0", owner.incarnation, old, new, owner.heartbeat_timeout, **more)


def skip(owner: WorkerInfo = FIRST, *, old: int = 17, new: int = 30) -> Skip:
    return Skip("topic", "0", owner.incarnation, old, new, "new log", new - old, "deleted")


def test_a_new_partition_begins_where_its_first_owner_says(harness: StoreHarness) -> None:
    owned = Position("0", 17, "log", FIRST.incarnation, FIRST.name, FIRST.batch)
    assert harness.call("take_over", "c", "topic", FIRST, START, any_owner=False) == owned
    found = harness.call("positions", "c", "topic")
    assert list(found) == ["0"]
    assert abs(found["0"].moved_at - datetime.now(UTC)) < timedelta(hours=1)
    assert msgspec.structs.replace(found["0"], moved_at=None) == owned
    assert harness.call("positions", "c", "another topic") == {}
    assert harness.call("positions", "other", "topic") == {}


def test_a_partition_is_taken_over_only_from_the_expected_owner(harness: StoreHarness) -> None:
    owned = take_over(harness, FIRST)
    for expected in (None, SECOND.incarnation):
        start = Position("0", 99, "other log", owner=expected)
        assert take_over(harness, SECOND, start, any_owner=False) is None
    assert read_position(harness) == owned
    start = Position("0", 99, "other log", owner=FIRST.incarnation)
    taken = take_over(harness, SECOND, start, any_owner=False)
    assert taken is not None
    assert (taken.next, taken.log_id) == (17, "log"), "the stored position counts"
    assert taken.owner == SECOND.incarnation
    assert read_position(harness) == taken


def test_the_messages_of_an_owner_that_did_not_sign_off_are_suspects(harness: StoreHarness) -> None:
    take_over(harness, FIRST)
    for worker, suspects in ((FIRST, 0), (SECOND, FIRST.batch), (LOST, FIRST.batch)):
        taken = take_over(harness, worker)
        assert taken is not None
        assert taken.suspects == suspects
        assert read_position(harness).suspects == suspects


def test_a_released_partition_has_no_owner_and_leaves_no_suspects(harness: StoreHarness) -> None:
    take_over(harness, FIRST)
    harness.call("release_partition", "c", "topic", SECOND, "0")
    assert read_position(harness).owner == FIRST.incarnation, "only the owner can release it"
    harness.call("release_partition", "c", "topic", FIRST, "0")
    released = read_position(harness)
    assert (released.owner, released.owner_name, released.is_overdue) == (None, None, False)
    taken = take_over(harness, SECOND, START, any_owner=False)
    assert taken is not None
    assert (taken.next, taken.suspects) == (17, 0)


def test_a_partition_that_ended_has_no_lag_after_its_release(harness: StoreHarness) -> None:
    for ended, lag in ((False, 4), (True, None)):
        take_over(harness, FIRST)
        harness.call("heartbeat_partitions", "c", "topic", FIRST, {"0": Gauge(lag=4)})
        harness.call("release_partition", "c", "topic", FIRST, "0", ended=ended)
        (progress,) = harness.call("partition_progress", "c")
        assert (progress.lag, progress.is_alive) == (lag, False)


def test_the_owner_advances_its_position(harness: StoreHarness) -> None:
    take_over(harness, FIRST)
    take_over(harness, FIRST, Position("1", 1))
    harness.call("expect_crash", "c", "topic", FIRST, START)
    before = harness.call("positions", "c", "topic")
    harness.call("advance", "c", advance(log_id="new log", suspects=2))
    moved = read_position(harness)
    assert (moved.next, moved.log_id, moved.suspects) == (20, "new log", 2)
    after = harness.call("positions", "c", "topic")
    assert after["0"].moved_at > before["0"].moved_at
    assert after["1"] == before["1"]
    crashes = "SELECT crashes FROM oncebox_position WHERE partition = '0'"
    assert harness.query(crashes) == [(0,)]


def test_an_advance_whose_commit_was_confirmed_too_late_is_repeated(harness: StoreHarness) -> None:
    take_over(harness, FIRST)
    for _ in range(2):
        harness.call("advance", "c", advance())
    assert read_position(harness).next == 20


@pytest.mark.parametrize("step", [advance(SECOND), advance(old=16, new=18)])
def test_a_position_does_not_advance_for_another_owner_or_from_another_offset(
    harness: StoreHarness, step: Advance
) -> None:
    take_over(harness, FIRST)
    with pytest.raises(Exception, match=r"another worker .* this partition") as caught:
        harness.call("advance", "c", step)
    is_not_owner = isinstance(caught.value, NotOwner)
    assert is_not_owner or getattr(caught.value, "sqlstate", None) == "OB002"
    assert read_position(harness).next == 17


def test_an_advance_is_a_heartbeat(harness: StoreHarness) -> None:
    take_over(harness, LOST)
    assert read_position(harness).is_overdue
    renewed = msgspec.structs.replace(advance(LOST), heartbeat_timeout=60)
    harness.call("advance", "c", renewed)
    assert not read_position(harness).is_overdue


def test_a_heartbeat_renews_the_partitions_of_its_worker(harness: StoreHarness) -> None:
    take_over(harness, LOST)
    take_over(harness, LOST, Position("1", 5))
    assert [p.is_alive for p in harness.call("partition_progress", "c")] == [False, False]
    alive = msgspec.structs.replace(LOST, heartbeat_timeout=60)
    gauges = {"0": Gauge(lag=7, settled=3, age=3600)}
    harness.call("heartbeat_partitions", "c", "topic", SECOND, gauges)
    assert read_position(harness).is_overdue, "another worker is alive"
    harness.call("heartbeat_partitions", "c", "topic", alive, gauges)
    first, second = harness.call("partition_progress", "c")
    assert (first.name, first.lag, first.is_alive) == ("topic 0", 7, True)
    assert (second.name, second.lag, second.is_alive) == ("topic 1", None, False)
    hour_ago = datetime.now(UTC) - timedelta(hours=1)
    assert abs(first.seen_at - hour_ago) < timedelta(minutes=10)
    assert second.seen_at is None
    settled = "SELECT settled FROM oncebox_position ORDER BY partition"
    assert harness.query(settled) == [(3,), (None,)]


def test_progress_is_listed_by_source_and_partition(harness: StoreHarness) -> None:
    for source, partition in (("b", "0"), ("a", "1"), ("a", "0")):
        take_over(harness, FIRST, Position(partition, 0), source=source)
    found = harness.call("partition_progress", "c")
    assert [progress.name for progress in found] == ["a 0", "a 1", "b 0"]
    assert harness.call("partition_progress", "other") == []


def test_a_position_skips_deleted_messages_once_and_counts_them(harness: StoreHarness) -> None:
    take_over(harness, FIRST)
    harness.call("expect_crash", "c", "topic", FIRST, START)
    assert harness.call("skip", "c", skip()) is True
    assert harness.call("skip", "c", skip()) is False, "it is there already"
    names = "next, log_id, skipped, skipped_why, crashes"
    assert columns(harness, names) == (30, "new log", 13, "deleted", 0)
    assert harness.call("skip", "c", skip(old=30, new=32)) is True
    assert columns(harness, "next, skipped") == (32, 15)
    (partition,) = harness.call("status", "c").partitions
    assert abs(partition.skipped_at - datetime.now(UTC)) < timedelta(hours=1)


def test_only_the_owner_skips_messages(harness: StoreHarness) -> None:
    take_over(harness, FIRST)
    assert harness.call("skip", "c", skip(SECOND)) is False
    assert harness.call("skip", "other", skip()) is False
    assert columns(harness, "next, skipped, skipped_why") == (17, 0, None)


def test_expected_crashes_are_counted_until_one_does_not_happen(harness: StoreHarness) -> None:
    take_over(harness, FIRST)
    assert harness.call("expect_crash", "c", "topic", FIRST, START) == 1
    assert harness.call("expect_crash", "c", "topic", FIRST, START) == 2
    harness.call("undo_expected_crash", "c", "topic", SECOND, START)
    harness.call("undo_expected_crash", "c", "topic", FIRST, Position("0", 18))
    assert columns(harness, "crashes") == (2,), "neither another worker nor another message"
    harness.call("undo_expected_crash", "c", "topic", FIRST, START)
    assert columns(harness, "crashes") == (0,)
    assert harness.call("expect_crash", "c", "topic", FIRST, START) == 1


def test_a_crash_is_expected_only_at_the_position_of_the_owner(harness: StoreHarness) -> None:
    take_over(harness, FIRST)
    assert harness.call("expect_crash", "c", "topic", SECOND, START) is None
    assert harness.call("expect_crash", "c", "topic", FIRST, Position("0", 18)) is None
    assert harness.call("expect_crash", "c", "another topic", FIRST, START) is None
    assert columns(harness, "crashes") == (0,)


def test_an_outage_lasts_until_its_worker_reads_again(harness: StoreHarness) -> None:
    harness.call("report_outage", "c", "topic", FIRST, "refused")
    (first,) = harness.call("status", "c").outages
    assert (first.source, first.worker, first.why) == ("topic", FIRST.name, "refused")
    harness.call("report_outage", "c", "topic", FIRST, "still refused")
    (again,) = harness.call("status", "c").outages
    assert again == msgspec.structs.replace(first, why="still refused"), "it began before"
    harness.call("end_outage", "c", "another topic", FIRST)
    harness.call("end_outage", "c", "topic", SECOND)
    assert len(harness.call("status", "c").outages) == 1
    harness.call("end_outage", "c", "topic", FIRST)
    assert harness.query("SELECT * FROM oncebox_outage") == []


def test_the_end_of_an_outage_removes_those_of_lost_workers(harness: StoreHarness) -> None:
    for worker in (FIRST, SECOND, LOST):
        harness.call("report_outage", "c", "topic", worker, "refused")
    reported = [outage.worker for outage in harness.call("status", "c").outages]
    assert reported == [FIRST.name, SECOND.name], "a lost worker reports nothing"
    harness.call("end_outage", "c", "topic", FIRST)
    assert harness.query("SELECT worker FROM oncebox_outage") == [(SECOND.name,)]
