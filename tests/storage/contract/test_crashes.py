"""The contract of stores: crashed workers and isolated messages."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from oncebox.model.outcome import Kind, Reason
from oncebox.processing.routing import select_batch
from oncebox.storage.records import PendingMessage, TakenBatch, WorkerInfo
from oncebox.storage.steps import run
from oncebox.storage.worker_identity import incarnation, worker_name
from support.stores import (
    WORKER,
    StoreHarness,
    arrival,
    entry,
    locks_rows,
    purge_all,
    state,
    store_messages,
    stored_ids,
)


def abandon(harness: StoreHarness) -> TakenBatch:
    """Take messages and never finish: for the database, the worker crashed."""
    if harness.store.is_exclusive:
        host = worker_name(0).rsplit(":", 2)[0]
        gone = WorkerInfo(
            f"{host}:{2**22 + 1}:0", incarnation(), batch=2, timeout=60, heartbeat_timeout=90
        )
        harness.call("sign_on", "c", gone)
        return TakenBatch()
    work = harness.database.work()
    run(harness.database.acquire(work))
    run(work.begin())
    taken = run(harness.store.take(work, "c", WORKER))
    run(work.rollback())
    run(harness.database.release(work))
    return taken


def test_the_messages_of_a_crashed_worker_run_isolated(harness: StoreHarness) -> None:
    harness.receive(*[arrival(str(n), key="k") for n in range(4)])
    us = WorkerInfo("elsewhere:1:0", "0.1.us", batch=2, timeout=60, heartbeat_timeout=90)
    harness.take(us)
    abandon(harness)
    taken = harness.call("take", "c", us)
    assert (taken.crashed, taken.again, list(taken.rows)) == (True, True, [])
    isolated = dict(harness.query("SELECT message_id, isolated FROM oncebox_pending"))
    assert {id for id, is_alone in isolated.items() if is_alone} == {"0", "1"}
    taken = harness.call("take", "c", us)
    assert not taken.crashed
    assert [row.message.id for row in select_batch(taken.rows)] == ["0"]


@locks_rows
def test_a_live_worker_that_rolled_back_is_not_taken_for_crashed(harness: StoreHarness) -> None:
    harness.receive(arrival("1"), arrival("2"))
    harness.take()
    taken = abandon(harness)
    harness.call("clear_crash_evidence", "c", taken.rows, taken.token)
    again = harness.call("take", "c", WORKER)
    assert not again.crashed
    assert len(again.rows) == 2


@locks_rows
def test_clearing_suspicion_concerns_only_the_worker_that_asks(harness: StoreHarness) -> None:
    harness.receive(arrival("1"))
    harness.take()
    mine = abandon(harness)
    harness.call("clear_crash_evidence", "c", mine.rows, mine.token)
    abandon(harness)
    harness.call("clear_crash_evidence", "c", mine.rows, mine.token)
    assert harness.call("take", "c", WORKER).crashed, "the second one may have died"


def test_clearing_suspicion_changes_no_message(harness: StoreHarness) -> None:
    harness.receive(arrival("1", key="k"), arrival("2"))
    taken = harness.take()
    harness.call("clear_crash_evidence", "c", taken.rows, taken.token)
    assert harness.pending() == {"1": "ready", "2": "ready"}
    again = harness.call("take", "c", WORKER)
    assert (again.crashed, len(again.rows)) == (False, 2)


def test_workers_sign_on_and_off(harness: StoreHarness) -> None:
    host = worker_name(0).rsplit(":", 2)[0]
    ours = WorkerInfo("elsewhere:1:0", "0.1.us", batch=5, timeout=60, heartbeat_timeout=90)
    other = WorkerInfo("elsewhere:2:0", "0.1.other", batch=5, timeout=60, heartbeat_timeout=90)
    overdue = WorkerInfo("elsewhere:3:0", "0.1.overdue", batch=5, timeout=60, heartbeat_timeout=-1)
    gone = WorkerInfo(
        f"{host}:{2**22 + 1}:0", incarnation(), batch=5, timeout=60, heartbeat_timeout=90
    )
    for worker in (ours, other, overdue, gone, ours):
        harness.call("sign_on", "c", worker)
    assert harness.query("SELECT count(*) FROM oncebox_worker") == [(4,)]
    assert harness.call("count_other_workers", "c", ours) == 1
    assert harness.call("count_other_workers", "elsewhere", ours) == 0
    harness.call("sign_off", "c", other)
    assert harness.call("count_other_workers", "c", ours) == 0
    harness.call("sign_off", "c", ours)
    assert harness.query("SELECT count(*) FROM oncebox_worker") == [(2,)]


def test_a_crash_is_recorded_in_advance_and_its_key_waits(harness: StoreHarness) -> None:
    row = store_messages(harness)
    token = harness.call("postpone", "c", row, delay=60, crashed=True, error="died")
    assert state(harness, "1") == (0, 1, "died")
    waiting = {"1": "retrying", "2": "blocked", "3": "blocked", "4": "ready"}
    assert harness.pending() == waiting
    with harness.transaction() as work:
        assert run(harness.store.take_isolated(work, row, token + 1, 60)) is None
    with harness.transaction() as work:
        taken = run(harness.store.take_isolated(work, row, token, 60))
        assert taken is not None
        assert list(taken.rows) == [row]
        harness.store.guard(work, taken.token)
    assert harness.pending() == {"2": "blocked", "3": "blocked", "4": "ready"}
    with harness.transaction() as work:
        assert run(harness.store.take_isolated(work, row, token, 60)) is None, "it is gone"


def test_a_postponed_message_has_no_crash(harness: StoreHarness) -> None:
    row = store_messages(harness)
    harness.call("postpone", "c", row, delay=60)
    assert state(harness, "1") == (0, 0, None)
    assert harness.pending() == {"1": "retrying", "2": "blocked", "3": "blocked", "4": "ready"}


def test_a_crash_that_did_not_happen_is_undone(harness: StoreHarness) -> None:
    row = store_messages(harness)
    token = harness.call("postpone", "c", row, delay=3600, crashed=True, error="died")
    harness.call("undo_crash", row, token, counted=True, delay=0, error="slow")
    assert state(harness, "1") == (1, 0, "slow")
    harness.take()
    assert harness.pending()["1"] == "ready", "its delay was the death's"
    assert harness.pending()["2"] == "blocked"


def test_a_recorded_crash_is_undone_even_if_another_worker_has_the_message(
    harness: StoreHarness,
) -> None:
    row = store_messages(harness)
    token = harness.call("postpone", "c", row, delay=3600, crashed=True, error="died")
    harness.call("undo_crash", row, token - 1, counted=False, delay=0, error=None)
    assert state(harness, "1") == (0, 0, "died")
    assert harness.pending()["1"] == "retrying", "its time is that of the one who has it now"
    harness.call("undo_crash", row, token, counted=True, delay=0, error=None)
    assert state(harness, "1") == (0, 0, "died"), "there is nothing left to take back"


def test_messages_of_a_crashed_worker_are_isolated_unless_another_worker_has_them(
    harness: StoreHarness,
) -> None:
    row = store_messages(harness)
    rows = harness.take().rows
    harness.call("postpone", "c", row, delay=3600)
    harness.call("isolate", rows)
    marked = dict(harness.query("SELECT message_id, isolated FROM oncebox_pending"))
    assert {id for id, isolated in marked.items() if isolated} == {"4"}


def test_a_message_that_is_gone_without_a_trace_has_vanished(harness: StoreHarness) -> None:
    harness.receive(*[arrival(id) for id in ("pending", "done", "dead", "lost")])
    rows = {row.message.id: row for row in harness.take().rows}
    gone = [row for id, row in rows.items() if id != "pending"]
    harness.call("remove", gone)
    harness.record(
        entry(Kind.done, "done", rows["done"].seq, stored=rows["done"], ran=True, attempts=1),
        entry(Kind.dead, "dead", rows["dead"].seq, stored=rows["dead"], reason=Reason.rejected),
    )
    listed = list(rows.values())
    assert harness.call("find_vanished", "c", listed, within=600) == [rows["lost"]]
    (old, new) = harness.call("find_vanished", "c", listed, within=-600)
    assert {old.message.id, new.message.id} == {"lost", "done"}, "a run of that age does not count"


def test_a_message_that_another_worker_finished_and_a_purge_deleted_has_not_vanished(
    harness: StoreHarness,
) -> None:
    harness.receive(arrival("done"), arrival("lost"))
    rows = harness.take().rows
    harness.call("remove", rows)
    harness.record(entry(Kind.done, "done", rows[0].seq, stored=rows[0], ran=True, attempts=1))
    purge_all(harness, datetime.now(UTC) + timedelta(days=1))
    assert stored_ids(harness) == []
    assert harness.call("find_vanished", "c", rows, within=600) == []


def test_recent_crashes_are_counted(harness: StoreHarness) -> None:
    row = store_messages(harness)
    assert harness.call("count_crashes", "c") == 0
    harness.call("postpone", "c", row, delay=60, crashed=True)
    assert harness.call("count_crashes", "c") == 1
    crashed = PendingMessage(row.message, row.delivery, row.lane, 99, crashes=3)
    harness.record(entry(Kind.dead, "crashed", 99, reason=Reason.crashed, stored=crashed))
    harness.record(entry(Kind.dead, "other", 98, reason=Reason.rejected))
    assert harness.call("count_crashes", "c") == 2
    assert harness.call("count_crashes", "other") == 0
    long_ago = "now() - interval '11 minutes'" if harness.store.dialect == "postgres" else "0"
    with harness.transaction() as work:
        run(work.execute(f"UPDATE oncebox_dead_letter SET dead_at = {long_ago}", {}))
    assert harness.call("count_crashes", "c") == 1
