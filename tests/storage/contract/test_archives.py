"""The contract of stores: archived, restored and erased messages."""

from __future__ import annotations

from datetime import timedelta

import msgspec
import pytest

from oncebox.errors import ArchiveError
from oncebox.model.filters import MessageFilter
from oncebox.model.outcome import Kind, Reason
from oncebox.storage.records import ArchivedMessage, ArchivedRef, AuditEntry
from support.stores import (
    FAILED_ONCE,
    NOW,
    StoreHarness,
    arrival,
    entry,
    finish,
    make_older,
    purge_all,
    stored_ids,
)

DAY = timedelta(days=1)
WATERMARK = NOW - DAY
ERASE = AuditEntry("erase", "ada", "a request")
RESTORE = AuditEntry("restore", "ada", "an audit")
EVERYTHING = MessageFilter()


def archive(harness: StoreHarness) -> list[ArchivedMessage]:
    """All old messages, as they are archived."""
    found: list[ArchivedMessage] = []
    for window in harness.call("old_windows", "c", WATERMARK):
        found += harness.call("old_messages", "c", WATERMARK, window, after=-(2**60), limit=99)
    return found


def refs(messages: list[ArchivedMessage]) -> list[ArchivedRef]:
    return [
        ArchivedRef(message.origin, message.id, len(message.runs), message.body is not None)
        for message in messages
    ]


def add_failure(harness: StoreHarness, id: str) -> None:
    """Add a failed attempt to a finished message, as the caller's own loop does."""
    ((seq,),) = harness.query(f"SELECT seq FROM oncebox_inbox WHERE message_id = '{id}'")
    dead = entry(Kind.dead, id, seq, reason=Reason.rejected, **FAILED_ONCE)
    harness.record(dead)
    harness.call("discard_dead_letters", "c", harness.letters(), AuditEntry("discard", "x", "x"))


def test_a_message_is_archived_with_everything_that_is_known_of_it(harness: StoreHarness) -> None:
    made = arrival(
        "a",
        body=b"\xff",
        origin="o",
        type="t",
        version=7,
        key="k",
        headers={"h": "v"},
        occurred_at=NOW - 3 * DAY,
        produced_at=NOW - 4 * DAY,
    )
    finish(harness, made, arrival("b"), arrival("bare", body=None))
    add_failure(harness, "b")
    make_older(harness, 2 * DAY)
    first, second, third = archive(harness)
    assert (first.origin, first.id, first.type, first.version) == ("o", "a", "t", 7)
    assert (first.key, first.body, first.headers) == ("k", b"\xff", '{"h":"v"}')
    assert (first.source, first.coordinates) == ("s", "0/1")
    assert (first.occurred_at, first.produced_at) == (NOW - 3 * DAY, NOW - 4 * DAY)
    assert first.content_hash == made.message.content_hash
    assert (first.runs, third.runs, third.content_hash) == ([], [], None)
    (run,) = second.runs
    assert (run.number, run.outcome, run.worker, run.replay) == (1, "dead", "w:0", 0)
    assert run.error is not None
    assert first.seq < second.seq < third.seq


def test_only_old_and_finished_messages_are_archived(harness: StoreHarness) -> None:
    finish(harness, arrival("old"), arrival("produced later", produced_at=NOW), arrival("new"))
    harness.receive(arrival("pending"))
    harness.call("claim_one", "other", arrival("theirs"))
    make_older(harness, 2 * DAY, "message_id <> 'new'")
    (window,) = harness.call("old_windows", "c", WATERMARK)
    everything = {"after": -(2**60), "limit": 99}
    found = harness.call("old_messages", "c", WATERMARK, window, **everything)
    assert [message.id for message in found] == ["old"]


def test_old_messages_are_read_in_pages(harness: StoreHarness) -> None:
    finish(harness, *[arrival(str(n)) for n in range(5)])
    make_older(harness, 2 * DAY)
    (window,) = harness.call("old_windows", "c", WATERMARK)
    first = harness.call("old_messages", "c", WATERMARK, window, after=0, limit=3)
    assert [message.id for message in first] == ["0", "1", "2"]
    rest = harness.call("old_messages", "c", WATERMARK, window, after=first[-1].seq, limit=3)
    assert [message.id for message in rest] == ["3", "4"]


