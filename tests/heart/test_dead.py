"""Dead letters: found, put back or away, and told of."""

from __future__ import annotations

import getpass
import http.server
import json
import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from test_drain import AT_ONCE, LATER, Shop, kept, letters, past_due

import oncebox.dead
from oncebox import CloudEvents, Delivery, Message, Order, Reject, Retry
from oncebox.errors import ConfigurationError, NotFound, Unidentified
from oncebox.store.records import DeadLetter
from worlds import BOTH, SOME, World, order

ONCE = Retry(max_attempts=1)


@pytest.fixture
def shop(world: World) -> Shop:
    return Shop(world, retry=ONCE)


def die(shop: Shop, *deliveries: Delivery) -> None:
    """Process messages that fail, and let them be good from now on."""
    shop.bad |= {json.loads(d.body)["data"]["id"]: ValueError("once") for d in deliveries}
    assert "done" not in shop.process(*deliveries)
    shop.bad.clear()
    shop.ran()


def actions(world: World) -> list[tuple[Any, ...]]:
    return world.query(
        "SELECT act, by_whom, why, message_id, reason FROM oncebox_action ORDER BY id"
    )


# -- finding --------------------------------------------------------------------------------------


@pytest.mark.only(SOME)
def test_a_dead_letter_tells_what_it_died_of(world: World, shop: Shop) -> None:
    die(shop, kept("1", time="2026-01-02T03:04:05Z"))
    (letter,) = shop.dead("find")
    assert (letter.state, letter.reason, letter.attempts) == ("dead", "out of attempts", 1)
    assert (letter.origin, letter.message_id, letter.type) == ("test", "1", "order")
    assert (letter.key, letter.parks, letter.deaths) == ("k", True, 0)
    assert letter.error == "ValueError: once"
    assert letter.fingerprint
    assert b'"id":"1"' in letter.payload
    assert letter.occurred_at.isoformat() == "2026-01-02T03:04:05+00:00"
    assert letter.died_at.tzinfo is not None
    assert letter.headers["content-type"] == "application/cloudevents+json"


@pytest.mark.only(BOTH)
def test_letters_are_found_by_everything_that_is_known_of_them(world: World, shop: Shop) -> None:
    die(shop, kept("1", "a"), kept("2", "b"))
    shop.bad["3"] = Reject("no")
    shop.process(kept("3", "c"), order("4", type="strange"), Delivery(b"?"))

    def found(**filter: Any) -> list[str | None]:
        return [letter.message_id for letter in shop.dead("find", **filter)]

    assert found() == ["1", "2", "3", "4", None]
    assert found(state="quarantined") == [None]
    assert found(reason="rejected") == ["3"]
    assert found(type="order") == ["1", "2", "3"]
    assert found(key="b") == ["2"]
    assert found(origin="test", state="dead", key="a") == ["1"]
    assert found(message_id="4") == ["4"]
    assert found(key="b", message_id="1") == []
    first = shop.dead("find", limit=2)
    assert found(fingerprint=first[0].fingerprint) == ["1", "2"]
    assert found(after=first[-1].id, limit=2) == ["3", "4"]
    assert shop.dead("find", first[1].id) == [first[1]]


@pytest.mark.only(BOTH)
def test_another_inbox_has_other_letters(world: World, shop: Shop) -> None:
    die(shop, kept("1"))
    other = Shop(world, name="shipping")
    (letter,) = shop.dead("find")
    assert other.dead("find") == []
    with pytest.raises(NotFound):
        other.dead("retry", letter.id, why="not mine")
    assert other.dead("discard", everything=True, why="not mine").done == 0
    assert len(letters(world)) == 1


# -- retrying -------------------------------------------------------------------------------------


