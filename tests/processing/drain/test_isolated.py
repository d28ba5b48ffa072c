"""A message that may have crashed a worker runs isolated."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest

import oncebox.processing.crash_isolation
import oncebox.processing.drain
import oncebox.storage.drivers.transactions
from oncebox import Ordering, Reject, Retry
from support.inboxes import InboxHarness, keyed, redelivered
from support.internals import store_of
from support.services import PATIENCE, wait_until
from support.tables import dead_letters
from support.worlds import BOTH, World, order


def test_a_redelivered_message_is_stored_and_the_drain_runs_it_isolated(
    world: World, harness: InboxHarness
) -> None:
    harness.process(order("0"))
    batch = [redelivered(order("0")), redelivered(keyed("1")), keyed("2"), order("3")]
    assert harness.process(*batch) == ["duplicate", "stored", "blocked", "done"]
    assert harness.ran() == ["0", "3"]
    isolated = world.query("SELECT message_id, isolated, crashes FROM oncebox_pending ORDER BY seq")
    assert [(id, bool(a), crashes) for id, a, crashes in isolated] == [
        ("1", True, 0),
        ("2", False, 0),
    ]
    assert harness.process(redelivered(keyed("1"))) == ["duplicate"]
    assert harness.drain() == {"done": 2}
    assert harness.ran() == ["1", "2"]
    assert world.effects() == ["0", "1", "2", "3"]
    assert world.query("SELECT count(*) FROM oncebox_dead_letter") == [(0,)]


@pytest.mark.only(BOTH)
def test_a_redelivered_message_is_received_to_run_isolated(
    world: World, harness: InboxHarness
) -> None:
    assert harness.receive(redelivered(keyed("1")), keyed("2")) == ["stored", "stored"]
    rows = world.query("SELECT message_id, isolated FROM oncebox_pending ORDER BY seq")
    assert [(id, bool(isolated)) for id, isolated in rows] == [("1", True), ("2", False)]
    assert harness.drain() == {"done": 2}
    assert harness.ran() == ["1", "2"]


@pytest.mark.only(BOTH)
def test_the_crash_of_an_isolated_message_is_recorded_before_it_runs(
    world: World, harness: InboxHarness
) -> None:
    """If its process crashed now, the next worker would see it; its followers wait meanwhile."""
    seen: list[Any] = []
    world.on(harness.inbox, "watched", _watching(world, seen, harness.handle))
    harness.process(redelivered(keyed("1", type="watched")), keyed("2"))
    assert harness.drain() == {"done": 2}
    ((id, crashes, state, error, followers),) = seen
    assert (id, crashes, state) == ("1", 1, "retrying")
    assert "worker process crashed" in error
    assert followers == [("2", "blocked")]
    assert world.pending() == []


def _watching(world: World, seen: list[Any], handle: Callable[..., Any]) -> Callable[..., Any]:
    """A handler that sees what others see of the pending messages while it runs."""
    blocked = "'infinity'" if world.is_postgres else "9223372036854775807"
    state = (
        "CASE WHEN available_at IS NULL THEN 'ready' "
        f"WHEN available_at = {blocked} THEN 'blocked' ELSE 'retrying' END"
    )

    def watch(payload: dict[str, Any], tx: Any) -> Iterator[Any]:
        rows = world.query(
            f"SELECT message_id, crashes, {state}, last_error FROM oncebox_pending ORDER BY seq"
        )
        own = next(row for row in rows if row[0] == payload["id"])
        seen.append((*own, [(row[0], row[2]) for row in rows if row[0] != payload["id"]]))
        yield from handle(payload, tx)

    return watch


@pytest.mark.only(("psycopg",))
def test_an_isolated_message_that_waits_for_its_key_is_not_counted_as_a_crash(world: World) -> None:
    """Another session has the lock of its key for longer than its transaction may last."""
    once = Retry(max_attempts=1, initial_delay=timedelta(0), max_delay=timedelta(0))
    harness = InboxHarness(world, retry=once, transaction_timeout=timedelta(seconds=1))
    store: Any = store_of(harness.inbox)
    (lock,) = store._locks(harness.inbox.name, ["k"])
    slow: list[threading.Thread] = []

    def handle(payload: dict[str, Any], tx: Any) -> Generator[Any, Any, Any]:
        pid = (yield (yield tx.execute("SELECT pg_backend_pid()")).rows())[0][0]
        yield from harness.handle(payload, tx)
        if not slow:
            has_lock = threading.Event()
            slow.append(threading.Thread(target=hold, args=(pid, has_lock)))
            slow[0].start()
            has_lock.wait(PATIENCE)

    def hold(pid: int, has_lock: threading.Event) -> None:
        with psycopg.connect(world.url, autocommit=True) as other:
            other.execute("SELECT pg_advisory_lock(%s)", [lock])
            has_lock.set()
            alive = "SELECT count(*) FROM pg_stat_activity WHERE pid = %s"
            wait_until(lambda: other.execute(alive, [pid]).fetchone() == (0,), "it is not ended")

    world.on(harness.inbox, "slow", handle)
    harness.process(redelivered(keyed("1", type="slow")))
    counts: Counter[str] = Counter()
    wait_until(
        lambda: counts.update(harness.drain()) or counts["done"] == 1, "it does not run again"
    )
    slow[0].join()
    assert counts == {"done": 1}
    assert harness.ran() == ["1", "1"]
    assert dead_letters(world) == []


@pytest.mark.only(BOTH)
def test_an_isolated_message_that_fails_is_retried_as_usual(
    world: World, harness: InboxHarness
) -> None:
    harness.bad["1"] = ValueError("never")
    harness.process(redelivered(keyed("1")), keyed("2"))
    assert harness.drain() == {"failed": 2, "dead": 1}
    assert dead_letters(world) == [("1", "dead", "out_of_attempts", 3, "ValueError: never")]
    assert world.query("SELECT crashes FROM oncebox_dead_letter") == [(0,)], "it killed nothing"
    assert world.pending() == [("2", 0, "blocked")]


@pytest.mark.only(BOTH)
def test_a_message_with_max_crashes_is_dead_without_another_run(
    world: World, harness: InboxHarness
) -> None:
    harness.process(redelivered(keyed("1")), keyed("2"))
    world.execute("UPDATE oncebox_pending SET crashes = 3 WHERE message_id = '1'")
    assert harness.drain() == {"dead": 1}
    assert harness.ran() == []
    assert dead_letters(world)[0][:3] == ("1", "dead", "crashed")
    assert world.query("SELECT crashes FROM oncebox_dead_letter") == [(3,)]
    assert world.pending() == [("2", 0, "blocked")]
    harness.dead("retry", reason="crashed", why="more memory")
    assert harness.drain() == {"done": 2}
    assert harness.ran() == ["1", "2"]


@pytest.mark.only(BOTH)
def test_a_redelivered_message_of_an_unknown_type_is_a_dead_letter(
    world: World, harness: InboxHarness
) -> None:
    assert harness.process(redelivered(order("1", type="strange"))) == ["dead"]
    assert harness.receive(redelivered(order("2", type="strange"))) == ["stored"]
    assert harness.drain() == {"dead": 1}


@pytest.mark.only(("psycopg",))
def test_an_isolated_message_does_not_run_beside_an_earlier_retried_message(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operator retries an earlier dead letter between the take and the isolated run."""
    harness = InboxHarness(world, ordering=Ordering.skip_dead)
    harness.bad["first"] = Reject()
    harness.process(keyed("first", "k"))
    harness.bad.clear()
    harness.receive(redelivered(keyed("second", "k")))
    store: Any = store_of(harness.inbox)
    postpone = store.postpone

    def late(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        monkeypatch.setattr(store, "postpone", postpone)
        other = world.inbox(migrate=False)
        other.dead_letters.retry(everything=True, why="now")
        return (yield from postpone(*args, **kwargs))

    monkeypatch.setattr(store, "postpone", late)
    monkeypatch.setattr(oncebox.storage.drivers.transactions, "RETRY_DELAYS", (0.001,) * 4)
    assert harness.drain() == {"done": 2}
    assert harness.ran()[-2:] == ["first", "second"]


@pytest.mark.only(("sqlite3", "psycopg"))
def test_the_delay_after_many_crashes_does_not_overflow(
    world: World, harness: InboxHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.receive(redelivered(keyed("1", None)))

    def many(*args: Any) -> Generator[Any, Any, Any]:
        yield from ()
        return 100_000

    monkeypatch.setattr(store_of(harness.inbox), "count_crashes", many)
    assert harness.drain() == {}
    assert world.pending() == [("1", 0, "retrying")]