def test_archived_messages_are_purged_unless_they_changed(harness: StoreHarness) -> None:
    ids = ("same", "ran again", "erased", "replayed", "not archived")
    finish(harness, *[arrival(id) for id in ids])
    make_older(harness, 2 * DAY)
    archived = [message for message in archive(harness) if message.id != "not archived"]
    add_failure(harness, "ran again")
    harness.call("erase", "c", [(None, "default", "erased")], ERASE)
    wanted = MessageFilter(ids=["replayed"], state="done")
    harness.call("begin_replay", "c", "again", wanted, None, ERASE)
    assert harness.call("purge_archived", "other", refs(archived)) == 0
    assert harness.call("purge_archived", "c", refs(archived)) == 1
    assert stored_ids(harness) == sorted(set(ids) - {"same"})


def test_the_attempts_of_a_purged_message_are_purged_with_it(harness: StoreHarness) -> None:
    finish(harness, arrival("a"), arrival("b"))
    add_failure(harness, "a")
    add_failure(harness, "b")
    make_older(harness, 2 * DAY)
    assert harness.call("purge_archived", "c", refs(archive(harness))[:1]) == 1
    assert harness.query("SELECT message_id FROM oncebox_attempt") == [("b",)]


def test_archived_messages_are_not_purged_while_a_restore_pauses_it(harness: StoreHarness) -> None:
    finish(harness, arrival("a"))
    make_older(harness, 2 * DAY)
    archived = refs(archive(harness))
    harness.call("begin_restore", "c", keep=3600, last_seq=0, file="f", audit=RESTORE)
    assert harness.call("purge_archived", "c", archived) == 0
    assert stored_ids(harness) == ["a"]


def test_a_restored_message_is_as_it_was(harness: StoreHarness) -> None:
    finish(harness, arrival("a", body=b"\xff", key="k", headers={"h": "v"}), arrival("b"))
    add_failure(harness, "b")
    make_older(harness, 2 * DAY)
    archived = archive(harness)
    purge_all(harness, WATERMARK)
    assert stored_ids(harness) == []
    assert harness.call("restore", "c", archived) == 2
    assert archive(harness) == archived
    assert harness.receive(arrival("a", body=b"\xff")) == "d", "it is known again"


def test_a_message_that_is_there_is_not_restored_again(harness: StoreHarness) -> None:
    finish(harness, arrival("a"), arrival("b"))
    add_failure(harness, "a")
    make_older(harness, 2 * DAY)
    archived = archive(harness)
    purged = [ref for ref in refs(archived) if ref.id == "b"]
    harness.call("purge_archived", "c", purged)
    assert harness.call("restore", "c", archived) == 1
    assert harness.call("restore", "c", archived) == 0
    assert harness.query("SELECT count(*) FROM oncebox_attempt") == [(1,)]


def test_a_message_that_was_erased_is_restored_without_its_payload(harness: StoreHarness) -> None:
    finish(harness, arrival("a", headers={"h": "v"}))
    add_failure(harness, "a")
    make_older(harness, 2 * DAY)
    archived = archive(harness)
    harness.call("erase", "c", [(None, "default", "a")], ERASE)
    purge_all(harness, WATERMARK)
    assert harness.call("restore", "c", archived) == 1
    (restored,) = archive(harness)
    assert (restored.body, restored.headers) == (None, None)
    assert [run.error for run in restored.runs] == [None]


def test_a_restore_into_an_empty_database_frees_the_numbers_of_its_file(
    harness: StoreHarness,
) -> None:
    harness.call("begin_restore", "c", keep=60, last_seq=500, file="a.jsonl", audit=RESTORE)
    record = ArchivedMessage(500, "", "old", "", 1, NOW - 9 * DAY, payload="{}")
    assert harness.call("restore", "c", [record]) == 1
    with harness.transaction() as work:
        assert harness.claim(work, arrival("new")).seqs == [501]
    audit = "SELECT consumer, action, by_whom, why, reason FROM oncebox_audit"
    assert harness.query(audit) == [("c", "restore", "ada", "an audit", "a.jsonl")]