def test_a_retried_letter_runs_at_the_head_of_its_key_and_its_followers_after_it(
    world: World, shop: Shop
) -> None:
    die(shop, kept("1"))
    assert shop.receive(kept("2")) == ["parked"]
    assert shop.process(kept("3"), order("4")) == ["parked", "done"]
    assert shop.drain() == {}
    shop.ran()
    (letter,) = shop.dead("find")
    acted = shop.dead("retry", letter.id, why="mended", by="ada")
    assert (acted.done, acted.left) == (1, 0)
    assert shop.dead("find") == []
    assert shop.process(kept("5")) == ["parked"], "it must not overtake"
    assert shop.drain() == {"done": 4}
    assert shop.ran() == ["1", "2", "3", "5"]
    assert world.pending() == []
    assert actions(world) == [("retry", "ada", "mended", "1", "out of attempts")]


@pytest.mark.only(SOME)
def test_a_retried_letter_that_dies_again_holds_its_key_again(world: World, shop: Shop) -> None:
    die(shop, kept("1"))
    shop.receive(kept("2"), kept("3"))
    shop.bad["1"] = ValueError("still")
    shop.dead("retry", key="k", why="mended?")
    assert shop.drain() == {"dead": 1}
    assert world.pending() == [("2", 0, "parked"), ("3", 0, "parked")]
    assert [row[-1] for row in letters(world)] == ["ValueError: still"]
    shop.bad.clear()
    shop.dead("retry", key="k", why="mended!")
    assert shop.drain() == {"done": 3}
    assert [row[2] for row in actions(world)] == ["mended?", "mended!"]


@pytest.mark.only(BOTH)
def test_a_retried_letter_that_fails_is_retried_by_its_policy(world: World) -> None:
    shop = Shop(world, retry=AT_ONCE)
    shop.bad["1"] = ValueError("never")
    shop.receive(kept("1"), kept("2"))
    shop.drain()
    shop.dead("retry", key="k", why="mended?")
    counts = shop.drain()
    assert counts["dead"] == 1
    assert counts["failed"] >= 1
    assert world.pending() == [("2", 0, "parked")]


@pytest.mark.only(BOTH)
def test_several_letters_of_one_key_are_retried_in_their_order(world: World) -> None:
    shop = Shop(world, retry=ONCE, order=Order.skip)
    die(shop, kept("1"), kept("2"), kept("3"))
    shop.process(kept("4"))
    shop.ran()
    ids = [letter.id for letter in shop.dead("find")]
    assert shop.dead("retry", ids[2], ids[0], why="mended").done == 2
    assert shop.drain() == {"done": 2}
    assert shop.ran() == ["1", "3"]
    assert [letter.message_id for letter in shop.dead("find")] == ["2"]


@pytest.mark.only(BOTH)
def test_a_letter_goes_before_a_retrying_message_of_its_key(world: World) -> None:
    """What was the head of the key waits for what is older."""
    shop = Shop(world, retry=ONCE, order=Order.skip)
    die(shop, kept("1"))
    world.on(shop.inbox, "patient", shop.handle, retry=LATER)
    shop.bad["2"] = ValueError()
    assert shop.process(kept("2", type="patient"), kept("3")) == ["failed", "parked"]
    shop.bad = {"1": ValueError("still")}
    shop.ran()
    shop.dead("retry", key="k", why="mended?")
    assert shop.drain()["dead"] == 1
    assert shop.ran() == ["1", "2", "3"]


@pytest.mark.only(SOME)
def test_letters_without_keys_are_retried(world: World, shop: Shop) -> None:
    die(shop, order("1"), order("2"))
    assert shop.dead("retry", type="order", why="mended").done == 2
    assert shop.drain() == {"done": 2}
    assert world.states() == {"1": "done", "2": "done"}


@pytest.mark.only(BOTH)
def test_a_letter_of_an_unknown_type_runs_once_it_has_a_handler(world: World, shop: Shop) -> None:
    assert shop.process(kept("1", type="new")) == ["dead"]
    world.on(shop.inbox, "new", shop.handle)
    shop.dead("retry", reason="unknown type", why="deployed")
    assert shop.drain() == {"done": 1}


