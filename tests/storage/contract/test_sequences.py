"""The contract of stores: sequence numbers."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from oncebox.model.gap import Gap
from oncebox.model.outcome import Kind, Reason
from oncebox.model.sequencing import SequenceState
from oncebox.storage.records import Arrival, AwaitingMessage, SequenceKey, SequenceMove
from oncebox.storage.steps import run
from support.stores import StoreHarness, arrival, entry, locks_rows, make_older

K = SequenceKey("k", "")
L = SequenceKey("l", "")


def numbered(number: int, count: SequenceKey = K, *, id: str | None = None, **more: Any) -> Arrival:
    """A message with a sequence number; its id is its key and number."""
    id = id or f"{count.key}{number}"
    return arrival(id, key=count.key, epoch=count.epoch, sequence=number, **more)


def keep(harness: StoreHarness, *arrivals: Arrival) -> list[tuple[SequenceKey, int]]:
    """Claim messages, and keep them until their numbers are due; returns the taken numbers."""
    with harness.transaction() as work:
        claims = harness.claim(work, *arrivals)
        early = [AwaitingMessage(a, seq) for a, seq in zip(arrivals, claims.seqs, strict=True)]
        return sorted(run(harness.store.store_awaiting(work, "c", early)))


def advance(
    harness: StoreHarness,
    next: int | None,
    *admitted: int,
    count: SequenceKey = K,
    waits: bool = True,
) -> None:
    harness.call("advance_sequences", "c", [SequenceMove(count, next, waits, admitted)])


def make_gap_older(harness: StoreHarness, count: SequenceKey, seconds: int) -> None:
    """Let a number be missing for longer."""
    columns = {"table": "sequence", "column": "waiting_since"}
    make_older(harness, timedelta(seconds=seconds), f"key = '{count.key}'", **columns)


def missing(harness: StoreHarness, **wanted: Any) -> list[Gap]:
    gaps: list[Gap] = harness.call("gaps", "c", **wanted)
    return gaps


def keys(gaps: list[Gap]) -> list[str]:
    return [gap.key for gap in gaps]


def test_the_state_of_a_sequence_is_its_next_number_and_what_waits(harness: StoreHarness) -> None:
    other_epoch = SequenceKey("k", "2")
    keep(harness, numbered(5), numbered(4), numbered(9, other_epoch, id="other"))
    advance(harness, 3)
    advance(harness, None, count=other_epoch)
    advance(harness, 7, count=L, waits=False)
    assert harness.call(
        "sequence_states", "c", [K, L, other_epoch, SequenceKey("unknown", "")]
    ) == {
        K: SequenceState(3, [4, 5]),
        L: SequenceState(7, []),
        other_epoch: SequenceState(None, [9]),
    }
    assert harness.call("sequence_states", "other", [K]) == {}
    assert harness.call("sequence_states", "c", []) == {}


def test_only_the_lowest_of_many_waiting_numbers_are_listed(harness: StoreHarness) -> None:
    keep(harness, *[numbered(number) for number in range(1_002, 1, -1)])
    advance(harness, 1)
    (state,) = harness.call("sequence_states", "c", [K]).values()
    assert state.is_cut
    assert list(state.early) == list(range(2, 2 + len(state.early)))


def test_a_number_is_taken_by_the_first_message_that_waits_with_it(harness: StoreHarness) -> None:
    assert keep(harness, numbered(4), numbered(5), numbered(4, L)) == []
    again = (numbered(4, id="again"), numbered(6), numbered(5, SequenceKey("k", "2"), id="2"))
    assert keep(harness, *again) == [(K, 4)]
    waiting = "SELECT message_id FROM oncebox_awaiting_sequence WHERE key = 'k' ORDER BY message_id"
    assert harness.query(waiting) == [("2",), ("k4",), ("k5",), ("k6",)]
    with harness.transaction() as work:
        assert not run(harness.store.store_awaiting(work, "c", []))


def test_a_message_that_waits_for_its_number_is_not_done(harness: StoreHarness) -> None:
    keep(harness, numbered(4))
    advance(harness, 3)
    (detail,) = harness.call("message", "c", "k4", None)
    assert (detail.message.state, detail.message.attempts) == ("awaiting_sequence", 0)
    assert detail.waits == "for sequence number 3 of its key; its own is 4"


def test_admitted_messages_are_stored_in_the_order_of_their_numbers(harness: StoreHarness) -> None:
    body = bytes(range(256))
    early = numbered(5, body=body, origin="o", type="t", version=7, headers={"h": "v"})
    keep(harness, early, numbered(4), numbered(7))
    harness.receive(arrival("before", key="k"))
    advance(harness, 6, 4, 5)
    assert harness.pending() == {"before": "ready", "k4": "ready", "k5": "ready"}
    assert harness.call("sequence_states", "c", [K]) == {K: SequenceState(6, [7])}
    message = harness.stored("k5").message
    assert (message.payload, message.origin, message.type) == (body, "o", "t")
    assert (message.version, message.key, message.headers) == (7, "k", {"h": "v"})
    seqs = "SELECT seq FROM oncebox_{} WHERE message_id IN ('k4', 'k5') ORDER BY seq"
    assert harness.query(seqs.format("inbox")) == harness.query(seqs.format("pending"))


def test_an_admitted_message_waits_if_its_key_is_blocked(harness: StoreHarness) -> None:
    keep(harness, numbered(4), numbered(4, L))
    harness.record(entry(Kind.dead, "x", -1, key="k", blocks_key=True, reason=Reason.rejected))
    moves = [SequenceMove(K, 5, False, [4]), SequenceMove(L, 5, False, [4])]
    harness.call("advance_sequences", "c", moves)
    assert harness.pending() == {"k4": "blocked", "l4": "ready"}


def test_a_redelivered_message_is_isolated_when_its_number_is_due(harness: StoreHarness) -> None:
    made = numbered(4)
    redelivered = msgspec.structs.replace(made.delivery, redelivered=True)
    keep(harness, msgspec.structs.replace(made, delivery=redelivered))
    advance(harness, 5, 4, waits=False)
    assert harness.stored("k4").isolated


def test_the_number_of_a_quarantined_message_is_kept_without_it(harness: StoreHarness) -> None:
    harness.call("store_awaiting", "c", [AwaitingMessage(numbered(4, body=b"secret"), None)])
    advance(harness, 3)
    assert harness.call("sequence_states", "c", [K]) == {K: SequenceState(3, [4])}
    kept = harness.query("SELECT payload FROM oncebox_awaiting_sequence")
    assert [bytes(payload) for (payload,) in kept] == [b""]
    advance(harness, 5, 4, waits=False)
    assert harness.pending() == {}
    assert harness.query("SELECT * FROM oncebox_awaiting_sequence") == []


def test_a_gap_is_a_missing_number_for_which_messages_wait(harness: StoreHarness) -> None:
    keep(harness, numbered(5), numbered(7), numbered(2, L))
    advance(harness, 3)
    advance(harness, 9, count=SequenceKey("nothing waits", ""), waits=False)
    advance(harness, None, count=L)
    make_gap_older(harness, K, 60)
    first, second = missing(harness)
    assert (first.key, first.epoch, first.next, first.lowest, first.waiting) == ("k", "", 3, 5, 2)
    assert (second.key, second.next, second.lowest, second.waiting) == ("l", None, 2, 1)
    minute_ago = datetime.now(UTC) - timedelta(minutes=1)
    assert abs(first.waiting_since - minute_ago) < timedelta(minutes=10)
    assert harness.call("gaps", "other") == []


def test_gaps_are_found_by_age_key_and_length(harness: StoreHarness) -> None:
    keep(harness, numbered(5), numbered(2, L))
    advance(harness, 3)
    advance(harness, 1, count=L)
    make_gap_older(harness, L, 3600)
    assert keys(missing(harness)) == ["l", "k"], "the oldest first"
    assert keys(missing(harness, limit=1)) == ["l"]
    assert keys(missing(harness, age=1800)) == ["l"]
    assert keys(missing(harness, age=7200)) == []
    assert keys(missing(harness, key="k")) == ["k"]
    assert keys(missing(harness, longest=1)) == ["l"]
    assert keys(missing(harness, longest=2)) == ["l", "k"]


def test_a_gap_is_as_old_as_its_missing_number(harness: StoreHarness) -> None:
    keep(harness, numbered(5))
    advance(harness, 3)
    make_gap_older(harness, K, 3600)
    keep(harness, numbered(6))
    advance(harness, 3)
    assert keys(missing(harness, age=1800)) == ["k"], "the same number is missing"
    advance(harness, 4)
    assert keys(missing(harness, age=1800)) == [], "another number is missing now"
    assert keys(missing(harness)) == ["k"]
    advance(harness, 7, 5, 6, waits=False)
    assert missing(harness) == []


def test_a_gap_is_confirmed_until_anything_changes(harness: StoreHarness) -> None:
    keep(harness, numbered(5), numbered(2, L))
    advance(harness, 3)
    advance(harness, None, count=L)
    make_gap_older(harness, K, 60)
    gap, unknown = missing(harness)
    assert harness.call("is_gap", "c", gap, age=30) is True
    assert harness.call("is_gap", "c", gap, age=3600) is False, "it is not that old"
    assert harness.call("is_gap", "other", gap, age=30) is False
    assert harness.call("is_gap", "c", msgspec.structs.replace(gap, epoch="2"), age=30) is False
    assert harness.call("is_gap", "c", msgspec.structs.replace(gap, key="x"), age=30) is False
    assert harness.call("is_gap", "c", unknown, age=0) is True
    advance(harness, 4)
    make_gap_older(harness, K, 60)
    assert harness.call("is_gap", "c", gap, age=30) is False, "number 3 has arrived"
    assert harness.call("is_gap", "c", msgspec.structs.replace(gap, next=4), age=30) is True
    advance(harness, 6, 5, waits=False)
    assert harness.call("is_gap", "c", msgspec.structs.replace(gap, next=6), age=0) is False


def test_a_sequence_whose_next_number_waits_already_is_cut(harness: StoreHarness) -> None:
    keep(harness, numbered(5), numbered(2, L), numbered(5, SequenceKey("k", "2"), id="other epoch"))
    advance(harness, 5)
    advance(harness, 1, count=L)
    advance(harness, 4, count=SequenceKey("k", "2"))
    assert harness.call("cut_sequences", "c") == [K]
    assert harness.call("cut_sequences", "other") == []
    advance(harness, 6, 5, waits=False)
    assert harness.call("cut_sequences", "c") == []


def test_a_free_key_is_locked(harness: StoreHarness) -> None:
    with harness.transaction() as work:
        assert run(harness.store.try_lock_key(work, "c", "k")) is True
        assert run(harness.store.try_lock_key(work, "c", "k")) is True
    assert harness.receive(arrival("a", key="k")) == "n", "the lock ended with its transaction"


@locks_rows
def test_a_key_is_locked_by_one_transaction_at_a_time(harness: StoreHarness) -> None:
    with harness.transaction() as work:
        harness.claim(work, arrival("a", key="k"))
        assert harness.call("try_lock_key", "c", "k") is False
        assert harness.call("try_lock_key", "c", "l") is True
        assert harness.call("try_lock_key", "other", "k") is True
    assert harness.call("try_lock_key", "c", "k") is True
