"""No content of a delivery makes process(), receive() or drain() raise, on any adapter.

A short run is part of every test run; `make fuzz` runs longer.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oncebox import (
    BusinessKey,
    CloudEvents,
    Coordinates,
    Debezium,
    Delivery,
    Headers,
    Inbox,
    Json,
    KafkaKey,
    Kind,
    Message,
)
from support.deliveries import EXAMPLES, deliveries
from support.worlds import ALL, BOTH, World, order

IDENTITIES: dict[str, Any] = {
    "cloud events": CloudEvents(),
    "numbered": CloudEvents(sequence="n", key=("source", "partitionkey")),
    "json": Json("id", type="type", key=("source", "key"), version="v"),
    "per origin": Json("id", origin="source", type="type", key="key", key_per_origin=True),
    "headers": Headers("id", type="type"),
    "business key": BusinessKey("key", "n", type="type"),
    "coordinates": Coordinates(type="type"),
    "kafka key": KafkaKey(type="type"),
    "debezium": Debezium(),
    "own function": lambda delivery: Message(
        delivery.headers["id"], delivery.body, delivery.source, "order", headers=delivery.headers
    ),
}


def keep(message: Message, tx: Any) -> Any:
    """Writes the message down, with headers of one type whichever way it came."""
    assert all(value is None or isinstance(value, str) for value in message.headers.values())
    yield tx.execute("INSERT INTO effects (id, body) VALUES (:id, :body)", id=message.id, body="")


def make(world: World, name: str) -> Inbox:
    inbox = world.inbox(name, identity=IDENTITIES[name])
    world.on(inbox, "*", keep)
    return inbox


@pytest.mark.only(ALL, quick=BOTH)
def test_no_delivery_can_make_an_inbox_raise(world: World) -> None:
    inboxes = {name: make(world, name) for name in IDENTITIES}
    control = world.inbox("control")
    world.on(control, "order", keep)
    counter = iter(range(10**9))

    @settings(
        max_examples=EXAMPLES or 30,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        database=None,
        derandomize=not EXAMPLES,
    )
    @given(st.sampled_from(sorted(IDENTITIES)), st.lists(deliveries(), min_size=1, max_size=8))
    def check(name: str, batch: list[Delivery]) -> None:
        inbox = inboxes[name]
        outcomes = world.process(inbox, batch)
        assert len(outcomes) == len(batch)
        assert not [o for o in outcomes if o.kind is Kind.failed], "the handler raises nothing"
        assert len(world.receive(inbox, batch)) == len(batch)
        world.drain(inbox)
        letters = (
            inbox.dead_letters.afind(limit=20)
            if world.is_async
            else inbox.dead_letters.find(limit=20)
        )
        assert isinstance(world.run(letters) if world.is_async else letters, list)
        assert world.kinds(control, [order(f"control {next(counter)}")]) == ["done"]

    check()


@pytest.mark.only(("sqlite3", "psycopg", "sqlalchemy-asyncpg", "django-sqlite"))
def test_headers_of_amqp_do_not_block_a_batch(world: World) -> None:
    """A list of objects, a number, and what no JSON knows."""
    inbox = world.inbox()
    world.on(inbox, "order", keep)
    headers = {"x-death": [{"count": 1, "reason": "rejected"}], "priority": 5, "raw": b"\xff"}
    good = order("a")
    batch = [Delivery(good.body, headers), order("b"), Delivery(b"?", headers, key=7)]  # type: ignore[arg-type]
    assert world.kinds(inbox, batch) == ["done", "done", "quarantined"]
    assert world.effects() == ["a", "b"]


@pytest.mark.only(("sqlite3", "psycopg", "sqlalchemy-asyncpg", "django-sqlite"))
@pytest.mark.parametrize("bad", ["a\0b", "\ud800"])
def test_a_source_or_coordinates_that_no_database_stores_are_escaped(
    world: World, bad: str
) -> None:
    inbox = world.inbox()
    world.on(inbox, "order", keep)
    batch = [
        Delivery(order("a").body, source=bad),
        Delivery(order("b").body, coordinates=bad),
        Delivery(b"?", source=bad, coordinates=bad),
    ]
    assert world.kinds(inbox, batch) == ["done", "done", "quarantined"]
    assert world.kinds(inbox, batch) == ["duplicate", "duplicate", "quarantined"]
    assert world.query("SELECT count(*) FROM oncebox_dead_letter") == [(1,)]
    escaped = bad.encode("utf-8", "backslashreplace").decode().replace("\0", "\\0")
    assert world.query("SELECT source, coordinates FROM oncebox_dead_letter") == [
        (escaped, escaped)
    ]


@pytest.mark.only(("sqlite3", "psycopg"))
def test_headers_have_one_type_inline_and_after_a_retry(world: World) -> None:
    seen: list[Any] = []

    def fail_once(message: Message, tx: Any) -> Any:
        seen.append(dict(message.headers))
        if len(seen) == 1:
            raise ValueError
        yield from keep(message, tx)

    inbox = world.inbox()
    world.on(inbox, "order", fail_once)
    headers = {"trace": b"abc", "n": 1, "none": None}
    assert world.kinds(inbox, [Delivery(order("a").body, headers)]) == ["failed"]
    world.execute("UPDATE oncebox_pending SET available_at = NULL")
    assert world.drain(inbox) == {"done": 1}
    assert seen == [{"trace": "abc", "n": "1", "none": None}] * 2


@pytest.mark.only(("sqlite3", "psycopg"))
def test_an_identity_function_that_raises_or_returns_nonsense_quarantines(world: World) -> None:
    answers: list[Any] = [KeyError("id"), None, Message("a\0", b""), Message("a", "text")]  # type: ignore[arg-type]

    def identity(delivery: Delivery) -> Message:
        answer = answers[int(delivery.body)]
        if isinstance(answer, Exception):
            raise answer
        return answer  # type: ignore[no-any-return]

    inbox = world.inbox(identity=identity)
    world.on(inbox, "*", keep)
    batch = [Delivery(str(n).encode(), coordinates=str(n)) for n in range(len(answers))]
    assert world.kinds(inbox, batch) == ["quarantined"] * len(answers)
