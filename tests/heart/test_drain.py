"""The drain: what was stored runs, in the order of its keys."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import msgspec
import psycopg
import pytest
from sqlalchemy import event as sqlalchemy_event

import oncebox.alone
import oncebox.drain
from oncebox import Delivery, Inbox, Order, Reject, Retry, RetryAfter
from oncebox.errors import ConfigurationError
from services import PATIENCE, wait_until
from worlds import BOTH, SOME, SQLALCHEMY, World, order, write_effect

AT_ONCE = Retry(max_attempts=3, first=timedelta(0), cap=timedelta(0), jitter=0)
LATER = Retry(first=timedelta(hours=1), cap=timedelta(hours=1), jitter=0)


class Shop:
    """An inbox whose handler fails for the ids in `bad`."""

    def __init__(self, world: World, **options: Any) -> None:
        self.world = world
        self.bad: dict[str, Exception] = {}
        self.runs: list[str] = []
        self.inbox: Inbox = world.inbox(**{"retry": AT_ONCE, **options})
        world.on(self.inbox, "order", self.handle)

    def handle(self, payload: dict[str, Any], tx: Any) -> Iterator[Any]:
        self.runs.append(payload["id"])
        yield from write_effect(payload, tx)
        if payload["id"] in self.bad:
            raise self.bad[payload["id"]]

    def process(self, *deliveries: Delivery) -> list[str]:
        return self.world.kinds(self.inbox, deliveries)

    def receive(self, *deliveries: Delivery) -> list[str]:
        return self.world.receive(self.inbox, deliveries)

    def drain(self, **options: Any) -> dict[str, int]:
        return self.world.drain(self.inbox, **options)

    def dead(self, act: str, *ids: Any, **options: Any) -> Any:
        """What `inbox.dead` does, in the colour of this world."""
        if self.world.is_async:
            return self.world.run(getattr(self.inbox.dead, f"a{act}")(*ids, **options))
        return getattr(self.inbox.dead, act)(*ids, **options)

    def ran(self) -> list[str]:
        """What ran since the last time of asking, in order."""
        ran, self.runs[:] = list(self.runs), []
        return ran


@pytest.fixture
def shop(world: World) -> Shop:
    return Shop(world)


def kept(id: str, key: str | None = "k", **more: Any) -> Delivery:
    """A message of a key that has an order."""
    return order(id, key=key, **more)


def redelivered(delivery: Delivery) -> Delivery:
    """What the broker says it has delivered before."""
    return msgspec.structs.replace(delivery, redelivered=True)


def past_due(world: World) -> None:
    """Let the time of every retry come."""
    now = "clock_timestamp()" if world.is_postgres else "0"
    parked = "'infinity'" if world.is_postgres else "9223372036854775807"
    world.execute(f"UPDATE oncebox_pending SET available_at = {now} WHERE available_at < {parked}")


def attempts(world: World) -> list[tuple[Any, ...]]:
    return world.query("SELECT message_id, number, outcome FROM oncebox_attempt ORDER BY id")


def letters(world: World) -> list[tuple[Any, ...]]:
    return world.query(
        "SELECT message_id, state, reason, attempts, error FROM oncebox_dead ORDER BY id"
    )


# -- receiving ------------------------------------------------------------------------------------


def test_what_was_received_is_run_by_the_drain(world: World, shop: Shop) -> None:
    assert shop.receive(order("1"), order("2"), order("1")) == ["stored", "stored", "duplicate"]
    assert world.effects() == []
    assert world.states() == {"1": "pending", "2": "pending"}
    assert shop.drain() == {"done": 2}
    assert world.effects() == ["1", "2"]
    assert world.states() == {"1": "done", "2": "done"}
    assert shop.drain() == {}
    assert shop.receive(order("1")) == ["duplicate"]


@pytest.mark.only(SOME)
def test_what_is_received_behind_a_waiting_key_waits_with_it(world: World) -> None:
    shop = Shop(world, retry=LATER)
    shop.bad["1"] = ValueError()
    assert shop.process(kept("1")) == ["failed"]
    assert shop.receive(kept("2"), kept("3", "other"), kept("4")) == ["parked", "stored", "parked"]
    assert world.pending() == [
        ("1", 1, "retrying"),
        ("2", 0, "parked"),
        ("3", 0, "ready"),
        ("4", 0, "parked"),
    ]
    assert shop.drain() == {"done": 1}
    assert world.effects() == ["3"]


@pytest.mark.only(SOME)
def test_what_follows_a_ready_message_is_ready_and_runs_after_it(world: World, shop: Shop) -> None:
    assert shop.receive(kept("1")) == ["stored"]
    assert shop.receive(kept("2")) == ["stored"]
    assert shop.process(kept("3")) == ["parked"], "inline it must not overtake what is stored"
    assert [row[2] for row in world.pending()] == ["ready"] * 3
    assert shop.drain() == {"done": 3}
    assert shop.ran() == ["1", "2", "3"]
    assert shop.process(kept("4")) == ["done"], "nothing of its key is left to wait for"


@pytest.mark.only(SOME)
def test_received_messages_that_cannot_be_trusted_are_quarantined(world: World, shop: Shop) -> None:
    assert shop.receive(order("1"), order("1", data={"id": "other"})) == ["stored", "quarantined"]
    assert shop.receive(order("1", data={"id": "other"}), Delivery(b"?")) == ["quarantined"] * 2
    assert letters(world)[0][:3] == ("1", "quarantined", "other bytes")
    assert [row[2] for row in letters(world)] == ["other bytes", "unidentified"]
    assert shop.drain() == {"done": 1}
    assert world.effects() == ["1"]


@pytest.mark.only(BOTH)
def test_received_messages_of_ignored_types_leave_no_row(world: World, shop: Shop) -> None:
    shop.inbox.ignore("noise")
    assert shop.receive(order("1", type="noise"), order("2")) == ["ignored", "stored"]
    assert world.states() == {"2": "pending"}


@pytest.mark.only(SOME)
def test_a_payload_that_is_not_kept_is_there_until_it_ran(world: World) -> None:
    shop = Shop(world, keep_payload=False)
    assert shop.receive(order("1")) == ["stored"]
    assert world.query("SELECT payload FROM oncebox_inbox") == [(None,)]
    assert shop.drain() == {"done": 1}
    assert world.effects() == ["1"]


@pytest.mark.only(SOME)
def test_what_cannot_be_handled_is_found_out_by_the_drain(world: World) -> None:
    def handle(payload: int) -> None: ...

    shop = Shop(world)
    world.on(shop.inbox, "count", handle)
    strange = [order("1", type="strange"), order("2", type="count"), order("3", dataschema="v9")]
    assert shop.receive(*strange, order("4")) == ["stored"] * 4
    assert shop.drain() == {"dead": 2, "done": 2}
    assert [(id, state, reason) for id, state, reason, *_ in sorted(letters(world))] == [
        ("1", "dead", "unknown type"),
        ("2", "dead", "undecodable"),
    ]
    assert sorted(attempts(world)) == [("3", 1, "done"), ("4", 1, "done")], "nothing else ran"


@pytest.mark.only(BOTH)
def test_an_undecodable_head_holds_its_followers_and_an_unknown_type_does_not(
    world: World, shop: Shop
) -> None:
    def handle(payload: int) -> None: ...

    world.on(shop.inbox, "count", handle)
    shop.receive(kept("1", type="count"), kept("2"), kept("3", "l", type="what"), kept("4", "l"))
    assert shop.drain() == {"dead": 2, "parked": 1, "done": 1}
    assert world.pending() == [("2", 0, "parked")]
    assert world.effects() == ["4"]


# -- retries --------------------------------------------------------------------------------------


def test_a_failed_message_runs_again_and_its_followers_after_it(world: World, shop: Shop) -> None:
    shop.bad["1"] = ValueError("not yet")
    batch = [kept("1"), kept("2"), kept("3", "other")]
    assert shop.process(*batch) == ["failed", "parked", "done"]
    shop.bad.clear()
    assert shop.drain() == {"done": 2}
    assert world.effects() == ["1", "2", "3"]
    assert shop.runs[-2:] == ["1", "2"]
    assert world.pending() == []


@pytest.mark.only(SOME)
def test_a_message_that_keeps_failing_becomes_a_dead_letter(world: World, shop: Shop) -> None:
    shop.bad["1"] = ValueError("never")
    shop.receive(order("1"), order("2"))
    assert shop.drain() == {"done": 1, "failed": 2, "dead": 1}
    assert shop.ran().count("1") >= 3
    assert letters(world) == [("1", "dead", "out of attempts", 3, "ValueError: never")]
    assert sorted(attempts(world)) == [
        ("1", 1, "failed"),
        ("1", 2, "failed"),
        ("1", 3, "dead"),
        ("2", 1, "done"),
    ]
    assert world.states() == {"1": "dead", "2": "done"}
    assert world.effects() == ["2"]


@pytest.mark.only(BOTH)
def test_attempts_inline_and_stored_are_counted_together(world: World, shop: Shop) -> None:
    shop.bad["1"] = ValueError("never")
    assert shop.process(order("1")) == ["failed"]
    assert shop.drain() == {"failed": 1, "dead": 1}
    assert [number for _, number, _ in attempts(world)] == [1, 2, 3]


@pytest.mark.only(BOTH)
def test_a_retry_waits_for_its_time(world: World) -> None:
    shop = Shop(world, retry=LATER)
    shop.bad["1"] = ValueError("not yet")
    shop.receive(kept("1"), kept("2"))
    assert shop.drain() == {"failed": 1, "parked": 1}
    shop.bad.clear()
    assert shop.drain() == {}
    assert world.pending() == [("1", 1, "retrying"), ("2", 0, "parked")]
    past_due(world)
    assert shop.drain() == {"done": 2}


@pytest.mark.only(BOTH)
def test_a_handler_has_a_retry_of_its_own(world: World, shop: Shop) -> None:
    def fail(payload: Any) -> None:
        raise ValueError

    world.on(shop.inbox, "once", fail, retry=Retry(max_attempts=1))
    world.on(shop.inbox, "later", fail, retry=LATER)
    shop.receive(order("1", type="once"), order("2", type="later"))
    assert shop.drain() == {"dead": 1, "failed": 1}
    assert world.pending() == [("2", 1, "retrying")]
    assert [letter[0] for letter in letters(world)] == ["1"]


@pytest.mark.only(BOTH)
def test_an_error_may_name_the_time_of_the_next_attempt(world: World, shop: Shop) -> None:
    shop.bad["1"] = RetryAfter(timedelta(hours=2))
    shop.receive(order("1"))
    assert shop.drain() == {"failed": 1}
    assert world.pending() == [("1", 1, "retrying")]
    time_of = "extract(epoch FROM available_at)" if world.is_postgres else "available_at / 1000000"
    ((due,),) = world.query(f"SELECT {time_of} FROM oncebox_pending")
    assert 7100 < float(due) - time.time() <= 7201


@pytest.mark.only(SOME)
def test_a_rejected_message_is_dead_at_once(world: World, shop: Shop) -> None:
    shop.bad["1"] = Reject("no such customer")
    shop.receive(kept("1"), kept("2"))
    assert shop.drain() == {"dead": 1, "parked": 1}
    assert letters(world) == [("1", "dead", "rejected", 1, "Reject: no such customer")]


@pytest.mark.only(BOTH)
def test_letters_of_one_error_have_one_fingerprint(world: World, shop: Shop) -> None:
    def reject(payload: Any) -> None:
        raise Reject(payload["id"])

    world.on(shop.inbox, "other", reject)
    shop.bad |= {id: Reject(id) for id in ("1", "2")}
    shop.receive(order("1"), order("2"), order("3", type="other"))
    shop.drain()
    prints = dict(world.query("SELECT message_id, fingerprint FROM oncebox_dead"))
    assert prints["1"] == prints["2"]
    assert prints["3"] not in (None, prints["1"])


# -- order ----------------------------------------------------------------------------------------


def test_a_failing_head_parks_what_is_stored_behind_it(world: World) -> None:
    """Also what was not in its batch; and it runs in order once the head is through."""
    shop = Shop(world, retry=LATER)
    shop.bad["1"] = ValueError()
    shop.receive(*[kept(str(n)) for n in range(1, 6)])
    assert shop.drain(batch=2) == {"failed": 1, "parked": 1}
    assert world.pending() == [("1", 1, "retrying"), *[(f"{n}", 0, "parked") for n in range(2, 6)]]
    assert shop.process(kept("6")) == ["parked"]
    assert shop.receive(kept("7")) == ["parked"]
    shop.bad.clear()
    shop.ran()
    past_due(world)
    assert shop.drain(batch=2) == {"done": 7}
    assert shop.ran() == [str(n) for n in range(1, 8)]
    assert world.pending() == []


@pytest.mark.only(SOME)
def test_two_failing_keys_wait_each_for_itself(world: World) -> None:
    shop = Shop(world, retry=LATER)
    shop.bad |= {"a1": ValueError(), "b2": ValueError()}
    shop.receive(*[kept(f"{key}{n}", key) for n in (1, 2, 3) for key in "abc"])
    assert shop.drain() == {"failed": 2, "parked": 3, "done": 4}
    assert world.effects() == ["b1", "c1", "c2", "c3"]
    assert sorted(world.pending()) == [
        ("a1", 1, "retrying"),
        ("a2", 0, "parked"),
        ("a3", 0, "parked"),
        ("b2", 1, "retrying"),
        ("b3", 0, "parked"),
    ]
    del shop.bad["a1"]
    past_due(world)
    shop.ran()
    assert shop.drain() == {"failed": 1, "done": 3}
    assert [id for id in shop.ran() if id[0] == "a"] == ["a1", "a2", "a3"]
    assert world.pending() == [("b2", 2, "retrying"), ("b3", 0, "parked")]


@pytest.mark.only(BOTH)
def test_a_released_follower_that_fails_holds_what_is_behind_it(world: World) -> None:
    shop = Shop(world, retry=LATER)
    shop.bad |= {"1": ValueError(), "2": ValueError()}
    shop.receive(kept("1"), kept("2"), kept("3"))
    shop.drain()
    del shop.bad["1"]
    past_due(world)
    assert shop.drain() == {"done": 1, "failed": 1, "parked": 1}
    assert world.pending() == [("2", 1, "retrying"), ("3", 0, "parked")]


@pytest.mark.only(SOME)
def test_a_parking_dead_letter_holds_its_key(world: World, shop: Shop) -> None:
    shop.bad["1"] = Reject("no")
    shop.receive(kept("1"), kept("2"))
    assert shop.drain() == {"dead": 1, "parked": 1}
    assert shop.process(kept("3")) == ["parked"]
    assert shop.receive(kept("4")) == ["parked"]
    assert shop.drain() == {}
    assert world.pending() == [(str(n), 0, "parked") for n in (2, 3, 4)]
    assert world.effects() == []


@pytest.mark.only(BOTH)
@pytest.mark.parametrize("error", [Reject("no"), ValueError("never")])
def test_with_order_skip_a_key_goes_on_behind_its_dead_letter(
    world: World, error: Exception
) -> None:
    shop = Shop(world, order=Order.skip)
    shop.bad["1"] = error
    shop.receive(kept("1"), kept("2"))
    counts = shop.drain()
    assert (counts["dead"], counts["done"]) == (1, 1)
    assert world.effects() == ["2"]
    assert world.pending() == []
    assert shop.process(kept("3")) == ["done"]


@pytest.mark.only(BOTH)
def test_a_head_that_is_ignored_since_it_was_stored_releases_its_key(world: World) -> None:
    shop = Shop(world, retry=LATER)
    shop.bad["1"] = ValueError()
    assert shop.receive(kept("1", type="order"), kept("2", type="other")) == ["stored"] * 2
    world.on(shop.inbox, "other", shop.handle)
    assert shop.drain() == {"failed": 1, "parked": 1}
    past_due(world)
    today = world.inbox(retry=LATER)
    world.on(today, "other", shop.handle)
    today.ignore("order")
    assert world.drain(today) == {"ignored": 1, "done": 1}
    assert world.effects() == ["2"]
    assert world.pending() == []


@pytest.mark.only(SOME)
def test_batch_handlers_get_lists_and_a_bad_message_fails_alone(world: World, shop: Shop) -> None:
    sizes: list[int] = []

    def handle(payloads: list[dict[str, Any]], tx: Any) -> Iterator[Any]:
        sizes.append(len(payloads))
        for payload in payloads:
            yield from write_effect(payload, tx)
        if any(payload["id"] == "b5" for payload in payloads):
            raise Reject("no")

    world.on(shop.inbox, "many", handle, batch=True)
    shop.receive(*[kept(f"b{n}", "k" if n < 3 else f"l{n}", type="many") for n in range(9)])
    assert shop.drain() == {"done": 8, "dead": 1}
    assert world.effects() == [f"b{n}" for n in range(9) if n != 5]
    assert max(sizes) > 1
    assert [letter[0] for letter in letters(world)] == ["b5"]


@pytest.mark.only(BOTH)
def test_two_consumers_drain_each_their_own(world: World) -> None:
    billing, shipping = Shop(world), Shop(world, name="shipping", retry=LATER)
    shipping.bad["1"] = ValueError()
    for shop in (billing, shipping):
        shop.receive(kept("1"), kept("2"))
    assert shipping.drain() == {"failed": 1, "parked": 1}
    assert billing.drain() == {"done": 2}, "another consumer's failure holds nothing here"
    past_due(world)
    shipping.bad.clear()
    assert shipping.drain() == {"done": 2}


def test_more_than_one_batch_is_drained_and_key_order_is_kept(world: World, shop: Shop) -> None:
    batch = [kept(f"{n:02}", str(n % 5) if n % 7 else None) for n in range(40)]
    assert shop.receive(*batch) == ["stored"] * 40
    assert shop.drain(batch=3) == {"done": 40}
    ran = shop.ran()
    assert sorted(ran) == [f"{n:02}" for n in range(40)]
    for key in range(5):
        of_key = [id for id in ran if int(id) % 7 and int(id) % 5 == key]
        assert of_key == sorted(of_key)


# -- what the broker delivers again ---------------------------------------------------------------


def test_a_redelivered_message_is_stored_and_run_alone_by_the_drain(
    world: World, shop: Shop
) -> None:
    shop.process(order("0"))
    batch = [redelivered(order("0")), redelivered(kept("1")), kept("2"), order("3")]
    assert shop.process(*batch) == ["duplicate", "stored", "parked", "done"]
    assert shop.ran() == ["0", "3"]
    alone = world.query("SELECT message_id, alone, deaths FROM oncebox_pending ORDER BY seq")
    assert [(id, bool(a), deaths) for id, a, deaths in alone] == [("1", True, 0), ("2", False, 0)]
    assert shop.process(redelivered(kept("1"))) == ["duplicate"]
    assert shop.drain() == {"done": 2}
    assert shop.ran() == ["1", "2"]
    assert world.effects() == ["0", "1", "2", "3"]
    assert world.query("SELECT count(*) FROM oncebox_dead") == [(0,)]


@pytest.mark.only(BOTH)
def test_a_redelivered_message_is_received_to_run_alone(world: World, shop: Shop) -> None:
    assert shop.receive(redelivered(kept("1")), kept("2")) == ["stored", "stored"]
    rows = world.query("SELECT message_id, alone FROM oncebox_pending ORDER BY seq")
    assert [(id, bool(alone)) for id, alone in rows] == [("1", True), ("2", False)]
    assert shop.drain() == {"done": 2}
    assert shop.ran() == ["1", "2"]


@pytest.mark.only(BOTH)
def test_the_death_of_a_message_that_runs_alone_is_recorded_before_it_runs(
    world: World, shop: Shop
) -> None:
    """Were its process to die now, the next worker would know; its followers wait meanwhile."""
    seen: list[Any] = []
    world.on(shop.inbox, "watched", _watching(world, seen, shop.handle))
    shop.process(redelivered(kept("1", type="watched")), kept("2"))
    assert shop.drain() == {"done": 2}
    ((id, deaths, state, error, followers),) = seen
    assert (id, deaths, state) == ("1", 1, "retrying")
    assert "process died" in error
    assert followers == [("2", "parked")]
    assert world.pending() == []


def _watching(world: World, seen: list[Any], handle: Callable[..., Any]) -> Callable[..., Any]:
    """A handler that sees what others see of the pending messages while it runs."""
    parked = "'infinity'" if world.is_postgres else "9223372036854775807"
    state = (
        "CASE WHEN available_at IS NULL THEN 'ready' "
        f"WHEN available_at = {parked} THEN 'parked' ELSE 'retrying' END"
    )

    def watch(payload: dict[str, Any], tx: Any) -> Iterator[Any]:
        rows = world.query(
            f"SELECT message_id, deaths, {state}, last_error FROM oncebox_pending ORDER BY seq"
        )
        own = next(row for row in rows if row[0] == payload["id"])
        seen.append((*own, [(row[0], row[2]) for row in rows if row[0] != payload["id"]]))
        yield from handle(payload, tx)

    return watch


@pytest.mark.only(("psycopg",))
def test_a_message_that_runs_alone_is_not_blamed_for_waiting_for_its_key(world: World) -> None:
    """Somebody has the lock of its key for longer than its transaction may last."""
    once = Retry(max_attempts=1, first=timedelta(0), cap=timedelta(0))
    shop = Shop(world, retry=once, transaction_timeout=timedelta(seconds=1))
    (lock,) = shop.inbox._store._locks(shop.inbox.name, ["k"])
    slow: list[threading.Thread] = []

    def handle(payload: dict[str, Any], tx: Any) -> Iterator[Any]:
        pid = (yield (yield tx.execute("SELECT pg_backend_pid()")).rows())[0][0]
        yield from shop.handle(payload, tx)
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

    world.on(shop.inbox, "slow", handle)
    shop.process(redelivered(kept("1", type="slow")))
    counts: Counter[str] = Counter()
    wait_until(lambda: counts.update(shop.drain()) or counts["done"] == 1, "it does not run again")
    slow[0].join()
    assert counts == {"done": 1}
    assert shop.ran() == ["1", "1"]
    assert letters(world) == []


@pytest.mark.only(BOTH)
def test_a_message_that_runs_alone_and_fails_is_retried_as_any_other(
    world: World, shop: Shop
) -> None:
    shop.bad["1"] = ValueError("never")
    shop.process(redelivered(kept("1")), kept("2"))
    assert shop.drain() == {"failed": 2, "dead": 1}
    assert letters(world) == [("1", "dead", "out of attempts", 3, "ValueError: never")]
    assert world.query("SELECT deaths FROM oncebox_dead") == [(0,)], "it killed nothing"
    assert world.pending() == [("2", 0, "parked")]


@pytest.mark.only(BOTH)
def test_a_message_that_killed_often_enough_is_dead_without_another_run(
    world: World, shop: Shop
) -> None:
    shop.process(redelivered(kept("1")), kept("2"))
    world.execute("UPDATE oncebox_pending SET deaths = 3 WHERE message_id = '1'")
    assert shop.drain() == {"dead": 1}
    assert shop.ran() == []
    assert letters(world)[0][:3] == ("1", "dead", "killed its process")
    assert world.query("SELECT deaths FROM oncebox_dead") == [(3,)]
    assert world.pending() == [("2", 0, "parked")]
    shop.dead("retry", reason="killed its process", why="more memory")
    assert shop.drain() == {"done": 2}
    assert shop.ran() == ["1", "2"]


@pytest.mark.only(BOTH)
def test_a_redelivered_message_of_an_unknown_type_is_a_dead_letter(
    world: World, shop: Shop
) -> None:
    assert shop.process(redelivered(order("1", type="strange"))) == ["dead"]
    assert shop.receive(redelivered(order("2", type="strange"))) == ["stored"]
    assert shop.drain() == {"dead": 1}


# -- a batch that cannot be committed -------------------------------------------------------------


def good_and(culprit: Callable[[Any], Iterator[Any]]) -> Callable[..., Any]:
    """A handler that works, except for messages whose id begins with "bad"."""

    def handle(payload: dict[str, Any], tx: Any) -> Iterator[Any]:
        yield from write_effect(payload, tx)
        if payload["id"].startswith("bad"):
            yield from culprit(tx)

    return handle


def fails_alone(world: World, culprit: Callable[[Any], Iterator[Any]]) -> None:
    """Assert that of a drained batch only the bad message fails, and nothing of its work stays."""
    inbox = world.inbox(retry=LATER)
    world.on(inbox, "order", good_and(culprit))
    batch = [kept("a", "1"), kept("bad", "2"), kept("c", "3"), kept("later", "2")]
    assert world.receive(inbox, batch) == ["stored"] * 4
    assert world.drain(inbox) in ({"done": 2, "failed": 1, "parked": 1}, {"done": 2, "failed": 1})
    assert world.effects() == ["a", "c"]
    assert world.pending() == [("bad", 1, "retrying"), ("later", 0, "parked")]
    assert world.query("SELECT count(*) FROM oncebox_pending WHERE deaths > 0") == [(0,)]


def test_a_deferred_constraint_fails_its_stored_message_alone(world: World) -> None:
    world.execute("CREATE TABLE parents (id integer PRIMARY KEY)")
    world.execute(
        "CREATE TABLE children (parent integer REFERENCES parents (id) "
        "DEFERRABLE INITIALLY DEFERRED)"
    )

    def orphan(tx: Any) -> Iterator[Any]:
        yield tx.execute("INSERT INTO children (parent) VALUES (:parent)", parent=404)

    if world.name in SQLALCHEMY and not world.is_postgres:
        engine = world.database()
        sqlalchemy_event.listen(
            getattr(engine, "sync_engine", engine), "connect", _enforce_foreign_keys
        )
    fails_alone(world, orphan)


def _enforce_foreign_keys(connection: Any, _: Any) -> None:
    cursor = connection.cursor()
    cursor.execute("PRAGMA foreign_keys=ON")
    cursor.close()


@pytest.mark.parametrize("method", ["commit", "rollback"])
@pytest.mark.only((*SOME, "sqlalchemy-psycopg"))
def test_a_stored_message_that_ends_the_transaction_fails_alone(world: World, method: str) -> None:
    def end(tx: Any) -> Iterator[Any]:
        yield getattr(tx.connection, method)()

    fails_alone(world, end)


@pytest.mark.only(("psycopg",))
def test_a_swallowed_error_fails_its_stored_message_alone(world: World) -> None:
    def swallow(tx: Any) -> Iterator[Any]:
        with contextlib.suppress(Exception):
            yield (yield tx.execute("SELECT 1 / 0")).rows()

    fails_alone(world, swallow)


@pytest.mark.only(("psycopg",))
@pytest.mark.parametrize("redelivered", [False, True])
def test_stored_messages_whose_transaction_was_committed_past_every_guard_are_dead_letters(
    world: World, redelivered: bool
) -> None:
    """Their rows are gone, "c" was never run, and nobody knows what of "bad" is done."""

    def commit(tx: Any) -> Iterator[Any]:
        yield from ()
        psycopg.Cursor(tx.connection).execute("COMMIT")
        raise ValueError

    inbox = world.inbox(retry=LATER)
    world.on(inbox, "order", good_and(commit))
    batch = [kept("a", "1"), kept("bad", "2"), kept("c", "3")]
    world.receive(inbox, [msgspec.structs.replace(d, redelivered=redelivered) for d in batch])
    lost = {("bad", "transaction lost")} if redelivered else {(d, "transaction lost") for d in IDS}
    counts = world.drain(inbox)
    assert counts["dead"] == len(lost)
    found = world.query("SELECT message_id, reason FROM oncebox_dead")
    assert set(found) == lost
    assert set(world.effects()) == {"a", "bad", "c"} if redelivered else {"a", "bad"}


IDS = ("a", "bad", "c")


class Conflict(Exception):
    """What a driver raises for a serialization failure."""

    sqlstate = "40001"


@pytest.mark.only(SOME)
def test_a_drained_batch_that_conflicts_is_run_again_uncounted(
    world: World, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oncebox.drain, "PAUSES", (0.001,) * 4)
    left = [Conflict(), Conflict()]

    def conflict(tx: Any) -> Iterator[Any]:
        yield from ()
        if left:
            raise left.pop()

    world.on(shop.inbox, "shaky", good_and(conflict))
    shop.receive(kept("a"), kept("bad", type="shaky"), kept("c"))
    assert shop.drain() == {"done": 3}
    assert not left
    assert world.effects() == ["a", "bad", "c"]
    assert sorted(attempts(world)) == [("a", 1, "done"), ("bad", 1, "done"), ("c", 1, "done")]


@pytest.mark.only((*BOTH, "psycopg-async"))
def test_a_message_that_always_conflicts_is_failed_alone(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (oncebox.drain, oncebox.alone):
        monkeypatch.setattr(module, "PAUSES", (0.001,) * 4)

    def conflict(tx: Any) -> Iterator[Any]:
        yield from ()
        raise Conflict

    fails_alone(world, conflict)


@pytest.mark.only(("psycopg", "psycopg-async", "sqlalchemy-psycopg", "django-postgres"))
def test_a_rolled_back_batch_does_not_look_like_a_death(
    world: World, shop: Shop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(oncebox.drain, "PAUSES", (0.001,) * 4)
    left = [Conflict()]

    def conflict(tx: Any) -> Iterator[Any]:
        yield from ()
        if left:
            raise left.pop()

    world.on(shop.inbox, "shaky", good_and(conflict))
    shop.receive(kept("bad", type="shaky"))
    assert shop.drain() == {"done": 1}
    assert "a worker died" not in caplog.text
    assert "it is run again" in caplog.text


@pytest.mark.only(("psycopg",))
def test_lanes_that_were_locked_for_nothing_are_no_sign_of_a_death(
    world: World, shop: Shop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What was taken and cut off is left where it was; the lock of its lane left a trace."""
    shop.receive(*(order(f"m{n}", key=f"k{n}") for n in range(6)))
    monkeypatch.setattr(oncebox.drain, "cut", lambda rows: rows[:1])
    record = shop.inbox._store.record

    def conflict(*args: Any, **options: Any) -> Iterator[Any]:
        monkeypatch.setattr(shop.inbox._store, "record", record)
        raise Conflict
        yield

    monkeypatch.setattr(shop.inbox._store, "record", conflict)
    assert shop.drain() == {"done": 6}
    assert "it is run again" in caplog.text
    assert "a worker died" not in caplog.text