# -- discarding -----------------------------------------------------------------------------------


def test_a_discarded_letter_releases_its_key(world: World, shop: Shop) -> None:
    die(shop, kept("1"))
    shop.receive(kept("2"))
    shop.process(kept("3"))
    (letter,) = shop.dead("find")
    assert shop.dead("discard", letter.id, why="a test order", by="ada").done == 1
    assert world.states() == {"1": "discarded", "2": "pending", "3": "pending"}
    assert shop.drain() == {"done": 2}
    assert shop.ran() == ["2", "3"]
    assert world.effects() == ["2", "3"]
    assert actions(world) == [("discard", "ada", "a test order", "1", "out of attempts")]
    assert shop.process(kept("1")) == ["duplicate"], "it does not come back"
    assert shop.process(kept("4")) == ["done"]


@pytest.mark.only(BOTH)
def test_followers_are_released_up_to_the_next_letter_that_parks(world: World, shop: Shop) -> None:
    """Two parking letters of one key: as after a letter was retried and died behind another."""
    die(shop, kept("1"))
    shop.receive(kept("2"), kept("3"), kept("4"))
    (first,) = shop.dead("find")
    shop.dead("discard", first.id, why="first")
    shop.bad["3"] = Reject("no")
    assert shop.drain()["done"] == 1
    shop.bad.clear()
    assert world.pending() == [("4", 0, "parked")]
    (second,) = shop.dead("find")
    assert second.message_id == "3"
    shop.dead("discard", second.id, why="second")
    assert shop.drain() == {"done": 1}
    assert world.effects() == ["2", "4"]


# -- the quarantine -------------------------------------------------------------------------------

OLD = "0190a5f0-0000-7000-8000-000000000000"
"""An id that says when it came into being."""


def set_mark(world: World) -> None:
    """What came into being before now is too late from now on."""
    mark = "now() + interval '1 hour'" if world.is_postgres else str(2**62)
    world.execute(
        f"INSERT INTO oncebox_consumer (consumer, purged_before) VALUES ('billing', {mark})"
    )


@pytest.mark.only(SOME)
def test_a_message_that_came_too_late_is_released(world: World, shop: Shop) -> None:
    set_mark(world)
    assert shop.process(kept(OLD)) == ["quarantined"]
    assert world.states() == {OLD: "quarantined"}
    assert shop.dead("retry", reason="too late", why="it is new").done == 1
    assert shop.drain() == {"done": 1}
    assert world.effects() == [OLD]
    assert world.states() == {OLD: "done"}
    assert actions(world)[0][3:] == (OLD, "too late")


class Mendable(CloudEvents):
    """An identity that knows no delivery until it is mended."""

    mended = False

    def __call__(self, delivery: Delivery) -> Message:
        if not self.mended:
            raise Unidentified("who is it?")
        return super().__call__(delivery)


@pytest.mark.only(SOME)
def test_unidentified_deliveries_are_released_once_the_identity_is_mended(world: World) -> None:
    identity = Mendable()
    shop = Shop(world, identity=identity)
    batch = [kept("1"), kept("2"), Delivery(b"nonsense"), kept("1", specversion="1.0")]
    assert shop.process(*batch) == ["quarantined"] * 4
    acted = shop.dead("retry", state="quarantined", why="again")
    assert (acted.done, acted.left) == (0, 3), "they are still unidentified"
    assert len(letters(world)) == 3
    identity.mended = True
    acted = shop.dead("retry", state="quarantined", why="again")
    assert (acted.done, acted.left) == (2, 1)
    assert shop.drain() == {"done": 2}
    assert shop.ran() == ["1", "2"]
    assert world.states() == {"1": "done", "2": "done"}
    assert len(letters(world)) == 1
    assert shop.process(*batch[:2]) == ["duplicate"] * 2
    assert len(actions(world)) == 2


