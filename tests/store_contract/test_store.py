"""What every store promises, on the real database. A new store joins by a line in `STORES`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from oncebox.database import target
from oncebox.database.steps import run
from oncebox.message import Delivery, Message, content_hash
from oncebox.outcome import Kind, Outcome, Reason
from oncebox.store import Names, store_for
from oncebox.store.contract import Arrival, Claims, Entry

STORES = {"sqlite": "sqlite_url", "postgres": "postgres_url"}
NOW = datetime.now(UTC)
FAILED_ONCE = {"attempts": 1, "ran": True, "error": ValueError("x")}


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

    def record(self, *entries: Entry) -> None:
        with self.transaction() as work:
            run(self.store.record(work, "c", "w:0", entries))

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
    names = ("parks", "ready", "alone", "ran", "duration")
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


def test_messages_below_the_watermark_are_announced(bench: Bench) -> None:
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
    assert bench.applied == ["0001_heart", "0002_drain"]
    with bench.transaction() as work:
        assert run(bench.store.migrate(work)) == []
        assert run(bench.store.version(work)) == (2, 1)