# -- what is written down -------------------------------------------------------------------------


@pytest.mark.only(SOME)
def test_runs_of_stored_messages_are_written_down(world: World) -> None:
    shop = Shop(world, retry=LATER)
    shop.bad["1"] = ValueError("not yet")
    shop.receive(order("1"))
    shop.drain()
    shop.bad.clear()
    past_due(world)
    shop.drain()
    rows = world.query("SELECT number, outcome, error, worker FROM oncebox_attempt ORDER BY id")
    assert [row[:2] for row in rows] == [(1, "failed"), (2, "done")]
    assert "ValueError: not yet" in rows[0][2]
    assert rows[1][2] is None
    assert f":{os.getpid()}:" in rows[1][3]
    ((state, runs, later),) = world.query(
        "SELECT state, attempts, processed_at > received_at FROM oncebox_message"
    )
    assert (state, runs, bool(later)) == ("done", 2, True)


@pytest.mark.only(BOTH)
def test_a_pending_message_has_no_time_of_processing(world: World, shop: Shop) -> None:
    shop.receive(order("1"))
    assert world.query("SELECT state, processed_at FROM oncebox_message") == [("pending", None)]


@pytest.mark.only(SOME)
def test_what_was_stored_is_counted_once_as_received(world: World, shop: Shop) -> None:
    shop.bad["1"] = ValueError("never")
    shop.receive(kept("1"), kept("2"), order("3"), order("3"))
    shop.drain()
    columns = ("received", "stored", "duplicate", "done", "failed", "parked", "dead")
    ((*sums,),) = world.query(
        f"SELECT {','.join(f'sum({c})' for c in columns)} FROM oncebox_minute"
    )
    counted = dict(zip(columns, map(int, sums), strict=True))
    assert counted.pop("parked") >= 1
    assert counted == {
        "received": 4,
        "stored": 3,
        "duplicate": 1,
        "done": 1,
        "failed": 2,
        "dead": 1,
    }