@pytest.mark.only(SOME)
def test_an_unidentified_delivery_that_is_too_late_by_now_is_quarantined_anew(world: World) -> None:
    identity = Mendable()
    shop = Shop(world, identity=identity)
    assert shop.process(kept(OLD), kept("1")) == ["quarantined"] * 2
    set_mark(world)
    identity.mended = True
    acted = shop.dead("retry", reason="unidentified", why="mended")
    assert (acted.done, acted.left) == (1, 1)
    ((id, state, reason, *_),) = letters(world)
    assert (id, state, reason) == (OLD, "quarantined", "too late")
    assert world.states() == {OLD: "quarantined", "1": "pending"}
    assert shop.drain() == {"done": 1}
    assert shop.process(kept(OLD)) == ["duplicate"], "it is known now"
    assert len(letters(world)) == 1
    acted = shop.dead("retry", reason="too late", why="it is new")
    assert (acted.done, acted.left) == (1, 0)
    assert shop.drain() == {"done": 1}
    assert world.effects() == [OLD, "1"]
    assert world.states() == {OLD: "done", "1": "done"}
    assert letters(world) == []
    assert [(row[0], row[4]) for row in actions(world)] == [
        ("retry", "unidentified"),
        ("retry", "unidentified"),
        ("retry", "too late"),
    ]


@pytest.mark.only(BOTH)
def test_an_unidentified_delivery_that_is_too_late_can_be_put_away(world: World) -> None:
    identity = Mendable()
    shop = Shop(world, identity=identity)
    shop.process(kept(OLD))
    set_mark(world)
    identity.mended = True
    shop.dead("retry", everything=True, why="mended")
    assert shop.process(kept("2")) == ["done"], "it holds nothing up"
    shop.dead("discard", everything=True, why="a duplicate")
    assert world.states() == {OLD: "discarded", "2": "done"}
    assert letters(world) == []


@pytest.mark.only(SOME)
def test_an_unidentified_delivery_with_other_bytes_is_quarantined_anew(world: World) -> None:
    identity = Mendable()
    shop = Shop(world, identity=identity)
    other = kept("1", data={"id": "other"})
    assert shop.process(other) == ["quarantined"]
    identity.mended = True
    assert shop.process(kept("1")) == ["done"]
    acted = shop.dead("retry", everything=True, why="mended")
    assert (acted.done, acted.left) == (0, 1)
    assert letters(world)[0][:3] == ("1", "quarantined", "other bytes")
    assert shop.process(other) == ["quarantined"]
    assert len(letters(world)) == 1, "it is the same delivery"
    assert shop.dead("retry", everything=True, why="both").done == 1
    assert shop.drain() == {"done": 1}
    assert world.effects() == ["1", "other"]
    assert letters(world) == []


@pytest.mark.only(SOME)
def test_other_bytes_run_under_an_id_of_their_own(world: World, shop: Shop) -> None:
    shop.process(kept("1"))
    other = kept("1", data={"id": "other"})
    assert shop.process(other) == ["quarantined"]
    assert shop.dead("retry", reason="other bytes", why="a producer's mistake").done == 1
    assert shop.drain() == {"done": 1}
    assert world.effects() == ["1", "other"]
    assert len(world.states()) == 2
    assert set(world.states().values()) == {"done"}
    assert all(id == "1" or id.startswith("1~") for id in world.states())
    assert shop.process(other) == ["quarantined"], "the same bytes once more"
    assert shop.dead("retry", reason="other bytes", why="again").done == 1
    assert shop.drain() == {}
    assert world.effects() == ["1", "other"], "a duplicate of the one that was released"
    assert letters(world) == []


@pytest.mark.only(BOTH)
def test_the_longest_ids_have_room_for_other_bytes(world: World, shop: Shop) -> None:
    id = "é" * 127
    shop.process(order(id))
    assert shop.process(order(id, data={"id": "other"})) == ["quarantined"]
    shop.dead("retry", state="quarantined", why="both")
    assert shop.drain() == {"done": 1}
    assert world.effects() == sorted([id, "other"])


