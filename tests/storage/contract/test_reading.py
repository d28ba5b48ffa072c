"""The contract of stores: reading."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from oncebox.model.inspection import DeadLetterCount, Rates
from oncebox.model.outcome import Kind, Reason
from oncebox.model.position import Gauge, Position
from oncebox.storage.records import (
    AuditEntry,
    AwaitingMessage,
    SequenceKey,
    SequenceMove,
    WorkerInfo,
)
from oncebox.storage.steps import run
from support.stores import (
    FAILED_ONCE,
    NOW,
    RETRYING,
    WORKER,
    StoreHarness,
    arrival,
    entry,
    record_dead_letters,
    store_messages,
)

ALL: dict[str, Any] = {
    "limit": 100,
    "filter": {},
}
HOUR = timedelta(hours=1)


def is_now(moment: datetime | None) -> bool:
    return moment is not None and abs(moment - datetime.now(UTC)) < HOUR


def test_counters_of_one_worker_and_minute_add_up(harness: StoreHarness) -> None:
    for _ in range(3):
        harness.record(entry(Kind.done, "a", 1), entry(Kind.duplicate, "a", 1))
    sums = "SELECT sum(received), sum(done), sum(duplicate), sum(dead) FROM oncebox_minute_counter"
    assert [tuple(map(int, row)) for row in harness.query(sums)] == [(6, 3, 3, 0)]


def test_rates_count_outcomes_since_a_time(harness: StoreHarness) -> None:
    rejected = {"reason": Reason.rejected}
    harness.record(
        entry(Kind.done, "1", 1),
        entry(Kind.duplicate, "1", 1),
        entry(Kind.failed, "2", 2, **RETRYING),
        entry(Kind.dead, "3", 3, **rejected),
        entry(Kind.quarantined, "4", 4, reason=Reason.payload_mismatch),
    )
    harness.call("claim_one", "c", arrival("by the caller"))
    since = NOW - HOUR
    expected = Rates(received=6, done=2, duplicate=1, failed=1, dead=1, quarantined=1)
    assert harness.call("rates", "c", since=since) == expected
    assert harness.call("rates", "c", since=NOW + HOUR) == Rates(0, 0, 0, 0, 0, 0)
    assert harness.call("rates", "other", since=since) == Rates(0, 0, 0, 0, 0, 0)


def test_the_status_of_an_unknown_consumer_is_empty(harness: StoreHarness) -> None:
    status = harness.call("status", "c")
    assert status.consumer == "c"
    assert (status.ready, status.retrying, status.blocked, status.isolated) == (0, 0, 0, 0)
    assert (status.awaiting_sequence, status.gaps, status.oldest_gap) == (0, 0, None)
    assert (status.oldest_pending, status.purged_before, status.last_purge_at) == (None,) * 3
    assert (status.dead, status.workers, status.partitions, status.outages) == ([], [], [], [])
    assert status.rates == dict.fromkeys((1, 5, 60), Rates(0, 0, 0, 0, 0, 0))


def test_the_status_counts_pending_messages_by_state(harness: StoreHarness) -> None:
    harness.receive(arrival("1"))
    harness.record(
        entry(Kind.stored, "2", -2, ready=True, isolated=True),
        entry(Kind.failed, "3", -3, **RETRYING),
        entry(Kind.blocked, "4", -4),
        entry(Kind.blocked, "5", -5),
    )
    status = harness.call("status", "c")
    assert (status.ready, status.retrying, status.blocked, status.isolated) == (2, 1, 2, 1)
    assert harness.call("status", "other").ready == 0


def test_the_status_shows_since_when_the_oldest_message_waits(harness: StoreHarness) -> None:
    harness.receive(arrival("1"), arrival("2"))
    assert is_now(harness.call("status", "c").oldest_pending)
    assert is_now(harness.call("status", "c").oldest_ready)
    harness.call("remove", harness.take().rows)
    assert harness.call("status", "c").oldest_pending is None


def test_the_status_counts_gaps_and_the_messages_behind_them(harness: StoreHarness) -> None:
    early = [AwaitingMessage(arrival(str(n), key="k", sequence=n), n) for n in (5, 6)]
    harness.call("store_awaiting", "c", early)
    moves = [
        SequenceMove(SequenceKey("k", ""), 3, True),
        SequenceMove(SequenceKey("l", ""), 3, False),
    ]
    harness.call("advance_sequences", "c", moves)
    status = harness.call("status", "c")
    assert (status.awaiting_sequence, status.gaps) == (2, 1)
    assert is_now(status.oldest_gap)


def test_the_status_counts_dead_letters_by_reason_and_blocked_keys(harness: StoreHarness) -> None:
    record_dead_letters(harness)
    harness.record(entry(Kind.quarantined, "a", 9, reason=Reason.payload_mismatch))
    assert harness.call("status", "c").dead == [
        DeadLetterCount("dead", "rejected", 3, 1),
        DeadLetterCount("quarantined", "payload_mismatch", 1, 0),
    ]


def test_the_status_shows_the_watermark_and_the_last_purge(harness: StoreHarness) -> None:
    harness.call("take_purge_turn", consumer="c", every=60)
    status = harness.call("status", "c")
    assert (is_now(status.last_purge_at), status.purged_before) == (True, None)
    harness.call("set_watermark", "c", NOW)
    assert harness.call("status", "c").purged_before == NOW


def test_the_status_shows_which_workers_crashed(harness: StoreHarness) -> None:
    lost = WorkerInfo("elsewhere:9:0", "0.1.lost", batch=7, timeout=60, heartbeat_timeout=-1)
    harness.call("sign_on", "c", lost)
    (worker,) = harness.call("status", "c").workers
    assert (worker.name, worker.batch) == (lost.name, 7)
    assert (worker.is_crashed, worker.is_overdue) == (True, True)
    assert is_now(worker.started_at)
    harness.call("sign_on", "c", WORKER)
    ours, other = harness.call("status", "c").workers
    assert (ours.name, ours.is_crashed, ours.is_overdue) == (WORKER.name, False, False)
    assert (other.name, other.is_crashed, other.is_overdue) == (lost.name, True, False)


def test_the_status_shows_partitions_with_lag_and_owner(harness: StoreHarness) -> None:
    for partition in ("1", "0"):
        start = Position(partition, 17, "log")
        harness.call("take_over", "c", "topic", WORKER, start, any_owner=True)
    gauges = {"0": Gauge(lag=7, settled=3)}
    harness.call("heartbeat_partitions", "c", "topic", WORKER, gauges)
    first, second = harness.call("status", "c").partitions
    assert (first.source, first.partition, first.next) == ("topic", "0", 17)
    assert (first.lag, first.settled, first.owner) == (7, 3, WORKER.name)
    assert (second.partition, second.lag, second.lag_at) == ("1", None, None)
    assert is_now(first.lag_at)
    assert is_now(first.owned_at)
    assert not first.is_overdue


def test_messages_are_listed_in_order_of_arrival_with_their_states(harness: StoreHarness) -> None:
    with harness.transaction() as work:
        seqs = harness.claim(work, *[arrival(id) for id in ("done", "dead", "failed")]).seqs
    assert seqs[1] is not None
    assert seqs[2] is not None
    harness.record(
        entry(Kind.dead, "dead", seqs[1], reason=Reason.rejected, **FAILED_ONCE),
        entry(Kind.failed, "failed", seqs[2], **{**RETRYING, "attempts": 4}),
    )
    done, dead, failed = harness.call("messages", "c", **ALL)
    assert (done.message_id, done.state, done.attempts) == ("done", "done", 1)
    assert (done.reason, done.last_error, is_now(done.processed_at)) == (None, None, True)
    assert (dead.message_id, dead.state, dead.reason) == ("dead", "dead", "rejected")
    assert (dead.last_error, dead.processed_at) == ("ValueError: x", None)
    assert (failed.message_id, failed.state, failed.attempts) == ("failed", "pending", 4)
    assert is_now(failed.received_at)
    assert harness.call("messages", "other", **ALL) == []


@pytest.mark.parametrize(
    ("options", "ids"),
    [
        ({"limit": 2}, ["c", "d"]),
        ({"filter": {"state": "pending"}}, ["d"]),
        ({"filter": {"type": "t"}}, ["b"]),
        ({"filter": {"key": "k"}}, ["c"]),
        ({"filter": {"state": ["done", "pending"], "key": "k"}}, ["c"]),
        ({"filter": {"ids": ["a", "c", "x"]}}, ["a", "c"]),
        ({"filter": {"origin": "x"}}, []),
        ({"filter": {"state": "done", "type": "t", "key": "k"}}, []),
    ],
)
def test_listed_messages_match_all_filters(
    harness: StoreHarness, options: dict[str, Any], ids: list[str]
) -> None:
    with harness.transaction() as work:
        harness.claim(work, arrival("a"), arrival("b", type="t"), arrival("c", key="k"))
    harness.receive(arrival("d"))
    found = harness.call("messages", "c", **{**ALL, **options})
    assert [message.message_id for message in found] == ids


def test_messages_are_listed_behind_a_number_or_since_a_time(harness: StoreHarness) -> None:
    with harness.transaction() as work:
        first, *_ = harness.claim(work, arrival("a"), arrival("b"), arrival("c")).seqs
    behind = harness.call("messages", "c", **{**ALL, "after": first})
    assert [message.message_id for message in behind] == ["b", "c"]
    (next_one,) = harness.call("messages", "c", **{**ALL, "after": first, "limit": 1})
    assert next_one.message_id == "b", "the first that follows, not the last"
    for filter, count in (
        ({"since": NOW - HOUR}, 3),
        ({"since": NOW + HOUR}, 0),
        ({"until": NOW + HOUR}, 3),
        ({"until": NOW - HOUR}, 0),
    ):
        found = harness.call("messages", "c", limit=9, filter=filter)
        assert len(found) == count


def test_a_message_is_shown_with_its_attempts_and_actions(harness: StoreHarness) -> None:
    with harness.transaction() as work:
        made = arrival("a", body=b"\xff", headers={"h": "v"}, occurred_at=NOW)
        (seq,) = harness.claim(work, made).seqs
    assert seq is not None
    dead = {**FAILED_ONCE, "reason": Reason.rejected, "duration": 0.5}
    harness.record(entry(Kind.dead, "a", seq, **dead))
    (detail,) = harness.call("message", "c", "a", None)
    assert (detail.payload, detail.headers) == (b"\xff", '{"h":"v"}')
    assert (detail.source, detail.coordinates, detail.occurred_at) == ("s", "0/1", NOW)
    assert [detail.letter] == [letter.id for letter in harness.letters()]
    (attempt,) = detail.attempts
    assert (attempt.number, attempt.outcome, attempt.worker) == (1, "dead", "w:0")
    assert (attempt.error is not None, attempt.duration, attempt.replay) == (True, 0.5, 0)
    discard = AuditEntry("discard", "ada", "noise")
    harness.call("discard_dead_letters", "c", harness.letters(), discard)
    (detail,) = harness.call("message", "c", "a", None)
    (action,) = detail.actions
    assert (action.action, action.by, action.why) == ("discard", "ada", "noise")
    assert (detail.message.state, detail.letter, is_now(action.at)) == ("discarded", None, True)


def test_an_id_names_one_message_per_origin(harness: StoreHarness) -> None:
    with harness.transaction() as work:
        twins = [arrival("a", origin=origin) for origin in ("", "o", "p")]
        harness.claim(work, *twins, arrival("b"))
    found = harness.call("message", "c", "a", None)
    assert sorted(detail.message.origin for detail in found) == ["", "o", "p"]
    (only,) = harness.call("message", "c", "a", "o")
    assert only.message.origin == "o"
    assert harness.call("message", "c", "a", "q") == []
    assert harness.call("message", "c", "unknown", None) == []
    assert harness.call("message", "other", "a", None) == []


def test_a_pending_message_is_shown_with_what_it_waits_for(harness: StoreHarness) -> None:
    row = store_messages(harness)
    harness.call("postpone", "c", row, delay=3600, crashed=True)
    (ready,) = harness.call("message", "c", "4", None)
    (retrying,) = harness.call("message", "c", "1", None)
    (blocked,) = harness.call("message", "c", "2", None)
    assert ready.waits is None
    assert retrying.waits is not None
    assert retrying.waits.startswith("until ")
    assert blocked.waits == "behind message '1' of its key"
    dead = {"blocks_key": True, "reason": Reason.rejected}
    harness.record(entry(Kind.dead, "dead", -1, key="m", **dead))
    harness.receive(arrival("5", key="m"))
    (letter,) = harness.letters()
    (blocked,) = harness.call("message", "c", "5", None)
    assert blocked.waits == f"behind dead letter {letter.id} of its key"


def test_dead_letters_are_grouped_by_their_error(harness: StoreHarness) -> None:
    def dead(id: str, seq: int, error: Exception) -> Any:
        return entry(Kind.dead, id, seq, reason=Reason.rejected, error=error, attempts=1)

    errors = [ValueError("x"), KeyError("y")]
    harness.record(*[dead(str(n), n, errors[n == 1]) for n in range(3)])
    harness.record(entry(Kind.quarantined, "a", 9, reason=Reason.payload_mismatch))
    groups = harness.call("dead_letter_groups", "c", {}, limit=9)
    assert (groups[0].state, groups[0].reason, groups[0].count) == ("dead", "rejected", 2)
    assert groups[0].error == "ValueError: x"
    first, _, third, _ = harness.letters()
    assert (groups[0].first, groups[0].last) == (first.id, third.id)
    assert is_now(groups[0].dead_at)
    assert sorted(group.count for group in groups) == [1, 1, 2]
    assert harness.call("dead_letter_groups", "c", {}, limit=1) == groups[:1]
    assert harness.call("dead_letter_groups", "other", {}, limit=9) == []
    (single,) = harness.call("dead_letter_groups", "c", {}, ids=[third.id], limit=9)
    assert (single.count, single.fingerprint) == (1, groups[0].fingerprint)
    (named,) = harness.call("dead_letter_groups", "c", {"state": "quarantined"}, limit=9)
    assert named.reason == "payload_mismatch"


def test_messages_and_dead_letters_are_found_by_their_error(harness: StoreHarness) -> None:
    with harness.transaction() as work:
        seqs = harness.claim(work, arrival("a"), arrival("b")).seqs
    errors = [ValueError("x"), KeyError("y")]
    harness.record(
        *[
            entry(Kind.dead, id, seq or 0, **{**FAILED_ONCE, "error": error, "reason": reason})
            for id, seq, error, reason in zip("ab", seqs, errors, Reason, strict=False)
        ]
    )
    first, second = harness.letters()
    for letter in (first, second):
        filter = {"fingerprint": letter.fingerprint}
        (found,) = harness.call("messages", "c", filter=filter, limit=9)
        assert found.message_id == letter.message_id
        assert harness.letters(**filter) == [letter]
        (named,) = harness.call("messages", "c", filter={"reason": letter.reason}, limit=9)
        assert named == found
    known = sorted((letter.fingerprint, letter.error) for letter in (first, second))
    assert harness.call("fingerprints", "c", "", limit=9) == known
    assert harness.call("fingerprints", "c", (known[0][0] or "")[:15], limit=9) == known[:1]
    assert harness.call("fingerprints", "other", "", limit=9) == []


def test_dead_letters_are_found_by_the_time_their_message_was_received(
    harness: StoreHarness,
) -> None:
    with harness.transaction() as work:
        (seq,) = harness.claim(work, arrival("a")).seqs
    harness.record(entry(Kind.dead, "a", seq or 0, **FAILED_ONCE, reason=Reason.rejected))
    harness.record(entry(Kind.quarantined, "b", 9, reason=Reason.too_late))
    back = "received_at - interval '2 hours'"
    if harness.store.dialect == "sqlite":
        back = "received_at - 2 * 3600000000"
    with harness.transaction() as work:
        run(work.execute(f"UPDATE oncebox_inbox SET received_at = {back}", {}))
    assert [x.message_id for x in harness.letters(since=NOW - HOUR)] == ["b"]
    assert [x.message_id for x in harness.letters(until=NOW - HOUR)] == ["a"]