@pytest.mark.only(SOME)
def test_a_drain_signs_on_and_off(world: World, shop: Shop) -> None:
    seen: list[Any] = []

    def watch(payload: Any) -> None:
        seen.extend(world.query("SELECT consumer, name, batch FROM oncebox_worker"))

    world.on(shop.inbox, "watched", watch)
    shop.receive(order("1", type="watched"))
    shop.drain(batch=7)
    ((consumer, name, batch),) = seen
    assert (consumer, batch) == ("billing", 7)
    assert f":{os.getpid()}:" in name
    assert world.query("SELECT count(*) FROM oncebox_worker") == [(0,)]


# -- refusals -------------------------------------------------------------------------------------


@pytest.mark.only(BOTH)
@pytest.mark.parametrize("batch", [0, -1, True, 1.5, "10", None])
def test_a_batch_that_is_no_number_is_refused(world: World, shop: Shop, batch: Any) -> None:
    with pytest.raises(ConfigurationError, match="batch is a number"):
        shop.drain(batch=batch)


@pytest.mark.only(("sqlite3", "psycopg-async"))
def test_an_inbox_without_handlers_neither_receives_nor_drains(world: World) -> None:
    inbox = world.inbox()
    with pytest.raises(ConfigurationError, match="no handlers"):
        world.receive(inbox, [order("1")])
    with pytest.raises(ConfigurationError, match="no handlers"):
        world.drain(inbox)