def test_a_file_of_another_database_is_not_restored(harness: StoreHarness) -> None:
    finish(harness, arrival("a"))
    with pytest.raises(ArchiveError, match=r"a\.jsonl comes from another database"):
        harness.call("begin_restore", "c", keep=60, last_seq=500, file="a.jsonl", audit=RESTORE)
    assert harness.call("purge_paused_until", "c") is None


def test_an_action_on_something_else_than_a_message_is_audited(harness: StoreHarness) -> None:
    harness.call("write_audit", "c", RESTORE, "archive a.jsonl")
    columns = "consumer, action, by_whom, why, reason, message_id"
    assert harness.query(f"SELECT {columns} FROM oncebox_audit") == [
        ("c", "restore", "ada", "an audit", "archive a.jsonl", None)
    ]


def test_messages_are_found_in_any_state_with_whether_anything_can_be_erased(
    harness: StoreHarness,
) -> None:
    finish(harness, arrival("a", key="k"), arrival("b", origin="o"))
    finish(harness, arrival("bare"), arrival("headers", headers={"h": "v"}), keep_payload=False)
    finish(harness, arrival("ran"), keep_payload=False)
    add_failure(harness, "ran")
    harness.receive(arrival("pending"), keep_payload=False)
    found = harness.call("find_messages", "c", EVERYTHING)
    assert [(key, origin, id, bool(erasable)) for key, origin, id, erasable in found] == [
        ("k", "default", "a", True),
        (None, "o", "b", True),
        (None, "default", "bare", False),
        (None, "default", "headers", True),
        (None, "default", "ran", True),
        (None, "default", "pending", True),
    ]
    by_id = harness.call("find_messages", "c", MessageFilter(ids=["b", "ran"]))
    assert sorted(row[2] for row in by_id) == ["b", "ran"]
    assert [row[2] for row in harness.call("find_messages", "c", MessageFilter(key="k"))] == ["a"]
    assert harness.call("find_messages", "other", EVERYTHING) == []


def test_quarantined_deliveries_are_counted_by_key_or_id(harness: StoreHarness) -> None:
    for id, key in (("a", "k"), ("b", "k"), ("c", None)):
        made = entry(Kind.quarantined, id, 0, key=key, reason=Reason.payload_mismatch)
        harness.record(msgspec.structs.replace(made, seq=None))
    harness.record(entry(Kind.dead, "dead", 9, key="k", reason=Reason.rejected))
    assert harness.call("count_quarantined", "c", MessageFilter(key="k")) == 2
    assert harness.call("count_quarantined", "c", MessageFilter(ids=["a", "c", "dead"])) == 2
    assert harness.call("count_quarantined", "c", MessageFilter(key="k", ids=["c"])) == 3
    assert harness.call("count_quarantined", "c", EVERYTHING) == 0
    assert harness.call("count_quarantined", "other", MessageFilter(key="k")) == 0


def test_an_erased_message_has_neither_payload_nor_headers_nor_errors(
    harness: StoreHarness,
) -> None:
    finish(harness, arrival("a", key="k", headers={"h": "v"}), arrival("a", origin="o"))
    finish(harness, arrival("ran"))
    add_failure(harness, "ran")
    wanted = [("k", "default", "a"), (None, "default", "ran"), (None, "default", "unknown")]
    assert harness.call("erase", "other", wanted, ERASE) == 0
    assert harness.call("erase", "c", wanted, ERASE) == 2
    rows = harness.query("SELECT origin, message_id, payload, headers FROM oncebox_inbox")
    left = {(origin, id) for origin, id, payload, headers in rows if payload or headers}
    assert left == {("o", "a")}
    assert harness.query("SELECT error FROM oncebox_attempt") == [(None,)]
    audit = "SELECT message_id, by_whom, why FROM oncebox_audit WHERE action = 'erase'"
    assert sorted(harness.query(audit)) == [
        ("a", "ada", "a request"),
        ("ran", "ada", "a request"),
    ]


def test_an_unfinished_message_is_not_erased(harness: StoreHarness) -> None:
    harness.receive(arrival("pending", key="k"))
    assert harness.call("erase", "c", [("k", "default", "pending")], ERASE) == 0
    (row,) = harness.take().rows
    assert row.message.payload == b"{}"
    assert harness.query("SELECT * FROM oncebox_audit") == []