@pytest.mark.only(BOTH)
def test_a_released_message_waits_behind_its_key(world: World) -> None:
    shop = Shop(world, retry=LATER)
    shop.process(kept("1"))
    shop.process(kept("1", data={"id": "other"}))
    shop.bad["2"] = ValueError()
    assert shop.process(kept("2")) == ["failed"]
    shop.dead("retry", state="quarantined", why="both")
    assert [row[2] for row in world.pending()] == ["retrying", "parked"]
    shop.bad.clear()
    shop.ran()
    past_due(world)
    assert shop.drain() == {"done": 2}
    assert shop.ran() == ["2", "other"]


@pytest.mark.only(BOTH)
def test_quarantined_deliveries_are_discarded(world: World, shop: Shop) -> None:
    shop.process(order("1"), order("1", data={"id": "other"}), Delivery(b"?"))
    assert shop.dead("discard", state="quarantined", why="noise").done == 2
    assert letters(world) == []
    assert [(row[0], row[4]) for row in actions(world)] == [
        ("discard", "other bytes"),
        ("discard", "unidentified"),
    ]


@pytest.mark.only(("sqlalchemy-psycopg",))
def test_a_letter_is_not_lost_at_levels_that_could_not_keep_an_order(world: World) -> None:
    shop = Shop(world)
    shop.process(kept("1"), kept("1", data={"id": "other"}))
    world._database = world.database().execution_options(isolation_level="REPEATABLE READ")
    strict = Shop(world)
    with pytest.raises(ConfigurationError, match="READ COMMITTED"):
        strict.dead("retry", state="quarantined", why="both")
    assert len(letters(world)) + len(world.pending()) == 1


# -- many at once ---------------------------------------------------------------------------------


@pytest.mark.only(SOME)
def test_letters_are_acted_on_in_chunks(
    world: World, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oncebox.dead, "CHUNK", 3)
    die(shop, *[kept(str(n), f"key {n % 8}") for n in range(8)], order("other", type="x"))
    shop.receive(*[kept(f"{n}b", f"key {n}") for n in range(8)])
    steps: list[int] = []
    acted = shop.dead("retry", type="order", why="mended", progress=steps.append)
    assert (acted.done, acted.left) == (8, 0)
    assert steps == [3, 6, 8]
    assert len(actions(world)) == 8
    assert shop.drain() == {"done": 16}
    assert [letter.message_id for letter in shop.dead("find")] == ["other"]


@pytest.mark.only(BOTH)
def test_a_chunk_that_is_exactly_full_is_not_the_last(
    world: World, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oncebox.dead, "CHUNK", 2)
    die(shop, *[order(str(n)) for n in range(4)])
    assert shop.dead("discard", everything=True, why="a test").done == 4
    assert letters(world) == []
    assert shop.dead("discard", everything=True, why="a test").done == 0


@pytest.mark.only(BOTH)
def test_letters_that_die_during_the_act_are_left_for_the_next_one(
    world: World, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oncebox.dead, "CHUNK", 1)
    die(shop, order("1"), order("2"))
    extra = iter([order("3"), order("4")])

    def die_meanwhile(done: int) -> None:
        shop.bad |= {"3": ValueError(), "4": ValueError()}
        shop.process(next(extra))

    acted = shop.dead("retry", everything=True, why="mended", progress=die_meanwhile)
    assert acted.done == 2
    assert [letter.message_id for letter in shop.dead("find")] == ["3", "4"]


# -- refusals and the audit -----------------------------------------------------------------------


