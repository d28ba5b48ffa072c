"""What every store promises, on the real database. A new store joins by a line in `STORES`."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from oncebox.database import target
from oncebox.database.steps import run
from oncebox.liveness import incarnation, worker_name
from oncebox.message import Delivery, Message, content_hash
from oncebox.outcome import Kind, Outcome, Reason
from oncebox.plan import cut
from oncebox.store import Names, store_for
from oncebox.store.records import (
    Arrival,
    Claims,
    DeadLetter,
    Deed,
    Entry,
    Matching,
    Stored,
    Taken,
    Worker,
)
from services import wait_until
from worlds import MIGRATIONS

STORES = {"sqlite": "sqlite_url", "postgres": "postgres_url"}
locks_rows = pytest.mark.parametrize("bench", ["postgres"], indirect=True)
"""On the others nobody can be in between: a transaction keeps everybody else out."""

NOW = datetime.now(UTC)
FAILED_ONCE = {"attempts": 1, "ran": True, "error": ValueError("x")}
RETRYING = {"retry_in": timedelta(minutes=1), **FAILED_ONCE}
US = Worker("elsewhere:1:0", "0.1.us", batch=100, timeout=60, patience=90)
DEED = Deed("retry", "ada", "mended")


class Bench:
    """A store and transactions for it."""

    def __init__(self, dialect: str, url: str) -> None:
        self.store = store_for(dialect, Names())
        self.database = target(url, pipeline=True).make(False)
        run(self.database.open())
        with self.transaction() as work:
            self.applied = run(self.store.migrate(work))

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        work = run(self.database.acquire())
        try:
            run(work.begin())
            yield work
            run(work.commit("SELECT 1", {}))
        finally:
            run(work.rollback())
            run(self.database.release(work))

    def claim(self, work: Any, *arrivals: Arrival, consumer: str = "c", **options: Any) -> Claims:
        return run(self.store.claim(work, consumer, arrivals, **options))

    def record(self, *entries: Entry, **options: Any) -> None:
        with self.transaction() as work:
            run(self.store.record(work, "c", "w:0", entries, **options))

    def receive(self, *arrivals: Arrival, **options: Any) -> str:
        with self.transaction() as work:
            return run(self.store.receive(work, "c", arrivals, **options)).answers

    def call(self, name: str, *args: Any, **options: Any) -> Any:
        """A method of the store, in a transaction of its own."""
        with self.transaction() as work:
            return run(getattr(self.store, name)(work, *args, **options))

    def take(self, worker: Worker = US) -> Taken:
        """What there is to take, without taking it out."""
        self.call("sign_on", "c", worker)
        while (taken := self.call("take", "c", worker)).again:
            assert not taken.rows
        return taken

    def taken(self, worker: Worker = US) -> list[str]:
        return sorted(row.message.id for row in self.take(worker).rows)

    def stored(self, id: str) -> Stored:
        """A ready message, as it is taken."""
        return next(row for row in self.take().rows if row.message.id == id)

    def letters(self, **matching: Any) -> list[DeadLetter]:
        found: list[DeadLetter] = self.call("find_dead", "c", Matching(**matching), limit=100)
        return found

    def pending(self) -> dict[str, str]:
        """What still has to run: ready, retrying or parked."""
        infinity = "'infinity'" if self.store.dialect == "postgres" else str(2**63 - 1)
        state = (
            "CASE WHEN available_at IS NULL THEN 'ready' "
            f"WHEN available_at = {infinity} THEN 'parked' ELSE 'retrying' END"
        )
        rows = self.query(f"SELECT message_id, {state} FROM oncebox_pending ORDER BY seq")
        return dict(rows)

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        with self.transaction() as work:
            return [tuple(row) for row in run(work.fetch(sql, {}))]


@pytest.fixture(params=STORES)
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    made = Bench(request.param, request.getfixturevalue(STORES[request.param]))
    yield made
    run(made.database.close())


def arrival(id: str, *, body: bytes | None = b"{}", **properties: Any) -> Arrival:
    message = Message(
        id, body or b"", content_hash=None if body is None else content_hash(body), **properties
    )
    return Arrival(message, Delivery(body or b"", source="s", coordinates="0/1"))


def entry(kind: Kind, id: str, seq: int, *, key: str | None = None, **more: Any) -> Entry:
    names = ("parks", "ready", "alone", "ran", "duration", "stored")
    fields = {name: more.pop(name) for name in names if name in more}
    made = arrival(id, key=key)
    return Entry(Outcome(kind, made.delivery, made.message, **more), seq=seq, **fields)


def test_the_first_claim_is_new_and_the_second_a_duplicate(bench: Bench) -> None:
    with bench.transaction() as work:
        claims = bench.claim(work, arrival("b"), arrival("a"))
        assert claims.answers == "nn"
        assert claims.seqs == sorted(claims.seqs), "numbers follow arrival, not ids"
    with bench.transaction() as work:
        claims = bench.claim(work, arrival("a"), arrival("c"), arrival("b"))
        assert claims.answers == "dnd"
        assert [seq is None for seq in claims.seqs] == [True, False, True]


def test_consumers_and_origins_do_not_collide(bench: Bench) -> None:
    with bench.transaction() as work:
        assert bench.claim(work, arrival("a"), arrival("a", origin="o")).answers == "nn"
    with bench.transaction() as work:
        assert bench.claim(work, arrival("a"), consumer="other").answers == "n"


def test_other_bytes_are_told_from_a_duplicate(bench: Bench) -> None:
    with bench.transaction() as work:
        bench.claim(work, arrival("a"), arrival("unhashed", body=None))
    with bench.transaction() as work:
        twins = (arrival("a", body=b"[]"), arrival("a", body=None), arrival("unhashed"))
        assert bench.claim(work, *twins).answers == "xdd"
    with bench.transaction() as work:
        pair = (arrival("n", body=b"1"), arrival("n", body=b"2"))
        assert bench.claim(work, *pair).answers == "nx", "within one batch the first arrival wins"


def test_a_rolled_back_claim_leaves_nothing(bench: Bench) -> None:
    with pytest.raises(KeyError), bench.transaction() as work:
        bench.claim(work, arrival("a"))
        raise KeyError
    with bench.transaction() as work:
        assert bench.claim(work, arrival("a")).answers == "n"


def test_what_was_unclaimed_is_new_again(bench: Bench) -> None:
    with bench.transaction() as work:
        bench.claim(work, arrival("kept"))
        pair = (arrival("kept"), arrival("a"))
        claims = bench.claim(work, *pair)
        run(bench.store.unclaim(work, "c", pair, claims))
    with bench.transaction() as work:
        assert bench.claim(work, *pair).answers == "dn"


def test_a_key_with_unfinished_messages_is_announced(bench: Bench) -> None:
    retry = {"retry_in": timedelta(minutes=1), **FAILED_ONCE}
    bench.record(
        entry(Kind.failed, "1", -5, key="retrying", **retry),
        entry(Kind.parked, "2", -4, key="retrying"),
        entry(Kind.stored, "3", -3, key="ready", ready=True),
        entry(Kind.dead, "4", -2, key="parking", parks=True, reason=Reason.rejected),
        entry(Kind.dead, "5", -1, key="skipped", parks=False, reason=Reason.rejected),
    )
    keys = ("retrying", "ready", "parking", "skipped", "free", None)
    with bench.transaction() as work:
        arrivals = [arrival(f"new-{key}", key=key) for key in keys]
        assert bench.claim(work, *arrivals).answers == "wrwnnn"
    with bench.transaction() as work:
        later = [arrival(f"unordered-{key}", key=key) for key in keys]
        assert bench.claim(work, *later, ordered=False).answers == "nnnnnn"
    with bench.transaction() as work:
        stranger = arrival("stranger", key="retrying")
        assert bench.claim(work, stranger, consumer="other").answers == "n"


def test_messages_below_the_mark_are_announced(bench: Bench) -> None:
    mark = "now()" if bench.store.dialect == "postgres" else str(int(NOW.timestamp() * 1_000_000))
    with bench.transaction() as work:
        sql = f"INSERT INTO oncebox_consumer (consumer, purged_before) VALUES ('c', {mark})"
        run(work.execute(sql, {}))
    with bench.transaction() as work:
        old = arrival("old", minted_at=NOW - timedelta(days=1))
        new = arrival("new", minted_at=NOW + timedelta(days=1))
        assert bench.claim(work, old, new, arrival("undated")).answers == "lnn"


def test_states_of_pending_rows_are_told_by_their_time(bench: Bench) -> None:
    bench.record(
        entry(Kind.failed, "1", 1, retry_in=timedelta(hours=1), **FAILED_ONCE),
        entry(Kind.parked, "2", 2),
        entry(Kind.parked, "3", 3, ready=True),
        entry(Kind.stored, "4", 4, ready=True, alone=True),
    )
    infinity = "'infinity'" if bench.store.dialect == "postgres" else str(2**63 - 1)
    rows = bench.query(
        f"SELECT message_id, available_at IS NULL, available_at = {infinity}, attempts, alone, "
        "last_error FROM oncebox_pending ORDER BY seq"
    )
    assert [(row[0], *map(bool, row[1:3]), row[3], bool(row[4]), row[5]) for row in rows] == [
        ("1", False, False, 1, False, "ValueError: x"),
        ("2", False, True, 0, False, None),
        ("3", True, False, 0, False, None),
        ("4", True, False, 0, True, None),
    ]


def test_a_quarantined_delivery_is_written_once(bench: Bench) -> None:
    delivery = Delivery(b"?", source="s", coordinates="0/7")
    unknown = Entry(Outcome(Kind.quarantined, delivery, reason=Reason.unidentified))
    other = entry(Kind.quarantined, "a", 1, reason=Reason.other_bytes)
    for _ in range(2):
        bench.record(unknown, other, unknown)
    assert bench.query("SELECT state, reason FROM oncebox_dead ORDER BY id") == [
        ("quarantined", "unidentified"),
        ("quarantined", "other bytes"),
    ]


def test_counters_of_one_worker_and_minute_add_up(bench: Bench) -> None:
    for _ in range(3):
        bench.record(entry(Kind.done, "a", 1), entry(Kind.duplicate, "a", 1))
    sums = "SELECT sum(received), sum(done), sum(duplicate), sum(dead) FROM oncebox_minute"
    assert [tuple(map(int, row)) for row in bench.query(sums)] == [(6, 3, 3, 0)]


def test_the_guard_passes_in_the_claims_transaction_and_in_no_other(bench: Bench) -> None:
    with bench.transaction() as work:
        claims = bench.claim(work, arrival("a"))
        sql, params = bench.store.guard(claims.token)
        run(work.fetch(sql, params))
    with pytest.raises(Exception, match=r"not the transaction of the claim|no such savepoint"):
        with bench.transaction() as work:
            bench.claim(work, arrival("b"), ordered=False)
            run(work.fetch(sql, params))


def test_payloads_are_kept_as_they_are_or_not_at_all(bench: Bench) -> None:
    body = bytes(range(256))
    with bench.transaction() as work:
        bench.claim(work, arrival("kept", body=body))
        bench.claim(work, arrival("forgotten", body=body), keep_payload=False)
    rows = bench.query("SELECT message_id, payload FROM oncebox_inbox ORDER BY seq")
    assert [(id, payload and bytes(payload)) for id, payload in rows] == [
        ("kept", body),
        ("forgotten", None),
    ]


def test_migrations_are_applied_once_and_noted(bench: Bench) -> None:
    assert bench.applied == MIGRATIONS
    with bench.transaction() as work:
        assert run(bench.store.migrate(work)) == []
        assert run(bench.store.version(work)) == (7, 7)


# -- what is received -----------------------------------------------------------------------------


def test_what_is_received_is_ready_or_waits_with_its_key(bench: Bench) -> None:
    bench.record(
        entry(Kind.failed, "1", -2, key="retrying", **RETRYING),
        entry(Kind.dead, "2", -1, key="parking", parks=True, reason=Reason.rejected),
    )
    keys = ("retrying", "parking", "free", None)
    assert bench.receive(*[arrival(f"new {key}", key=key) for key in keys]) == "wwnn"
    assert bench.receive(*[arrival(f"next {key}", key=key) for key in keys]) == "wwrn"
    assert bench.receive(arrival("new free", key="free"), arrival("new None", body=b"x")) == "dx"
    assert bench.pending() == {
        "1": "retrying",
        **{f"new {key}": "parked" for key in keys[:2]},
        **{f"new {key}": "ready" for key in keys[2:]},
        **{f"next {key}": "parked" for key in keys[:2]},
        **{f"next {key}": "ready" for key in keys[2:]},
    }


def test_what_came_too_late_is_not_stored_to_be_run(bench: Bench) -> None:
    mark = "now()" if bench.store.dialect == "postgres" else str(int(NOW.timestamp() * 1_000_000))
    with bench.transaction() as work:
        run(
            work.execute(
                f"INSERT INTO oncebox_consumer (consumer, purged_before) VALUES ('c', {mark})", {}
            )
        )
    assert bench.receive(arrival("old", minted_at=NOW - timedelta(days=1))) == "l"
    assert bench.pending() == {}


def test_a_message_is_taken_as_it_was_received(bench: Bench) -> None:
    body = bytes(range(256))
    message = Message(
        "a", body, "o", "t", 7, "k", {"h": "v", "none": None}, occurred_at=NOW, minted_at=NOW
    )
    delivery = Delivery(body, {"h": "v"}, b"k", "topic", "3/7", redelivered=True)
    assert bench.receive(Arrival(message, delivery), keep_payload=False) == "n"
    (row,) = bench.take().rows
    assert row.message == Message("a", body, "o", "t", 7, "k", {"h": "v", "none": None}, NOW)
    assert (row.delivery.body, row.delivery.source) == (body, "topic")
    assert row.delivery.coordinates == "3/7"
    assert not row.delivery.redelivered, "it must not be stored once more"
    assert (row.alone, row.attempts, row.deaths, row.replay) == (True, 0, 0, 0)


# -- what is taken --------------------------------------------------------------------------------


def test_only_what_is_ready_is_taken_in_the_order_of_its_lanes(bench: Bench) -> None:
    bench.receive(*[arrival(str(n), key=f"key {n % 3}") for n in range(9)])
    bench.call("receive", "other", [arrival("stranger")])
    bench.record(
        entry(Kind.failed, "retrying", -3, key="r", **RETRYING),
        entry(Kind.parked, "parked", -2, key="r"),
    )
    rows = bench.take().rows
    assert sorted(row.message.id for row in rows) == [str(n) for n in range(9)]
    for key in range(3):
        of_key = [row.message.id for row in rows if row.message.key == f"key {key}"]
        assert of_key == [str(n) for n in range(key, 9, 3)]
    assert all(rows[n].seq < rows[n + 1].seq for n in range(8) if rows[n].lane == rows[n + 1].lane)


def test_no_more_is_taken_than_was_asked_for(bench: Bench) -> None:
    bench.receive(*[arrival(str(n)) for n in range(20)])
    few = Worker("elsewhere:1:0", "0.1.us", batch=7, timeout=60, patience=90)
    assert len(bench.take(few).rows) == 7


def test_what_is_due_is_taken(bench: Bench) -> None:
    due = {**FAILED_ONCE, "retry_in": timedelta(0)}
    bench.record(entry(Kind.failed, "1", 1, key="k", **due), entry(Kind.parked, "2", 2, key="k"))
    assert bench.taken() == ["1"]
    assert bench.pending() == {"1": "ready", "2": "parked"}


def test_what_failed_before_is_taken_by_itself(bench: Bench) -> None:
    due = {**FAILED_ONCE, "retry_in": timedelta(0)}
    bench.record(entry(Kind.failed, "1", -1, key="k", **due))
    bench.receive(arrival("2", key="l"))
    seen = []
    while rows := cut(bench.take().rows):
        seen.append([row.message.id for row in rows])
        bench.call("remove", rows)
    assert sorted(seen) == [["1"], ["2"]]


def test_is_work_says_whether_it_is_worth_to_take(bench: Bench) -> None:
    """Where taking costs no more than looking, it is always worth it."""
    always = not bench.store.is_exclusive
    assert bench.call("is_work", "c") is always
    bench.record(entry(Kind.failed, "1", 1, key="k", **RETRYING), entry(Kind.parked, "2", 2))
    assert bench.call("is_work", "c") is always
    bench.record(entry(Kind.stored, "3", 3, ready=True))
    assert bench.call("is_work", "c") is True
    assert bench.call("is_work", "other") is always


@locks_rows
def test_a_lane_is_taken_by_one_worker_at_a_time(bench: Bench) -> None:
    bench.receive(*[arrival(str(n), key="k") for n in range(3)])
    bench.take()
    with bench.transaction() as work:
        assert len(run(bench.store.take(work, "c", US)).rows) == 3
        assert bench.taken() == []
        bench.receive(arrival("3", key="l"))
        assert bench.taken() == ["3"], "other lanes are free"
    assert len(bench.taken()) == 4


def test_the_guard_holds_for_what_was_taken(bench: Bench) -> None:
    bench.receive(arrival("a"))
    bench.take()
    with bench.transaction() as work:
        taken = run(bench.store.take(work, "c", US))
        run(work.fetch(*bench.store.guard(taken.token)))
    with pytest.raises(Exception, match=r"not the transaction of the claim|no such savepoint"):
        with bench.transaction() as work:
            run(work.fetch(*bench.store.guard(taken.token)))


def test_what_was_removed_is_not_taken_again(bench: Bench) -> None:
    bench.receive(arrival("1"), arrival("2"))
    bench.call("remove", [bench.stored("1")])
    assert bench.taken() == ["2"]


@locks_rows
def test_messages_are_removed_all_or_none(bench: Bench) -> None:
    """Somebody was faster: the whole unit is to be run again."""
    bench.receive(arrival("1"), arrival("2"))
    rows = bench.take().rows
    bench.call("remove", rows[:1])
    with pytest.raises(Exception, match="taken by somebody else") as caught:
        bench.call("remove", rows)
    assert getattr(caught.value, "sqlstate", None) == "40001"
    assert len(bench.pending()) == 1


# -- who died -------------------------------------------------------------------------------------


def abandon(bench: Bench) -> Taken:
    """Take, and come to no end: as far as the database can see, the worker died."""
    if bench.store.is_exclusive:
        host = worker_name(0).rsplit(":", 2)[0]
        gone = Worker(f"{host}:{2**22 + 1}:0", incarnation(), batch=2, timeout=60, patience=90)
        bench.call("sign_on", "c", gone)
        return Taken()
    work = run(bench.database.acquire())
    run(work.begin())
    taken = run(bench.store.take(work, "c", US))
    run(work.rollback())
    run(bench.database.release(work))
    return taken


def test_what_a_worker_died_of_runs_alone(bench: Bench) -> None:
    bench.receive(*[arrival(str(n), key="k") for n in range(4)])
    us = Worker("elsewhere:1:0", "0.1.us", batch=2, timeout=60, patience=90)
    bench.take(us)
    abandon(bench)
    taken = bench.call("take", "c", us)
    assert (taken.crashed, taken.again, list(taken.rows)) == (True, True, [])
    alone = dict(bench.query("SELECT message_id, alone FROM oncebox_pending"))
    assert {id for id, is_alone in alone.items() if is_alone} == {"0", "1"}
    taken = bench.call("take", "c", us)
    assert not taken.crashed
    assert [row.message.id for row in cut(taken.rows)] == ["0"]


@locks_rows
def test_a_worker_that_rolled_back_and_lives_is_no_evidence(bench: Bench) -> None:
    bench.receive(arrival("1"), arrival("2"))
    bench.take()
    taken = abandon(bench)
    bench.call("forgive", "c", taken.rows, taken.token)
    again = bench.call("take", "c", US)
    assert not again.crashed
    assert len(again.rows) == 2


@locks_rows
def test_forgiveness_is_for_the_worker_that_asks(bench: Bench) -> None:
    bench.receive(arrival("1"))
    bench.take()
    mine = abandon(bench)
    bench.call("forgive", "c", mine.rows, mine.token)
    abandon(bench)
    bench.call("forgive", "c", mine.rows, mine.token)
    assert bench.call("take", "c", US).crashed, "the second one may have died"


def test_workers_sign_on_and_off(bench: Bench) -> None:
    host = worker_name(0).rsplit(":", 2)[0]
    ours = Worker("elsewhere:1:0", "0.1.us", batch=5, timeout=60, patience=90)
    other = Worker("elsewhere:2:0", "0.1.other", batch=5, timeout=60, patience=90)
    overdue = Worker("elsewhere:3:0", "0.1.overdue", batch=5, timeout=60, patience=-1)
    gone = Worker(f"{host}:{2**22 + 1}:0", incarnation(), batch=5, timeout=60, patience=90)
    for worker in (ours, other, overdue, gone, ours):
        bench.call("sign_on", "c", worker)
    assert bench.query("SELECT count(*) FROM oncebox_worker") == [(4,)]
    assert bench.call("others", "c", ours) == 1
    assert bench.call("others", "elsewhere", ours) == 0
    bench.call("sign_off", "c", other)
    assert bench.call("others", "c", ours) == 0
    bench.call("sign_off", "c", ours)
    assert bench.query("SELECT count(*) FROM oncebox_worker") == [(2,)]


# -- alone ----------------------------------------------------------------------------------------


def risky(bench: Bench) -> Stored:
    """The first of three messages of a key, ready to be run."""
    bench.receive(*[arrival(str(n), key="k") for n in (1, 2, 3)], arrival("4", key="l"))
    return bench.stored("1")


def state(bench: Bench, id: str) -> tuple[Any, ...]:
    (row,) = bench.query(
        f"SELECT attempts, deaths, last_error FROM oncebox_pending WHERE message_id = '{id}'"
    )
    return row


def test_a_death_is_recorded_in_advance_and_its_key_waits(bench: Bench) -> None:
    row = risky(bench)
    token = bench.call("put_off", "c", row, delay=60, died=True, error="died")
    assert state(bench, "1") == (0, 1, "died")
    waiting = {"1": "retrying", "2": "parked", "3": "parked", "4": "ready"}
    assert bench.pending() == waiting
    with bench.transaction() as work:
        assert run(bench.store.take_alone(work, row, token + 1, 60)) is None
    with bench.transaction() as work:
        taken = run(bench.store.take_alone(work, row, token, 60))
        assert taken is not None
        assert list(taken.rows) == [row]
        run(work.fetch(*bench.store.guard(taken.token)))
    assert bench.pending() == {"2": "parked", "3": "parked", "4": "ready"}
    with bench.transaction() as work:
        assert run(bench.store.take_alone(work, row, token, 60)) is None, "it is gone"


def test_a_message_that_is_put_off_did_not_die(bench: Bench) -> None:
    row = risky(bench)
    bench.call("put_off", "c", row, delay=60)
    assert state(bench, "1") == (0, 0, None)
    assert bench.pending() == {"1": "retrying", "2": "parked", "3": "parked", "4": "ready"}


def test_a_death_that_did_not_happen_is_taken_back(bench: Bench) -> None:
    row = risky(bench)
    token = bench.call("put_off", "c", row, delay=3600, died=True, error="died")
    bench.call("absolve", row, token, counted=True, delay=0, error="slow")
    assert state(bench, "1") == (1, 0, "slow")
    bench.take()
    assert bench.pending()["1"] == "ready", "its delay was the death's"
    assert bench.pending()["2"] == "parked"


def test_a_death_is_taken_back_also_where_somebody_overtook_us(bench: Bench) -> None:
    row = risky(bench)
    token = bench.call("put_off", "c", row, delay=3600, died=True, error="died")
    bench.call("absolve", row, token - 1, counted=False, delay=0, error=None)
    assert state(bench, "1") == (0, 0, "died")
    assert bench.pending()["1"] == "retrying", "its time is that of the one who has it now"
    bench.call("absolve", row, token, counted=True, delay=0, error=None)
    assert state(bench, "1") == (0, 0, "died"), "there is nothing left to take back"


def test_suspects_are_marked_where_nobody_else_has_them(bench: Bench) -> None:
    row = risky(bench)
    rows = bench.take().rows
    bench.call("put_off", "c", row, delay=3600)
    bench.call("suspect", rows)
    marked = dict(bench.query("SELECT message_id, alone FROM oncebox_pending"))
    assert {id for id, alone in marked.items() if alone} == {"4"}


def test_deaths_are_counted_while_they_are_news(bench: Bench) -> None:
    row = risky(bench)
    assert bench.call("count_deaths", "c") == 0
    bench.call("put_off", "c", row, delay=60, died=True)
    assert bench.call("count_deaths", "c") == 1
    killer = Stored(row.message, row.delivery, row.lane, 99, deaths=3)
    bench.record(entry(Kind.dead, "killer", 99, reason=Reason.killed, stored=killer))
    bench.record(entry(Kind.dead, "other", 98, reason=Reason.rejected))
    assert bench.call("count_deaths", "c") == 2
    assert bench.call("count_deaths", "other") == 0
    long_ago = "now() - interval '11 minutes'" if bench.store.dialect == "postgres" else "0"
    with bench.transaction() as work:
        run(work.execute(f"UPDATE oncebox_dead SET died_at = {long_ago}", {}))
    assert bench.call("count_deaths", "c") == 1


# -- parking and releasing ------------------------------------------------------------------------


def head(id: str, seq: int, *, key: str = "k", **more: Any) -> Stored:
    """What was taken out a moment ago."""
    made = arrival(id, key=key)
    return Stored(made.message, made.delivery, 0, seq, **more)


def test_a_head_that_failed_parks_what_follows_it(bench: Bench) -> None:
    bench.record(
        entry(Kind.stored, "before", 1, key="k", ready=True),
        entry(Kind.stored, "after", 3, key="k", ready=True),
        entry(Kind.failed, "retrying", 4, key="k", **RETRYING),
        entry(Kind.stored, "other key", 5, key="l", ready=True),
        entry(Kind.stored, "no key", 6, ready=True),
    )
    bench.record(entry(Kind.failed, "head", 2, key="k", stored=head("head", 2), **RETRYING))
    assert bench.pending() == {
        "before": "ready",
        "head": "retrying",
        "after": "parked",
        "retrying": "parked",
        "other key": "ready",
        "no key": "ready",
    }


def test_a_head_that_died_parks_what_follows_it_if_it_parks(bench: Bench) -> None:
    for key, parks in (("k", True), ("l", False)):
        bench.record(entry(Kind.stored, f"after {key}", 10 + parks, key=key, ready=True))
        dead = {"parks": parks, "reason": Reason.rejected, "stored": head("head", 1, key=key)}
        bench.record(entry(Kind.dead, f"head {key}", 1 + parks, key=key, **dead))
    assert bench.pending() == {"after l": "ready", "after k": "parked"}


@pytest.mark.parametrize("kind", [Kind.done, Kind.ignored, Kind.dead])
def test_a_head_that_is_through_releases_its_key_up_to_the_next_head(
    bench: Bench, kind: Kind
) -> None:
    for key in ("k", "l"):
        bench.record(
            *[entry(Kind.parked, f"{key}{n}", n + 10 * (key == "l"), key=key) for n in (2, 4)]
        )
    bench.record(
        entry(Kind.failed, "k3", 3, key="k", **RETRYING),
        entry(Kind.dead, "l3", 13, key="l", parks=True, reason=Reason.rejected),
        entry(Kind.parked, "other", 30, key="m"),
    )
    reason = Reason.rejected if kind is Kind.dead else None
    bench.record(
        entry(kind, "k1", 1, key="k", reason=reason, stored=head("k1", 1, attempts=1)),
        entry(kind, "l1", 11, key="l", reason=reason, stored=head("l1", 11, key="l", alone=True)),
    )
    assert bench.pending() == {
        "k2": "ready",
        "k3": "retrying",
        "k4": "parked",
        "l2": "ready",
        "l4": "parked",
        "other": "parked",
    }


def test_another_consumer_is_neither_parked_nor_released(bench: Bench) -> None:
    parked = entry(Kind.parked, "theirs", 5, key="k")
    ready = entry(Kind.stored, "theirs too", 6, key="l", ready=True)
    bench.call("record", "other", "w:0", [parked, ready])
    bench.record(
        entry(Kind.done, "1", 1, key="k", stored=head("1", 1, attempts=1)),
        entry(Kind.failed, "2", 2, key="l", stored=head("2", 2, key="l"), **RETRYING),
    )
    assert bench.pending() == {"2": "retrying", "theirs": "parked", "theirs too": "ready"}


@contextmanager
def keeping_out(bench: Bench) -> Iterator[tuple[Any, list[str]]]:
    """A transaction for whose end a message of the key has to wait; gives its answer then."""
    answers: list[str] = []
    thread = threading.Thread(target=lambda: answers.append(bench.receive(arrival("9", key="k"))))
    sql = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    with bench.transaction() as work:
        yield work, answers
        run(work.fetch("SELECT 1", {}))  # what was queued until now is executed
        thread.start()
        wait_until(lambda: bool(answers) or bench.query(sql)[0][0] > 0, "nobody came")
        assert answers == [], "it did not wait"
    thread.join()


@locks_rows
@pytest.mark.parametrize(
    ("kind", "details", "answer"),
    [
        (Kind.failed, RETRYING, "w"),
        (Kind.dead, {"reason": Reason.rejected, "parks": True}, "w"),
        (Kind.done, {}, "n"),
    ],
)
def test_whoever_parks_or_releases_a_key_has_it_locked(
    bench: Bench, kind: Kind, details: dict[str, Any], answer: str
) -> None:
    """Or what arrives meanwhile overtakes, or waits for what is through, for ever."""
    settled = entry(kind, "1", -1, key="k", stored=head("1", -1, attempts=1), **details)
    with keeping_out(bench) as (work, answers):
        run(bench.store.record(work, "c", "w:0", [settled]))
    assert answers == [answer]


@locks_rows
def test_whoever_puts_a_message_off_has_its_key_locked(bench: Bench) -> None:
    row = risky(bench)
    with keeping_out(bench) as (work, answers):
        run(bench.store.put_off(work, "c", row, delay=60, died=True))
    assert answers == ["w"]


@locks_rows
def test_whoever_acts_on_letters_has_their_keys_locked(bench: Bench) -> None:
    bench.record(entry(Kind.dead, "1", -1, key="k", parks=True, reason=Reason.rejected))
    found = bench.letters()
    with keeping_out(bench) as (work, answers):
        run(bench.store.put_away(work, "c", run(bench.store.lock_dead(work, "c", found)), DEED))
    assert answers == ["n"]


# -- dead letters ---------------------------------------------------------------------------------


def bury_some(bench: Bench) -> None:
    """Two letters of a key, of which the first holds it, and what waits."""
    rejected = {"reason": Reason.rejected, "error": ValueError("x"), "attempts": 3}
    bench.record(
        entry(Kind.dead, "1", 1, key="k", parks=True, **rejected),
        entry(Kind.parked, "2", 2, key="k"),
        entry(Kind.dead, "3", 3, key="k", parks=True, **rejected),
        entry(Kind.parked, "4", 4, key="k"),
        entry(Kind.dead, "5", 5, **rejected),
    )


def test_a_letter_is_revived_at_the_head_of_its_key(bench: Bench) -> None:
    bury_some(bench)
    first = bench.letters(message_id="1")
    bench.call("revive", "c", first, DEED)
    assert bench.pending() == {"1": "ready", "2": "ready", "4": "parked"}
    assert [letter.message_id for letter in bench.letters()] == ["3", "5"]
    row = bench.stored("1")
    assert (row.seq, row.attempts, row.alone) == (1, 1, False)
    assert row.is_special, "so that what follows it waits if it fails"
    assert row.last_error == "ValueError: x"
    assert bench.query("SELECT act, by_whom, why, message_id, reason FROM oncebox_action") == [
        ("retry", "ada", "mended", "1", "rejected")
    ]


def test_letters_are_revived_together(bench: Bench) -> None:
    bury_some(bench)
    bench.call("revive", "c", bench.letters(), DEED)
    assert bench.pending() == dict.fromkeys("12345", "ready")
    assert bench.letters() == []
    assert bench.query("SELECT count(*) FROM oncebox_action") == [(3,)]


def test_what_killed_its_process_is_revived_to_run_alone(bench: Bench) -> None:
    killer = head("1", 1, alone=True, deaths=3)
    bench.record(entry(Kind.dead, "1", 1, key="k", reason=Reason.killed, stored=killer))
    bench.call("revive", "c", bench.letters(), DEED)
    row = bench.stored("1")
    assert (row.alone, row.deaths) == (True, 0)


def test_what_is_revived_goes_before_a_retrying_message_of_its_key(bench: Bench) -> None:
    bench.record(
        entry(Kind.dead, "1", 1, key="k", reason=Reason.rejected),
        entry(Kind.failed, "2", 2, key="k", **RETRYING),
        entry(Kind.parked, "3", 3, key="k"),
    )
    bench.call("revive", "c", bench.letters(), DEED)
    assert bench.pending() == dict.fromkeys("123", "ready")
    assert [row.message.id for row in cut(bench.take().rows)] == ["1"]


def test_a_buried_letter_releases_its_key(bench: Bench) -> None:
    bury_some(bench)
    bench.call("put_away", "c", bench.letters(message_id="1"), Deed("discard", "ada", "noise"))
    assert bench.pending() == {"2": "ready", "4": "parked"}
    bench.call("put_away", "c", bench.letters(message_id="3"), Deed("discard", "ada", "noise"))
    assert bench.pending() == {"2": "ready", "4": "ready"}
    assert bench.query("SELECT act, message_id FROM oncebox_action ORDER BY id") == [
        ("discard", "1"),
        ("discard", "3"),
    ]


def test_letters_that_are_gone_meanwhile_are_not_locked(bench: Bench) -> None:
    bury_some(bench)
    found = bench.letters()
    bench.call("put_away", "c", found[:1], DEED)
    assert bench.call("lock_dead", "c", found) == found[1:]
    assert bench.call("lock_dead", "other", found) == []


@locks_rows
def test_a_key_whose_message_runs_alone_is_left_alone(bench: Bench) -> None:
    bury_some(bench)
    bench.record(entry(Kind.stored, "0", -1, key="k", ready=True, alone=True))
    row = bench.stored("0")
    token = bench.call("put_off", "c", row, delay=60, died=True)
    with bench.transaction() as work:
        assert run(bench.store.take_alone(work, row, token, 60)) is not None
        locked = bench.call("lock_dead", "c", bench.letters())
        assert [letter.message_id for letter in locked] == ["5"]
    assert len(bench.call("lock_dead", "c", bench.letters())) == 3


def test_letters_are_found_in_portions(bench: Bench) -> None:
    bury_some(bench)
    newest = bench.call("newest_dead", "c")
    first, second, third = bench.letters()
    assert newest == third.id
    assert bench.call("newest_dead", "other") == 0
    find = {"limit": 1, "after": first.id, "up_to": newest}
    assert bench.call("find_dead", "c", Matching(), **find) == [second]
    bounds = {"limit": 9, "up_to": second.id}
    assert bench.call("find_dead", "c", Matching(), **bounds) == [first, second]
    assert bench.letters(ids=[third.id, first.id]) == [first, third]


def test_a_letter_is_leased_to_be_told_until_it_was(bench: Bench) -> None:
    dead = [entry(Kind.dead, str(n), n, reason=Reason.rejected) for n in range(3)]
    bench.record(*dead, tell=True)
    bench.record(entry(Kind.dead, "quiet", 9, reason=Reason.rejected))
    leased = bench.call("lease_untold", "c", limit=2, lease=60)
    rest = bench.call("lease_untold", "c", limit=2, lease=0)
    assert sorted(letter.message_id for letter in leased + rest) == ["0", "1", "2"]
    assert bench.call("lease_untold", "other", limit=2, lease=60) == []
    assert bench.call("lease_untold", "c", limit=2, lease=0) == rest, "its lease ended at once"
    bench.call("told", rest)
    assert bench.call("lease_untold", "c", limit=2, lease=60) == []
    assert bench.query("SELECT count(*) FROM oncebox_dead WHERE tell_at IS NOT NULL") == [(2,)]
