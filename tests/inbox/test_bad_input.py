"""Bad input has a clear outcome, and its bytes are kept."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from oncebox import (
    BusinessKey,
    CloudEvents,
    Coordinates,
    Delivery,
    Json,
    Kind,
    Message,
    Ordering,
    Reason,
    Reject,
    Retry,
    RetryAfter,
)
from support.worlds import SOME, World, order, write_effect

pytestmark = pytest.mark.only(SOME)

NASTY = [
    b"",
    b"\xff\xfe",
    b"not json",
    b"[]",
    b"null",
    b'{"type": "order", "source": "s", "data": {}}',
    b'{"id": "", "type": "order", "source": "s"}',
    b'{"id": "' + b"x" * 256 + b'", "type": "order", "source": "s"}',
    b'{"id": "a\\u0000b", "type": "order", "source": "s"}',
    b'{"id": "\\ud800", "type": "order", "source": "s"}',
    b'{"id": {"a": 1}, "type": "order", "source": "s"}',
    b'{"id": ' + b"9" * 5000 + b', "type": "order", "source": "s"}',
    b"[" * 100_000,
]


def dead(world: World) -> list[tuple[Any, ...]]:
    return world.query("SELECT message_id, state, reason FROM oncebox_dead_letter ORDER BY id")


def test_an_unidentified_delivery_is_quarantined_with_its_bytes(world: World) -> None:
    inbox = world.inbox()
    world.on(inbox, "order", write_effect)
    deliveries = [Delivery(body, coordinates=f"0/{n}") for n, body in enumerate(NASTY)]
    outcomes = world.process(inbox, [*deliveries, order("fine")])
    assert [o.kind for o in outcomes] == [Kind.quarantined] * len(NASTY) + [Kind.done]
    assert {o.reason for o in outcomes[:-1]} == {Reason.missing_id}
    rows = world.query("SELECT payload, error FROM oncebox_dead_letter ORDER BY id")
    assert [bytes(payload) for payload, _ in rows] == NASTY
    assert all(error.startswith("MissingId: ") for _, error in rows)


def test_a_rewind_adds_nothing_to_the_quarantine(world: World) -> None:
    inbox = world.inbox(identity=Json("id", type="type"))
    world.on(inbox, "order", write_effect)
    original, changed = _json(id="a", type="order", n=1), _json(id="a", type="order", n=2)
    batch = [original, changed, Delivery(b"?", coordinates="0/1"), Delivery(b"?")]
    for _ in range(3):
        kinds = world.kinds(inbox, [*batch, *batch])
        assert kinds.count("quarantined") == 6
    assert [row[2] for row in dead(world)] == ["payload_mismatch", "missing_id", "missing_id"]


def test_the_same_id_with_other_bytes_is_quarantined_and_the_first_stays(world: World) -> None:
    inbox = world.inbox()
    world.on(inbox, "order", write_effect)
    changed = order("a", data={"id": "changed"})
    assert world.kinds(inbox, [order("a")]) == ["done"]
    (outcome,) = world.process(inbox, [changed])
    assert (outcome.kind, outcome.reason) == (Kind.quarantined, Reason.payload_mismatch)
    assert world.effects() == ["a"]
    ((payload,),) = world.query("SELECT payload FROM oncebox_dead_letter")
    assert json.loads(bytes(payload)) == {"id": "changed"}


def test_a_message_that_was_claimed_before_is_a_duplicate_within_its_batch_too(
    world: World,
) -> None:
    inbox = world.inbox()
    world.on(inbox, "order", write_effect)
    known, changed = order("a"), order("a", data={"id": "changed"})
    assert world.kinds(inbox, [changed, known]) == ["done", "quarantined"]
    assert world.kinds(inbox, [known, changed]) == ["quarantined", "duplicate"]
    assert world.effects() == ["changed"]


def test_a_message_before_a_dead_letter_of_its_key_still_runs(world: World) -> None:
    inbox = world.inbox()
    world.on(inbox, "order", write_effect)
    batch = [order("a", key="k"), order("dead", key="k", data=[1]), order("c", key="k")]
    assert world.kinds(inbox, batch) == ["done", "dead", "blocked"]


def test_an_order_submitted_twice_is_a_duplicate_even_with_other_bytes(world: World) -> None:
    inbox = world.inbox(identity=BusinessKey("customer", "order", type="type"))
    world.on(inbox, "order", lambda payload, tx: None)
    first = _json(type="order", customer=1, order="17", click=1)
    again = _json(type="order", customer=1, order="17", click=2)
    other = _json(type="order", customer="1,", order="17", click=3)
    assert world.kinds(inbox, [first, again, other]) == ["done", "duplicate", "done"]
    assert world.kinds(inbox, [again]) == ["duplicate"]


def test_coordinates_are_an_identity(world: World) -> None:
    inbox = world.inbox(identity=Coordinates(type="type"))
    world.on(inbox, "order", lambda payload, tx: None)

    def at(place: str | None) -> Delivery:
        return Delivery(b'{"type": "order"}', source="orders", coordinates=place)

    kinds = world.kinds(inbox, [at("0/1"), at("0/2"), at("0/1"), at(None)])
    assert kinds == ["done", "done", "duplicate", "quarantined"]


def test_unknown_types_are_dead_letters_that_never_block(world: World) -> None:
    inbox = world.inbox()
    world.on(inbox, "order", write_effect)
    batch = [order("x", key="k", type="surprise"), order("a", key="k")]
    assert world.kinds(inbox, batch) == ["dead", "done"]
    assert dead(world) == [("x", "dead", "unknown_type")]


def test_unknown_types_can_be_ignored(world: World) -> None:
    inbox = world.inbox(unknown_type="ignore")
    world.on(inbox, "order", write_effect)
    inbox.ignore("shop.*")
    batch = [order("x", type="surprise"), order("y", type="shop.closed"), order("a")]
    assert world.kinds(inbox, batch) == ["ignored", "ignored", "done"]
    assert world.states() == {"a": "done"}
    assert world.query("SELECT received, ignored, done FROM oncebox_minute_counter") == [(3, 2, 1)]


@pytest.mark.parametrize("order_policy", [Ordering.strict, Ordering.skip_dead])
def test_a_dead_letter_blocks_its_key_or_is_skipped(world: World, order_policy: Ordering) -> None:
    inbox = world.inbox(ordering=order_policy)

    def pick(payload: dict[str, Any], tx: Any) -> Any:
        if payload["id"] == "poison":
            raise Reject("never")
        yield from write_effect(payload, tx)

    world.on(inbox, "order", pick)
    batch = [order("poison", key="k"), order("a", key="k"), order("b", key="other")]
    follower = "blocked" if order_policy is Ordering.strict else "done"
    assert world.kinds(inbox, batch) == ["dead", follower, "done"]
    assert world.kinds(inbox, [order("c", key="k")]) == [follower]
    assert dead(world) == [("poison", "dead", "rejected")]
    assert world.query("SELECT number, outcome FROM oncebox_attempt") == [(1, "dead")]


def test_undecodable_unknown_version_and_oversized_are_dead_on_arrival(world: World) -> None:
    identity = CloudEvents(version="dataversion")
    inbox = world.inbox(payload_limit=1000, ordering=Ordering.skip_dead, identity=identity)

    def take(payload: dict[str, Any], tx: Any) -> Any:
        yield from write_effect(payload, tx)

    world.on(inbox, "order", take, version=2)
    inbox.upcast("order", from_version=1)(lambda old: {"id": old["name"]})
    batch = [
        order("old", data={"name": "old"}),
        order("current", dataversion=2),
        order("future", dataversion=3),
        order("unreadable", dataversion="two"),
        order("wrong shape", data=[1, 2], dataversion=2),
        order("upcaster fails", data={"nom": "x"}),
        order("large", data={"id": "x" * 1000}, dataversion=2),
    ]
    outcomes = world.process(inbox, batch)
    assert [o.kind for o in outcomes] == [Kind.done, Kind.done] + [Kind.dead] * 5
    assert [o.reason for o in outcomes[2:]] == [
        Reason.unknown_version,
        Reason.unknown_version,
        Reason.undecodable,
        Reason.undecodable,
        Reason.too_large,
    ]
    assert world.effects() == ["current", "old"]


def test_messages_below_the_watermark_are_quarantined_and_keep_their_row(world: World) -> None:
    inbox = world.inbox()
    world.on(inbox, "order", write_effect)
    now = datetime.now(UTC)
    mark = now if world.is_postgres else int(now.timestamp() * 1_000_000)
    world.execute(
        "INSERT INTO oncebox_consumer (consumer, purged_before) VALUES ('billing', %s)", mark
    )
    late = order("late", time=(now - timedelta(days=1)).isoformat())
    fresh = order("fresh", time=(now + timedelta(days=1)).isoformat())
    assert world.kinds(inbox, [late, fresh]) == ["quarantined", "done"]
    assert world.kinds(inbox, [late, fresh]) == ["duplicate", "duplicate"]
    assert dead(world) == [("late", "quarantined", "too_late")]
    assert world.states() == {"late": "quarantined", "fresh": "done"}


def test_after_max_attempts_of_one_the_first_failure_is_a_dead_letter(world: World) -> None:
    inbox = world.inbox(retry=Retry(max_attempts=1))

    def fail(payload: dict[str, Any]) -> None:
        raise ValueError("boom")

    world.on(inbox, "order", fail)
    (outcome,) = world.process(inbox, [order("a")])
    assert (outcome.kind, outcome.reason) == (Kind.dead, Reason.out_of_attempts)
    ((error, fingerprint),) = world.query("SELECT error, fingerprint FROM oncebox_dead_letter")
    assert error == "ValueError: boom"
    assert len(fingerprint) == 16


def test_a_handler_may_name_the_time_of_its_retry(world: World) -> None:
    inbox = world.inbox()

    def later(payload: dict[str, Any]) -> None:
        raise RetryAfter(timedelta(hours=2))

    world.on(inbox, "order", later)
    (outcome,) = world.process(inbox, [order("a")])
    assert outcome.retry_in == timedelta(hours=2)
    seconds = (
        "extract(epoch FROM available_at - clock_timestamp())"
        if world.is_postgres
        else "available_at / 1000000 - (julianday('now') - 2440587.5) * 86400"
    )
    ((delay,),) = world.query(f"SELECT {seconds} FROM oncebox_pending")
    assert 7000 < delay < 7300


def test_the_inbox_is_an_audit_log(world: World) -> None:
    inbox = world.inbox()
    world.on(inbox, "order", write_effect)
    delivery = order("a", key="k", time="2026-01-02T03:04:05Z")
    headers = {"trace": "1", "binary": b"\xff", "nul": "\0"}
    world.process(inbox, [Delivery(delivery.body, headers, "k", "orders", "3/14")])
    ((payload, text, source, coordinates, key),) = world.query(
        "SELECT payload, headers, source, coordinates, key FROM oncebox_inbox"
    )
    assert json.loads(bytes(payload)) == {"id": "a"}
    found = json.loads(text) if isinstance(text, str) else text
    assert found == {"trace": "1", "binary": "\\xff", "nul": "\\0"}
    assert (source, coordinates, key) == ("orders", "3/14", "k")


def test_without_keep_payload_none_is_stored_once_done(world: World) -> None:
    inbox = world.inbox(keep_payload=False)

    def sometimes(payload: dict[str, Any], tx: Any) -> Any:
        yield from write_effect(payload, tx)
        if payload["id"] == "bad":
            raise ValueError

    world.on(inbox, "order", sometimes)
    assert world.kinds(inbox, [order("a"), order("bad"), order("a")])[0] == "done"
    assert world.query("SELECT count(payload) FROM oncebox_inbox") == [(0,)]
    assert world.query("SELECT count(payload) FROM oncebox_pending") == [(1,)]


def test_counters_add_up(world: World) -> None:
    inbox = world.inbox()

    def sometimes(payload: dict[str, Any], tx: Any) -> Any:
        yield from write_effect(payload, tx)
        if payload["id"] == "bad":
            raise ValueError

    world.on(inbox, "order", sometimes)
    for _ in range(2):
        batch = [order("a"), order("bad", key="k"), order("c", key="k"), Delivery(b"?")]
        world.process(inbox, [*batch, order("x", type="surprise"), order("a")])
    names = "received, done, duplicate, failed, blocked, dead, quarantined"
    sums = ", ".join(f"sum({name})" for name in names.split(", "))
    ((row),) = world.query(f"SELECT {sums} FROM oncebox_minute_counter")
    assert [int(value) for value in row] == [12, 1, 6, 1, 1, 1, 2]


# -- batch handlers, catch-all, raw messages ------------------------------------------------------


def test_batch_handlers_get_lists_in_key_order(world: World) -> None:
    calls: list[list[str]] = []
    inbox = world.inbox()

    def many(payloads: list[dict[str, Any]], tx: Any) -> Any:
        calls.append([payload["id"] for payload in payloads])
        yield tx.execute_many("INSERT INTO effects (id, body) VALUES (:id, '')", payloads)

    world.on(inbox, "move", many, batch=True)
    world.on(inbox, "order", write_effect)
    batch = [
        order("b1", key="b", type="move"),
        order("a1", key="a", type="move"),
        order("b2", key="b", type="order"),
        order("b3", key="b", type="move"),
        order("a2", key="a", type="move"),
    ]
    assert world.kinds(inbox, batch) == ["done"] * 5
    assert calls == [["a1", "a2", "b1"], ["b3"]]
    assert world.effects() == ["a1", "a2", "b1", "b2", "b3"]


def test_only_the_bad_message_of_a_batch_handler_fails(world: World) -> None:
    inbox = world.inbox()

    def many(payloads: list[dict[str, Any]], tx: Any) -> Any:
        yield tx.execute_many("INSERT INTO effects (id, body) VALUES (:id, '')", payloads)
        if any(payload["id"] == "bad" for payload in payloads):
            raise ValueError

    world.on(inbox, "order", many, batch=True)
    batch = [order("bad" if n == 13 else f"m{n}", key=str(n % 7)) for n in range(30)]
    kinds = world.kinds(inbox, batch)
    assert kinds[13] == "failed"
    assert [n for n, kind in enumerate(kinds) if kind == "blocked"] == [20, 27]
    assert kinds.count("done") == 27
    assert len(world.effects()) == 27


def test_a_batch_handler_has_no_single_message(world: World) -> None:
    inbox = world.inbox()

    def many(messages: list[Message], tx: Any) -> Any:
        assert [message.id for message in messages] == ["a"]
        return tx.message

    world.on(inbox, "order", many, batch=True)
    (outcome,) = world.process(inbox, [order("a")])
    assert "use tx.messages" in str(outcome.error)


def test_a_handler_sees_its_message(world: World) -> None:
    seen: list[Message] = []
    inbox = world.inbox()

    def see(payload: bytes, tx: Any) -> None:
        assert payload == tx.message.payload
        seen.append(tx.message)

    world.on(inbox, "*", see)
    assert world.kinds(inbox, [order("a", key="k", type="anything")]) == ["done"]
    assert [(m.id, m.origin, m.type, m.key) for m in seen] == [("a", "test", "anything", "k")]


def test_a_handler_that_runs_again_gets_a_fresh_payload(world: World) -> None:
    inbox = world.inbox()

    def change(payload: dict[str, Any], tx: Any) -> Any:
        assert "changed" not in payload
        payload["changed"] = True
        yield from write_effect(payload, tx)
        if payload["id"] == "bad":
            raise ValueError

    world.on(inbox, "order", change)
    assert world.kinds(inbox, [order("a"), order("bad"), order("c")]) == ["done", "failed", "done"]


def _json(**fields: Any) -> Delivery:
    return Delivery(json.dumps(fields).encode())
