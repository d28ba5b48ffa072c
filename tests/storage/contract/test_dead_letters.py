"""The contract of stores: dead letters."""

from __future__ import annotations

from oncebox.model.message import Delivery
from oncebox.model.outcome import Kind, Outcome, Reason
from oncebox.processing.routing import select_batch
from oncebox.storage.records import AuditEntry, Entry
from oncebox.storage.steps import run
from support.stores import (
    AUDIT,
    RETRYING,
    StoreHarness,
    entry,
    head,
    locks_rows,
    record_dead_letters,
)


def test_a_quarantined_delivery_is_recorded_once(harness: StoreHarness) -> None:
    delivery = Delivery(b"?", source="s", coordinates="0/7")
    unknown = Entry(Outcome(Kind.quarantined, delivery, reason=Reason.missing_id))
    other = entry(Kind.quarantined, "a", 1, reason=Reason.payload_mismatch)
    for _ in range(2):
        harness.record(unknown, other, unknown)
    assert harness.query("SELECT state, reason FROM oncebox_dead_letter ORDER BY id") == [
        ("quarantined", "missing_id"),
        ("quarantined", "payload_mismatch"),
    ]


def test_a_retried_dead_letter_is_stored_at_the_head_of_its_key(harness: StoreHarness) -> None:
    record_dead_letters(harness)
    first = harness.letters(message_id="1")
    harness.call("retry_dead_letters", "c", first, AUDIT)
    assert harness.pending() == {"1": "ready", "2": "ready", "4": "blocked"}
    assert [letter.message_id for letter in harness.letters()] == ["3", "5"]
    row = harness.stored("1")
    assert (row.seq, row.attempts, row.isolated) == (1, 1, False)
    assert row.runs_separately, "so that what follows it waits if it fails"
    assert row.last_error == "ValueError: x"
    assert harness.query("SELECT action, by_whom, why, message_id, reason FROM oncebox_audit") == [
        ("retry", "ada", "fixed", "1", "rejected")
    ]


def test_dead_letters_are_retried_together(harness: StoreHarness) -> None:
    record_dead_letters(harness)
    harness.call("retry_dead_letters", "c", harness.letters(), AUDIT)
    assert harness.pending() == dict.fromkeys("12345", "ready")
    assert harness.letters() == []
    assert harness.query("SELECT count(*) FROM oncebox_audit") == [(3,)]


def test_a_crashed_dead_letter_is_retried_isolated(harness: StoreHarness) -> None:
    crashed = head("1", 1, isolated=True, crashes=3)
    harness.record(entry(Kind.dead, "1", 1, key="k", reason=Reason.crashed, stored=crashed))
    harness.call("retry_dead_letters", "c", harness.letters(), AUDIT)
    row = harness.stored("1")
    assert (row.isolated, row.crashes) == (True, 0)


def test_a_retried_dead_letter_runs_before_a_retrying_message_of_its_key(
    harness: StoreHarness,
) -> None:
    harness.record(
        entry(Kind.dead, "1", 1, key="k", reason=Reason.rejected),
        entry(Kind.failed, "2", 2, key="k", **RETRYING),
        entry(Kind.blocked, "3", 3, key="k"),
    )
    harness.call("retry_dead_letters", "c", harness.letters(), AUDIT)
    assert harness.pending() == dict.fromkeys("123", "ready")
    assert [row.message.id for row in select_batch(harness.take().rows)] == ["1"]


def test_a_discarded_dead_letter_releases_its_key(harness: StoreHarness) -> None:
    record_dead_letters(harness)
    harness.call(
        "discard_dead_letters",
        "c",
        harness.letters(message_id="1"),
        AuditEntry("discard", "ada", "noise"),
    )
    assert harness.pending() == {"2": "ready", "4": "blocked"}
    harness.call(
        "discard_dead_letters",
        "c",
        harness.letters(message_id="3"),
        AuditEntry("discard", "ada", "noise"),
    )
    assert harness.pending() == {"2": "ready", "4": "ready"}
    assert harness.query("SELECT action, message_id FROM oncebox_audit ORDER BY id") == [
        ("discard", "1"),
        ("discard", "3"),
    ]


def test_dead_letters_that_were_removed_since_are_not_locked(harness: StoreHarness) -> None:
    record_dead_letters(harness)
    found = harness.letters()
    harness.call("discard_dead_letters", "c", found[:1], AUDIT)
    assert harness.call("lock_dead_letters", "c", found) == found[1:]
    assert harness.call("lock_dead_letters", "other", found) == []


@locks_rows
def test_dead_letters_of_a_key_with_an_isolated_message_are_not_locked(
    harness: StoreHarness,
) -> None:
    record_dead_letters(harness)
    harness.record(entry(Kind.stored, "0", -1, key="k", ready=True, isolated=True))
    row = harness.stored("0")
    token = harness.call("postpone", "c", row, delay=60, crashed=True)
    with harness.transaction() as work:
        assert run(harness.store.take_isolated(work, row, token, 60)) is not None
        locked = harness.call("lock_dead_letters", "c", harness.letters())
        assert [letter.message_id for letter in locked] == ["5"]
    assert len(harness.call("lock_dead_letters", "c", harness.letters())) == 3


def test_dead_letters_are_found_in_pages(harness: StoreHarness) -> None:
    record_dead_letters(harness)
    newest = harness.call("newest_dead_letter", "c")
    first, second, third = harness.letters()
    assert newest == third.id
    assert harness.call("newest_dead_letter", "other") == 0
    find = {"limit": 1, "after": first.id, "up_to": newest}
    assert harness.call("find_dead_letters", "c", {}, **find) == [second]
    bounds = {"limit": 9, "up_to": second.id}
    assert harness.call("find_dead_letters", "c", {}, **bounds) == [first, second]
    assert harness.letters(ids=[third.id, first.id]) == [first, third]


def test_a_dead_letter_is_leased_until_its_hooks_were_notified(harness: StoreHarness) -> None:
    dead = [entry(Kind.dead, str(n), n, reason=Reason.rejected) for n in range(3)]
    harness.record(*dead, has_on_dead=True)
    harness.record(entry(Kind.dead, "quiet", 9, reason=Reason.rejected))
    leased = harness.call("lease_unnotified", "c", limit=2, lease=60)
    rest = harness.call("lease_unnotified", "c", limit=2, lease=0)
    assert sorted(letter.message_id for letter in leased + rest) == ["0", "1", "2"]
    assert harness.call("lease_unnotified", "other", limit=2, lease=60) == []
    assert harness.call("lease_unnotified", "c", limit=2, lease=0) == rest, (
        "its lease ended at once"
    )
    harness.call("mark_notified", rest)
    assert harness.call("lease_unnotified", "c", limit=2, lease=60) == []
    assert harness.query(
        "SELECT count(*) FROM oncebox_dead_letter WHERE notify_at IS NOT NULL"
    ) == [(2,)]


def test_hooks_have_work_while_a_dead_letter_is_neither_leased_nor_notified(
    harness: StoreHarness,
) -> None:
    harness.record(entry(Kind.dead, "quiet", 1, reason=Reason.rejected))
    assert harness.call("has_unnotified", "c") is False
    harness.record(entry(Kind.dead, "a", 2, reason=Reason.rejected), has_on_dead=True)
    assert harness.call("has_unnotified", "c") is True
    assert harness.call("has_unnotified", "other") is False
    harness.call("lease_unnotified", "c", limit=9, lease=60)
    assert harness.call("has_unnotified", "c") is False