@pytest.mark.only(("sqlite3", "psycopg-async"))
@pytest.mark.parametrize("act", ["retry", "discard"])
def test_an_act_says_what_and_why(world: World, shop: Shop, act: str) -> None:
    die(shop, kept("1"))
    with pytest.raises(ConfigurationError, match="numbers or filters, or everything=True"):
        shop.dead(act, why="because")
    with pytest.raises(ConfigurationError, match="numbers or filters"):
        shop.dead(act, why="because", key=None)
    with pytest.raises(ConfigurationError, match="say why"):
        shop.dead(act, everything=True, why=" ")
    with pytest.raises(ConfigurationError, match="unknown filter 'topic'; the filters are"):
        shop.dead(act, topic="orders", why="because")
    with pytest.raises(ConfigurationError, match="number is an integer"):
        shop.dead(act, "1", why="because")
    with pytest.raises(ConfigurationError, match="number is an integer"):
        shop.dead(act, True, why="because")
    with pytest.raises(NotFound, match="no dead letter 404"):
        shop.dead(act, 404, why="because")
    with pytest.raises(ConfigurationError, match="unknown filter"):
        shop.dead("find", topic="orders")
    assert actions(world) == []
    assert len(letters(world)) == 1


@pytest.mark.only(BOTH)
def test_who_acted_is_the_user_of_the_process_if_nobody_is_named(world: World, shop: Shop) -> None:
    die(shop, order("1"))
    shop.dead("discard", everything=True, why="a test")
    assert actions(world)[0][:3] == ("discard", getpass.getuser(), "a test")
    now = "clock_timestamp() - interval '1 minute'" if world.is_postgres else "0"
    assert world.query(f"SELECT count(*) FROM oncebox_action WHERE acted_at > {now}") == [(1,)]


@pytest.mark.only(("sqlalchemy-aiosqlite", "django-sqlite"))
def test_letters_are_acted_on_in_the_colour_of_the_inbox(world: World, shop: Shop) -> None:
    die(shop, order("1"))
    with pytest.raises(ConfigurationError, match="this inbox is"):
        if world.is_async:
            shop.inbox.dead.find()
        else:
            _awaited(shop.inbox.dead.afind())


def _awaited(coroutine: Any) -> None:
    try:
        coroutine.send(None)
    finally:
        coroutine.close()


# -- hooks ----------------------------------------------------------------------------------------


def told_again(world: World) -> None:
    """Let the lease of what could not be told end."""
    past = "clock_timestamp()" if world.is_postgres else "0"
    world.execute(f"UPDATE oncebox_dead SET tell_at = {past} WHERE tell_at IS NOT NULL")


def untold(world: World) -> int:
    ((count,),) = world.query("SELECT count(*) FROM oncebox_dead WHERE tell_at IS NOT NULL")
    return int(count)


@pytest.mark.only(SOME)
def test_a_hook_is_told_once_of_every_dead_letter(world: World) -> None:
    told: list[DeadLetter] = []
    shop = Shop(world, retry=ONCE, on_dead=told.append)
    die(shop, kept("1"))
    assert told == [], "the drain tells"
    shop.bad["2"] = ValueError("two")
    shop.receive(order("2"), order("3"))
    shop.process(Delivery(b"?"))
    assert shop.drain() == {"dead": 1, "done": 1}
    shop.drain()
    assert sorted(letter.message_id or "" for letter in told) == ["", "1", "2"]
    assert {letter.id for letter in told} == {letter.id for letter in shop.dead("find")}
    assert untold(world) == 0


@pytest.mark.only(("psycopg-async", "aiosqlite"))
def test_an_async_hook_is_awaited(world: World) -> None:
    told: list[str | None] = []

    async def tell(letter: DeadLetter) -> None:
        told.append(letter.message_id)

    shop = Shop(world, retry=ONCE, on_dead=[tell])
    die(shop, kept("1"))
    shop.drain()
    assert told == ["1"]


@pytest.mark.only(("psycopg-async",))
def test_a_sync_hook_does_not_block_the_loop(world: World) -> None:
    threads: list[str] = []
    hook = lambda letter: threads.append(threading.current_thread().name)  # noqa: E731
    shop = Shop(world, retry=ONCE, on_dead=hook)
    die(shop, kept("1"))
    shop.drain()
    assert len(threads) == 1
    assert threads != [threading.current_thread().name]


