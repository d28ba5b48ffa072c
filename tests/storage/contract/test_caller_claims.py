"""The contract of stores: claims in the caller's transaction, and what else claims need."""

from __future__ import annotations

from datetime import timedelta

import pytest

from oncebox.errors import Conflict
from oncebox.model.outcome import Kind
from oncebox.storage.steps import run
from support.stores import FAILED_ONCE, NOW, StoreHarness, arrival, entry, locks_rows

OLD = NOW - timedelta(days=2)


def claimed(harness: StoreHarness) -> list[str]:
    """The ids of all claimed messages, in order of arrival."""
    rows = harness.query("SELECT message_id FROM oncebox_inbox ORDER BY seq")
    return [id for (id,) in rows]


def test_a_message_is_claimed_once_in_the_callers_transaction(harness: StoreHarness) -> None:
    assert harness.call("claim_one", "c", arrival("a")) == "n"
    assert harness.call("claim_one", "c", arrival("a")) == "d"
    assert harness.call("claim_one", "c", arrival("a", body=None)) == "d"
    assert harness.call("claim_one", "c", arrival("a", body=b"[]")) == "x"
    assert harness.call("claim_one", "c", arrival("a", origin="o")) == "n"
    assert harness.call("claim_one", "other", arrival("a")) == "n"
    assert claimed(harness) == ["a"] * 3
    rates = harness.call("rates", "c", since=OLD)
    assert (rates.received, rates.done, rates.duplicate) == (4, 2, 2)


def test_a_claim_stores_all_properties_of_its_message(harness: StoreHarness) -> None:
    properties = {"key": "k", "type": "t", "version": 7, "headers": {"h": "v"}}
    one = arrival("one", body=b"\xff", produced_at=NOW, **properties)
    many = arrival("many", body=b"\xff", produced_at=NOW, **properties)
    harness.call("claim_one", "c", one)
    harness.call("claim_many", "c", [many])
    harness.call("claim_one", "c", arrival("without payload"), keep_payload=False)
    harness.call("claim_many", "c", [arrival("without payload too")], keep_payload=False)
    for id in ("one", "many"):
        (detail,) = harness.call("message", "c", id, None)
        message = detail.message
        assert (message.key, message.type, message.version) == ("k", "t", 7)
        assert (detail.payload, detail.headers) == (b"\xff", '{"h":"v"}')
        assert (detail.source, detail.coordinates, message.state) == ("s", "0/1", "done")
    for id in ("without payload", "without payload too"):
        (detail,) = harness.call("message", "c", id, None)
        assert detail.payload is None


def test_a_message_below_the_watermark_is_not_claimed(harness: StoreHarness) -> None:
    harness.call("set_watermark", "c", NOW - timedelta(days=1))
    assert harness.call("claim_one", "c", arrival("old", produced_at=OLD)) == "l"
    assert harness.call("claim_one", "c", arrival("new", produced_at=NOW)) == "n"
    assert harness.call("claim_one", "other", arrival("old", produced_at=OLD)) == "n"
    late = [arrival("b"), arrival("old", produced_at=OLD)]
    assert harness.call("claim_many", "c", late)[1] == "l"
    assert sorted(claimed(harness)) == ["new", "old"]


def test_many_messages_are_claimed_in_the_order_given(harness: StoreHarness) -> None:
    assert harness.call("claim_many", "c", [arrival("b"), arrival("a")]) == "nn"
    assert claimed(harness) == ["b", "a"]
    again = [arrival("a"), arrival("c"), arrival("b")]
    assert harness.call("claim_many", "c", again) == "dnd"
    assert claimed(harness) == ["b", "a", "c"]
    assert harness.call("rates", "c", since=OLD).duplicate == 2


def test_many_messages_are_claimed_all_or_none(harness: StoreHarness) -> None:
    harness.call("claim_one", "c", arrival("a"))
    others = [arrival("b"), arrival("a", body=b"[]"), arrival("c")]
    assert harness.call("claim_many", "c", others)[1] == "x"
    assert claimed(harness) == ["a"]


@locks_rows
def test_a_claim_is_refused_if_its_snapshot_may_be_too_old(harness: StoreHarness) -> None:
    for any_snapshot, state in ((False, "i"), (True, "n")):
        with harness.transaction() as work:
            run(work.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ", {}))
            one = harness.store.claim_one(work, "c", arrival("a"), any_snapshot=any_snapshot)
            assert run(one) == state
            many = [arrival("b"), arrival("c")]
            claim = harness.store.claim_many(work, "c", many, any_snapshot=any_snapshot)
            assert run(claim) == state * 2
        assert len(claimed(harness)) == (3 if any_snapshot else 0)


def test_failures_of_the_callers_own_loop_are_counted(harness: StoreHarness) -> None:
    message = arrival("a").message
    assert harness.call("count_failures", "c", message) == 0
    for attempts in (1, 2):
        failed = {**FAILED_ONCE, "attempts": attempts, "retry_in": timedelta(minutes=1)}
        harness.record(entry(Kind.failed, "a", attempts, **failed))
    done = entry(Kind.done, "b", 9, ran=True, attempts=1, stored=None)
    harness.record(done, entry(Kind.failed, "c", 10, retry_in=timedelta(0), **FAILED_ONCE))
    assert harness.call("count_failures", "c", message) == 2
    assert harness.call("count_failures", "other", message) == 0
    assert harness.call("count_failures", "c", arrival("a", origin="o").message) == 0


def test_claimed_messages_are_stored_like_received_ones(harness: StoreHarness) -> None:
    harness.receive(arrival("1", key="ready"))
    harness.call("postpone", "c", harness.stored("1"), delay=60)
    arrivals = [arrival("2", key="ready"), arrival("3"), arrival("1", key="ready")]
    with harness.transaction() as work:
        claims = harness.claim(work, *arrivals)
        assert claims.answers == "wnd"
        run(harness.store.store_received(work, "c", arrivals, claims))
    assert harness.pending() == {"1": "retrying", "2": "blocked", "3": "ready"}
    assert harness.stored("3").message.payload == b"{}"


def test_the_claims_of_a_committed_transaction_are_found(harness: StoreHarness) -> None:
    arrivals = [arrival("a", key="k"), arrival("b")]
    with harness.transaction() as work:
        claims = harness.claim(work, *arrivals)
    messages = [(a.message, seq) for a, seq in zip(arrivals, claims.seqs, strict=True)]
    assert harness.call("committed_claims", "c", messages, claims.token) == set(claims.seqs)
    assert harness.call("committed_claims", "c", messages[:1], claims.token) == {claims.seqs[0]}
    assert harness.call("committed_claims", "other", messages, claims.token) == set()


def test_the_claims_of_a_rolled_back_transaction_are_not_found(harness: StoreHarness) -> None:
    with pytest.raises(KeyError), harness.transaction() as work:
        claims = harness.claim(work, arrival("a"))
        raise KeyError
    with harness.transaction() as work:
        harness.claim(work, arrival("a"))
    lost = [(arrival("a").message, claims.seqs[0])]
    assert harness.call("committed_claims", "c", lost, claims.token) == set()


@locks_rows
def test_the_claims_of_a_transaction_in_progress_are_unknown(harness: StoreHarness) -> None:
    with harness.transaction() as work:
        claims = harness.claim(work, arrival("a"))
        with pytest.raises(Conflict):
            lost = [(arrival("a").message, claims.seqs[0])]
            harness.call("committed_claims", "c", lost, claims.token)