@pytest.mark.only(("sqlalchemy-psycopg", "sqlalchemy-asyncpg"))
@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_a_drain_is_refused_at_levels_that_could_not_keep_an_order(
    world: World, level: str
) -> None:
    world._database = world.database().execution_options(isolation_level=level)
    shop = Shop(world)
    assert shop.receive(order("1")) == ["stored"]
    with pytest.raises(ConfigurationError, match="READ COMMITTED"):
        shop.receive(kept("2"))
    with pytest.raises(ConfigurationError, match="READ COMMITTED"):
        shop.drain()
    assert world.pending() == [("1", 0, "ready")]
    assert world.query("SELECT count(*) FROM oncebox_worker") == [(0,)]


# -- what a review found --------------------------------------------------------------------------


@pytest.mark.only(("psycopg",))
def test_a_suspect_is_not_run_beside_an_earlier_message_that_was_put_back(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operator retries an earlier letter between the take and the record of the suspect."""
    shop = Shop(world, order=Order.skip)
    shop.bad["first"] = Reject()
    shop.process(kept("first", "k"))
    shop.bad.clear()
    shop.receive(redelivered(kept("second", "k")))
    store: Any = shop.inbox._store
    put_off = store.put_off

    def late(*args: Any, **kwargs: Any) -> Iterator[Any]:
        monkeypatch.setattr(store, "put_off", put_off)
        other = world.inbox(migrate=False)
        other.dead.retry(everything=True, why="now")
        return (yield from put_off(*args, **kwargs))

    monkeypatch.setattr(store, "put_off", late)
    monkeypatch.setattr(oncebox.drain, "PAUSES", (0.001,) * 4)
    assert shop.drain() == {"done": 2}
    assert shop.ran()[-2:] == ["first", "second"]


@pytest.mark.only(("sqlite3", "psycopg"))
def test_the_brake_does_not_overflow(
    world: World, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.receive(redelivered(kept("1", None)))

    def many(*args: Any) -> Iterator[Any]:
        yield from ()
        return 100_000

    monkeypatch.setattr(shop.inbox._store, "count_deaths", many)
    assert shop.drain() == {}
    assert world.pending() == [("1", 0, "retrying")]