@pytest.mark.only(SOME)
def test_what_could_not_be_told_is_told_again_later(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[str | None] = []
    errors = [ConnectionError("down")]

    def tell(letter: DeadLetter) -> None:
        told.append(letter.message_id)
        if errors:
            raise errors.pop()

    shop = Shop(world, retry=ONCE, on_dead=tell)
    die(shop, kept("1"))
    shop.drain()
    shop.drain()
    assert told == ["1"], "not before its lease ends"
    assert untold(world) == 1
    assert "a hook could not be told of dead letter 1 (ConnectionError)" in (caplog.text)
    told_again(world)
    shop.drain()
    assert told == ["1", "1"]
    assert untold(world) == 0
    told_again(world)
    shop.drain()
    assert told == ["1", "1"]


@pytest.mark.only(BOTH)
def test_more_letters_than_are_told_at_once_are_all_told(world: World) -> None:
    told: list[str | None] = []
    shop = Shop(world, retry=ONCE, on_dead=lambda letter: told.append(letter.message_id))
    die(shop, *[order(str(n)) for n in range(45)])
    shop.drain()
    assert sorted(told) == sorted(str(n) for n in range(45))


@pytest.mark.only(BOTH)
def test_without_hooks_nothing_is_left_to_be_told(world: World, shop: Shop) -> None:
    die(shop, kept("1"))
    assert untold(world) == 0


@pytest.mark.only(BOTH)
def test_the_log_hook_names_the_letter_and_nothing_private(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    shop = Shop(world, retry=ONCE, on_dead="log")
    shop.bad["secret"] = ValueError("secret error")
    shop.process(order("1", key="k", data={"id": "secret"}))
    caplog.clear()
    shop.drain()
    (record,) = [r for r in caplog.records if r.levelno == logging.ERROR]
    assert record.getMessage().startswith("dead letter 1: message '1' of type 'order', key 'k'")
    assert "secret" not in caplog.text


class Receiver(http.server.BaseHTTPRequestHandler):
    """Takes webhooks, and refuses as many as it is told to."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.got.append((self.path, self.headers["Content-Type"], json.loads(body)))  # type: ignore[attr-defined]
        refusals = self.server.refusals  # type: ignore[attr-defined]
        self.send_response(refusals.pop() if refusals else 204)
        self.end_headers()

    def log_message(self, *args: Any) -> None:
        """Not to the terminal."""


@pytest.fixture
def receiver() -> Iterator[Any]:
    server: Any = http.server.HTTPServer(("127.0.0.1", 0), Receiver)
    server.got, server.refusals = [], []
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.only(("psycopg", "aiosqlite"))
def test_a_webhook_gets_the_letter_without_its_payload(world: World, receiver: Any) -> None:
    receiver.refusals = [503]
    url = f"http://127.0.0.1:{receiver.server_port}/dead"
    shop = Shop(world, retry=ONCE, on_dead=url)
    die(shop, kept("1"))
    shop.drain()
    assert untold(world) == 1, "an answer of 503 is none"
    told_again(world)
    shop.drain()
    assert untold(world) == 0
    (path, content_type, letter), again = receiver.got
    assert again[2]["id"] == letter["id"]
    assert (path, content_type) == ("/dead", "application/json")
    assert (letter["message_id"], letter["reason"], letter["key"]) == ("1", "out of attempts", "k")
    assert {"payload", "headers", "content_hash"}.isdisjoint(letter)


@pytest.mark.only(BOTH)
def test_every_hook_is_told(world: World, caplog: pytest.LogCaptureFixture) -> None:
    told: list[int] = []
    shop = Shop(world, retry=ONCE, on_dead=["log", lambda letter: told.append(letter.id)])
    die(shop, kept("1"))
    shop.drain()
    assert told == [1]
    assert "dead letter 1: " in caplog.text
