"""The contract of stores: claims."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from oncebox.model.outcome import Kind, Reason
from oncebox.storage.steps import run
from support.stores import FAILED_ONCE, StoreHarness, arrival, entry


def test_the_first_claim_is_new_and_the_second_a_duplicate(harness: StoreHarness) -> None:
    with harness.transaction() as work:
        claims = harness.claim(work, arrival("b"), arrival("a"))
        assert claims.answers == "nn"
        seqs = [seq for seq in claims.seqs if seq is not None]
        assert claims.seqs == sorted(seqs), "numbers follow arrival, not ids"
    with harness.transaction() as work:
        claims = harness.claim(work, arrival("a"), arrival("c"), arrival("b"))
        assert claims.answers == "dnd"
        assert [seq is None for seq in claims.seqs] == [True, False, True]


def test_consumers_and_origins_do_not_collide(harness: StoreHarness) -> None:
    with harness.transaction() as work:
        assert harness.claim(work, arrival("a"), arrival("a", origin="o")).answers == "nn"
    with harness.transaction() as work:
        assert harness.claim(work, arrival("a"), consumer="other").answers == "n"


def test_other_bytes_under_the_same_id_are_not_a_duplicate(harness: StoreHarness) -> None:
    with harness.transaction() as work:
        harness.claim(work, arrival("a"), arrival("unhashed", body=None))
    with harness.transaction() as work:
        twins = (arrival("a", body=b"[]"), arrival("a", body=None), arrival("unhashed"))
        assert harness.claim(work, *twins).answers == "xdd"
    with harness.transaction() as work:
        pair = (arrival("n", body=b"1"), arrival("n", body=b"2"))
        assert harness.claim(work, *pair).answers == "nx", "within one batch the first arrival wins"


def test_a_rolled_back_claim_leaves_nothing(harness: StoreHarness) -> None:
    with pytest.raises(KeyError), harness.transaction() as work:
        harness.claim(work, arrival("a"))
        raise KeyError
    with harness.transaction() as work:
        assert harness.claim(work, arrival("a")).answers == "n"


def test_a_released_claim_is_new_again(harness: StoreHarness) -> None:
    with harness.transaction() as work:
        harness.claim(work, arrival("kept"))
        pair = (arrival("kept"), arrival("a"))
        claims = harness.claim(work, *pair)
        run(harness.store.release_claims(work, "c", pair, claims))
    with harness.transaction() as work:
        assert harness.claim(work, *pair).answers == "dn"


def test_a_claim_reports_a_key_with_unfinished_messages(harness: StoreHarness) -> None:
    retry = {"retry_in": timedelta(minutes=1), **FAILED_ONCE}
    harness.record(
        entry(Kind.failed, "1", -5, key="retrying", **retry),
        entry(Kind.blocked, "2", -4, key="retrying"),
        entry(Kind.stored, "3", -3, key="ready", ready=True),
        entry(Kind.dead, "4", -2, key="blocked", blocks_key=True, reason=Reason.rejected),
        entry(Kind.dead, "5", -1, key="skipped", blocks_key=False, reason=Reason.rejected),
    )
    keys = ("retrying", "ready", "blocked", "skipped", "free", None)
    with harness.transaction() as work:
        arrivals = [arrival(f"new-{key}", key=key) for key in keys]
        assert harness.claim(work, *arrivals).answers == "wrwnnn"
    with harness.transaction() as work:
        later = [arrival(f"unordered-{key}", key=key) for key in keys]
        assert harness.claim(work, *later, ordered=False).answers == "nnnnnn"
    with harness.transaction() as work:
        other = arrival("other", key="retrying")
        assert harness.claim(work, other, consumer="other").answers == "n"


def test_the_guard_passes_in_the_claims_transaction_and_in_no_other(harness: StoreHarness) -> None:
    with harness.transaction() as work:
        claims = harness.claim(work, arrival("a"))
        harness.store.guard(work, claims.token)
    with pytest.raises(Exception, match=r"not the transaction of the claim|no such savepoint"):
        with harness.transaction() as work:
            harness.claim(work, arrival("b"), ordered=False)
            harness.store.guard(work, claims.token)


def test_the_guard_stops_the_counters_too(harness: StoreHarness) -> None:
    with harness.transaction() as work:
        claims = harness.claim(work, arrival("a"))
        harness.store.guard(work, claims.token)
        run(harness.store.record(work, "c", "w", [entry(Kind.done, "a", 1)]))
    with pytest.raises(Exception, match=r"not the transaction of the claim|no such savepoint"):
        with harness.transaction() as work:
            harness.claim(work, arrival("b"), ordered=False)
            harness.store.guard(work, claims.token)
            run(harness.store.record(work, "c", "w", [entry(Kind.done, "b", 2)]))
    assert harness.query("SELECT received, done FROM oncebox_minute_counter") == [(1, 1)]


def test_payloads_are_kept_as_they_are_or_not_at_all(harness: StoreHarness) -> None:
    body = bytes(range(256))
    with harness.transaction() as work:
        harness.claim(work, arrival("kept", body=body))
        harness.claim(work, arrival("forgotten", body=body), keep_payload=False)
    rows = harness.query("SELECT message_id, payload FROM oncebox_inbox ORDER BY seq")
    assert [(id, payload and bytes(payload)) for id, payload in rows] == [
        ("kept", body),
        ("forgotten", None),
    ]


@pytest.mark.parametrize("ordered", [True, False])
def test_a_message_by_itself_is_answered_and_stored_as_in_a_batch(
    harness: StoreHarness, ordered: bool
) -> None:
    retry = {"retry_in": timedelta(minutes=1), **FAILED_ONCE}
    now = datetime.now(UTC)
    harness.record(
        entry(Kind.failed, "1", -5, key="retrying", **retry),
        entry(Kind.stored, "2", -4, key="ready", ready=True),
        entry(Kind.stored, "3", -3, key="both", ready=True),
        entry(Kind.dead, "4", -2, key="both", blocks_key=True, reason=Reason.rejected),
        entry(Kind.dead, "5", -1, key="skipped", blocks_key=False, reason=Reason.rejected),
    )
    harness.call("set_watermark", "c", now)
    full: dict[str, Any] = {"origin": "o", "type": "t", "version": 7, "headers": {"h": "v"}}
    full |= {"occurred_at": now, "produced_at": now}
    arrivals = [
        *[
            arrival(f"of {key}", key=key)
            for key in ("retrying", "ready", "both", "skipped", "free")
        ],
        arrival("without key"),
        arrival("old", produced_at=now - timedelta(days=1)),
        arrival("old and blocked", key="retrying", produced_at=now - timedelta(days=1)),
        arrival("full", key="full", body=b"\x00\xff", **full),
    ]
    columns = (
        "consumer, origin, message_id, type, version, key, payload, content_hash, headers, source,"
        " coordinates, occurred_at, produced_at"
    )
    stored = f"SELECT {columns} FROM oncebox_inbox ORDER BY seq"
    with harness.transaction() as work:
        together = harness.claim(work, *arrivals, ordered=ordered).answers
    assert together == ("wrwnnnlln" if ordered else "nnnnnnlln")
    rows = harness.query(stored)
    with harness.transaction() as work:
        assert harness.claim(work, arrivals[0]).answers == "d"
        assert harness.claim(work, arrival("full", origin="o", body=b"{}")).answers == "x"
        run(work.execute("DELETE FROM oncebox_inbox", {}))
        alone = [harness.claim(work, message, ordered=ordered) for message in arrivals]
    assert "".join(claims.answers for claims in alone) == together
    assert [len(claims.seqs) for claims in alone] == [1] * len(arrivals)
    assert str(harness.query(stored)) == str(rows)
