"""The contract of stores: the queue of pending messages."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg
import pytest

from oncebox.model.message import Delivery, Message
from oncebox.model.outcome import Kind, Reason
from oncebox.processing.routing import select_batch
from oncebox.storage.records import NO_FLOORS, Arrival, WorkerInfo
from oncebox.storage.steps import run
from support.services import PATIENCE, wait_until
from support.stores import (
    AUDIT,
    FAILED_ONCE,
    NOW,
    RETRYING,
    WORKER,
    StoreHarness,
    arrival,
    blocking_transaction,
    entry,
    head,
    locks_rows,
    store_messages,
)


def test_the_state_of_a_pending_message_follows_from_available_at(harness: StoreHarness) -> None:
    harness.record(
        entry(Kind.failed, "1", 1, retry_in=timedelta(hours=1), **FAILED_ONCE),
        entry(Kind.blocked, "2", 2),
        entry(Kind.blocked, "3", 3, ready=True),
        entry(Kind.stored, "4", 4, ready=True, isolated=True),
    )
    infinity = "'infinity'" if harness.store.dialect == "postgres" else str(2**63 - 1)
    rows = harness.query(
        f"SELECT message_id, available_at IS NULL, available_at = {infinity}, attempts, isolated, "
        "last_error FROM oncebox_pending ORDER BY seq"
    )
    assert [(row[0], *map(bool, row[1:3]), row[3], bool(row[4]), row[5]) for row in rows] == [
        ("1", False, False, 1, False, "ValueError: x"),
        ("2", False, True, 0, False, None),
        ("3", True, False, 0, False, None),
        ("4", True, False, 0, True, None),
    ]


def test_a_received_message_is_ready_or_waits_with_its_key(harness: StoreHarness) -> None:
    harness.record(
        entry(Kind.failed, "1", -2, key="retrying", **RETRYING),
        entry(Kind.dead, "2", -1, key="dead", blocks_key=True, reason=Reason.rejected),
    )
    keys = ("retrying", "dead", "free", None)
    assert harness.receive(*[arrival(f"new {key}", key=key) for key in keys]) == "wwnn"
    assert harness.receive(*[arrival(f"next {key}", key=key) for key in keys]) == "wwrn"
    assert harness.receive(arrival("new free", key="free"), arrival("new None", body=b"x")) == "dx"
    assert harness.pending() == {
        "1": "retrying",
        **{f"new {key}": "blocked" for key in keys[:2]},
        **{f"new {key}": "ready" for key in keys[2:]},
        **{f"next {key}": "blocked" for key in keys[:2]},
        **{f"next {key}": "ready" for key in keys[2:]},
    }


def test_a_message_is_taken_as_it_was_received(harness: StoreHarness) -> None:
    body = bytes(range(256))
    message = Message(
        "a", body, "o", "t", 7, "k", {"h": "v", "none": None}, occurred_at=NOW, produced_at=NOW
    )
    delivery = Delivery(body, {"h": "v"}, b"k", "topic", "3/7", redelivered=True)
    assert harness.receive(Arrival(message, delivery), keep_payload=False) == "n"
    (row,) = harness.take().rows
    assert row.message == Message("a", body, "o", "t", 7, "k", {"h": "v", "none": None}, NOW)
    assert (row.delivery.body, row.delivery.source) == (body, "topic")
    assert row.delivery.coordinates == "3/7"
    assert not row.delivery.redelivered, "it must not be stored once more"
    assert (row.isolated, row.attempts, row.crashes, row.replay) == (True, 0, 0, 0)


def test_only_ready_messages_are_taken_in_the_order_of_their_lanes(harness: StoreHarness) -> None:
    harness.receive(*[arrival(str(n), key=f"key {n % 3}") for n in range(9)])
    harness.call("receive", "other", [arrival("other")])
    harness.record(
        entry(Kind.failed, "retrying", -3, key="r", **RETRYING),
        entry(Kind.blocked, "blocked", -2, key="r"),
    )
    rows = harness.take().rows
    assert sorted(row.message.id for row in rows) == [str(n) for n in range(9)]
    for key in range(3):
        of_key = [row.message.id for row in rows if row.message.key == f"key {key}"]
        assert of_key == [str(n) for n in range(key, 9, 3)]
    assert all(rows[n].seq < rows[n + 1].seq for n in range(8) if rows[n].lane == rows[n + 1].lane)


def test_a_take_returns_at_most_one_batch(harness: StoreHarness) -> None:
    harness.receive(*[arrival(str(n)) for n in range(20)])
    few = WorkerInfo("elsewhere:1:0", "0.1.us", batch=7, timeout=60, heartbeat_timeout=90)
    assert len(harness.take(few).rows) == 7


def test_a_due_message_is_taken(harness: StoreHarness) -> None:
    due = {**FAILED_ONCE, "retry_in": timedelta(0)}
    harness.record(entry(Kind.failed, "1", 1, key="k", **due), entry(Kind.blocked, "2", 2, key="k"))
    assert harness.taken() == ["1"]
    assert harness.pending() == {"1": "ready", "2": "blocked"}


def test_a_message_that_failed_before_is_taken_separately(harness: StoreHarness) -> None:
    due = {**FAILED_ONCE, "retry_in": timedelta(0)}
    harness.record(entry(Kind.failed, "1", -1, key="k", **due))
    harness.receive(arrival("2", key="l"))
    seen = []
    while rows := select_batch(harness.take().rows):
        seen.append([row.message.id for row in rows])
        harness.call("remove", rows)
    assert sorted(seen) == [["1"], ["2"]]


def test_is_work_is_true_if_there_is_something_to_take(harness: StoreHarness) -> None:
    """Where taking costs no more than looking, it is always worth it."""
    always = not harness.store.is_exclusive
    assert harness.call("has_work", "c") is always
    harness.record(entry(Kind.failed, "1", 1, key="k", **RETRYING), entry(Kind.blocked, "2", 2))
    assert harness.call("has_work", "c") is always
    harness.record(entry(Kind.stored, "3", 3, ready=True))
    assert harness.call("has_work", "c") is True
    assert harness.call("has_work", "other") is always


@locks_rows
def test_a_lane_is_taken_by_one_worker_at_a_time(harness: StoreHarness) -> None:
    harness.receive(*[arrival(str(n), key="k") for n in range(3)])
    harness.take()
    with harness.transaction() as work:
        assert len(run(harness.store.take(work, "c", WORKER)).rows) == 3
        assert harness.taken() == []
        harness.receive(arrival("3", key="l"))
        assert harness.taken() == ["3"], "other lanes are free"
    assert len(harness.taken()) == 4


def test_the_guard_holds_for_taken_messages(harness: StoreHarness) -> None:
    harness.receive(arrival("a"))
    harness.take()
    with harness.transaction() as work:
        taken = run(harness.store.take(work, "c", WORKER))
        harness.store.guard(work, taken.token)
    with pytest.raises(Exception, match=r"not the transaction of the claim|no such savepoint"):
        with harness.transaction() as work:
            harness.store.guard(work, taken.token)


def test_a_removed_message_is_not_taken_again(harness: StoreHarness) -> None:
    harness.receive(arrival("1"), arrival("2"))
    harness.call("remove", [harness.stored("1")])
    assert harness.taken() == ["2"]


@locks_rows
def test_messages_are_removed_all_or_none(harness: StoreHarness) -> None:
    """Another worker was faster: the whole unit is to be run again."""
    harness.receive(arrival("1"), arrival("2"))
    rows = harness.take().rows
    harness.call("remove", rows[:1])
    with pytest.raises(Exception, match="another worker took stored messages first") as caught:
        harness.call("remove", rows)
    assert getattr(caught.value, "sqlstate", None) == "40001"
    assert len(harness.pending()) == 1


def test_a_failed_message_blocks_what_follows_it(harness: StoreHarness) -> None:
    harness.record(
        entry(Kind.stored, "before", 1, key="k", ready=True),
        entry(Kind.stored, "after", 3, key="k", ready=True),
        entry(Kind.failed, "retrying", 4, key="k", **RETRYING),
        entry(Kind.stored, "other key", 5, key="l", ready=True),
        entry(Kind.stored, "no key", 6, ready=True),
    )
    harness.record(entry(Kind.failed, "head", 2, key="k", stored=head("head", 2), **RETRYING))
    assert harness.pending() == {
        "before": "ready",
        "head": "retrying",
        "after": "blocked",
        "retrying": "blocked",
        "other key": "ready",
        "no key": "ready",
    }


def test_a_dead_letter_that_blocks_its_key_blocks_what_follows_it(harness: StoreHarness) -> None:
    for key, blocks_key in (("k", True), ("l", False)):
        harness.record(entry(Kind.stored, f"after {key}", 10 + blocks_key, key=key, ready=True))
        dead = {
            "blocks_key": blocks_key,
            "reason": Reason.rejected,
            "stored": head("head", 1, key=key),
        }
        harness.record(entry(Kind.dead, f"head {key}", 1 + blocks_key, key=key, **dead))
    assert harness.pending() == {"after l": "ready", "after k": "blocked"}


@pytest.mark.parametrize("kind", [Kind.done, Kind.ignored, Kind.dead])
def test_a_finished_message_releases_its_key_up_to_the_next_unfinished_one(
    harness: StoreHarness, kind: Kind
) -> None:
    for key in ("k", "l"):
        harness.record(
            *[entry(Kind.blocked, f"{key}{n}", n + 10 * (key == "l"), key=key) for n in (2, 4)]
        )
    harness.record(
        entry(Kind.failed, "k3", 3, key="k", **RETRYING),
        entry(Kind.dead, "l3", 13, key="l", blocks_key=True, reason=Reason.rejected),
        entry(Kind.blocked, "other", 30, key="m"),
    )
    reason = Reason.rejected if kind is Kind.dead else None
    harness.record(
        entry(kind, "k1", 1, key="k", reason=reason, stored=head("k1", 1, attempts=1)),
        entry(
            kind, "l1", 11, key="l", reason=reason, stored=head("l1", 11, key="l", isolated=True)
        ),
    )
    assert harness.pending() == {
        "k2": "ready",
        "k3": "retrying",
        "k4": "blocked",
        "l2": "ready",
        "l4": "blocked",
        "other": "blocked",
    }


def test_another_consumer_is_neither_blocked_nor_released(harness: StoreHarness) -> None:
    blocked = entry(Kind.blocked, "theirs", 5, key="k")
    ready = entry(Kind.stored, "theirs too", 6, key="l", ready=True)
    harness.call("record", "other", "w:0", [blocked, ready])
    harness.record(
        entry(Kind.done, "1", 1, key="k", stored=head("1", 1, attempts=1)),
        entry(Kind.failed, "2", 2, key="l", stored=head("2", 2, key="l"), **RETRYING),
    )
    assert harness.pending() == {"2": "retrying", "theirs": "blocked", "theirs too": "ready"}


@locks_rows
@pytest.mark.parametrize(
    ("kind", "details", "answer"),
    [
        (Kind.failed, RETRYING, "w"),
        (Kind.dead, {"reason": Reason.rejected, "blocks_key": True}, "w"),
        (Kind.done, {}, "n"),
    ],
)
def test_blocking_or_releasing_a_key_locks_it(
    harness: StoreHarness, kind: Kind, details: dict[str, Any], answer: str
) -> None:
    """Otherwise a new message overtakes, or waits forever for a finished one."""
    settled = entry(kind, "1", -1, key="k", stored=head("1", -1, attempts=1), **details)
    with blocking_transaction(harness) as (work, answers):
        run(harness.store.record(work, "c", "w:0", [settled]))
    assert answers == [answer]


@locks_rows
def test_postponing_a_message_locks_its_key(harness: StoreHarness) -> None:
    row = store_messages(harness)
    with blocking_transaction(harness) as (work, answers):
        run(harness.store.postpone(work, "c", row, delay=60, crashed=True))
    assert answers == ["w"]


@locks_rows
def test_a_locked_key_keeps_new_messages_waiting(harness: StoreHarness) -> None:
    with blocking_transaction(harness) as (work, answers):
        run(harness.store.lock_key(work, "c", "k"))
    assert answers == ["n"]


def test_the_lock_of_a_key_concerns_no_other_key_and_ends_with_its_transaction(
    harness: StoreHarness,
) -> None:
    with harness.transaction() as work:
        run(harness.store.lock_key(work, "c", "k"))
        run(harness.store.lock_key(work, "c", None))
        assert harness.claim(work, arrival("1", key="l"), arrival("2")).answers == "nn"
    assert harness.receive(arrival("3", key="k")) == "n"


@locks_rows
@pytest.mark.empty_database
def test_a_stored_message_is_notified_on_the_channel_of_its_consumer(
    harness: StoreHarness, postgres_url: str
) -> None:
    channels = [harness.store.channel(consumer) for consumer in ("c", "other")]
    assert len(set(channels)) == 2
    with psycopg.connect(postgres_url, autocommit=True) as listener:
        for channel in channels:
            listener.execute(f"LISTEN {channel}".encode())
        harness.record(entry(Kind.stored, "1", 1, ready=True), notify=True)
        (heard,) = listener.notifies(timeout=PATIENCE, stop_after=1)
    assert heard.channel == channels[0]


def test_a_database_without_notifications_has_no_channel(harness: StoreHarness) -> None:
    assert (harness.store.channel("c") is None) is harness.store.is_exclusive


def test_search_floors_hide_no_message(harness: StoreHarness) -> None:
    harness.receive(*[arrival(str(n), key=str(n)) for n in range(9)])
    floors = harness.call("raise_floors", "c", WORKER, NO_FLOORS)
    harness.call("remove", harness.take().rows[:4])
    due = {**FAILED_ONCE, "retry_in": timedelta(0)}
    for number in range(9, 12):
        floors = harness.call("raise_floors", "c", WORKER, floors)
        harness.receive(arrival(str(number), key=str(number)))
        harness.record(entry(Kind.failed, f"due {number}", -number, **due))
    expected, seen = set(harness.pending()), set()
    while harness.pending():
        taken = harness.call("take", "c", WORKER, floors=floors)
        assert taken.rows or taken.again, "a message is pending, and is not found"
        seen |= {row.message.id for row in taken.rows}
        harness.call("remove", taken.rows)
    assert seen == expected


@locks_rows
def test_search_floors_rise_above_removed_messages(harness: StoreHarness) -> None:
    harness.receive(*[arrival(str(n), key="k") for n in range(9)])
    rows = harness.take().rows
    harness.call("remove", rows[:4])
    noted = harness.call("raise_floors", "c", WORKER, NO_FLOORS)
    assert noted.lanes is None, "other transactions may still be in progress"
    floors = harness.call("raise_floors", "c", WORKER, noted)
    assert floors.lanes[rows[4].lane] == rows[4].seq - 1


def test_a_transaction_that_is_not_overdue_is_not_ended(harness: StoreHarness) -> None:
    with harness.transaction() as work:
        harness.claim(work, arrival("a"), timeout=60)
        run(harness.store.end_overdue_transactions(work))
    with harness.transaction() as work:
        assert harness.claim(work, arrival("a")).answers == "d"


@locks_rows
@pytest.mark.empty_database
def test_only_overdue_transactions_are_ended(harness: StoreHarness, postgres_url: str) -> None:
    names = ("oncebox until 1", f"oncebox until {2**40}", "another program")
    sessions = [psycopg.connect(postgres_url, application_name=name) for name in names]
    harness.call("end_overdue_transactions")
    left = "SELECT application_name FROM pg_stat_activity WHERE application_name = ANY ({})"
    listed = left.format("ARRAY[" + ", ".join(f"'{name}'" for name in names) + "]")
    wait_until(lambda: len(harness.query(listed)) == 2, "no session was ended")
    assert sorted(harness.query(listed)) == [(names[2],), (names[1],)]
    for session in sessions:
        session.close()


@locks_rows
def test_acting_on_dead_letters_locks_their_keys(harness: StoreHarness) -> None:
    harness.record(entry(Kind.dead, "1", -1, key="k", blocks_key=True, reason=Reason.rejected))
    found = harness.letters()
    with blocking_transaction(harness) as (work, answers):
        run(
            harness.store.discard_dead_letters(
                work, "c", run(harness.store.lock_dead_letters(work, "c", found)), AUDIT
            )
        )
    assert answers == ["n"]
