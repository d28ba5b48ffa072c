"""Kafka with real brokers: whatever dies, every effect is there once, in the order of its key."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

import pytest

from broker.conftest import Shop, orders, rest
from oncebox import AsyncTransaction, Consumer, Inbox, Json
from oncebox.sources import source_of
from services import wait_until
from services.kafka import Kafka

SLOW = pytest.mark.slow
EVERY = pytest.mark.parametrize(
    "protocol",
    ["classic", pytest.param("eager", marks=SLOW), pytest.param("consumer", marks=SLOW)],
    indirect=True,
)


@EVERY
def test_a_topic_goes_through_and_kafka_is_told(shop: Shop) -> None:
    shop.open(4)
    shop.send(orders(300))
    worker = shop.hire()
    shop.wait_for(300)
    assert worker.stop() == 0
    shop.check(orders(300))
    assert sum(shop.position().values()) == 300
    assert shop.settled() == shop.position()


@EVERY
def test_partitions_are_shared_and_given_back(shop: Shop) -> None:
    shop.open(4)
    one = shop.hire("one")
    shop.send(orders(100))
    shop.wait_for(100)
    two = shop.hire("two")
    wait_until(lambda: "reads" in two.said(), "the second worker gets nothing")
    shop.send(orders(300)[100:])
    shop.wait_for(300)
    readers = {p.owner for p in shop.inbox.look.status().parts}
    assert len(readers) == 2
    assert one.stop() == 0
    shop.send(orders(400)[300:])
    shop.wait_for(400)
    assert two.stop() == 0
    shop.check(orders(400))
    # Whoever goes in peace leaves no suspects.
    assert {p.suspects for p in shop.inbox.look.status().parts} == {0}
    assert shop.query("SELECT count(*) FROM oncebox_attempt") == [(0,)]


def test_killed_after_the_commit_before_kafka_is_told(shop: Shop) -> None:
    shop.open(1)
    shop.send(orders(40))
    doomed = shop.hire("doomed", batch=30, die_before_settling=True)
    doomed.process.wait(60)
    assert len(shop.effects()) == 30
    assert shop.settled() == {}
    heir = shop.hire("heir")
    shop.wait_for(40)
    assert heir.stop() == 0
    shop.check(orders(40))
    assert shop.settled() == shop.position()


@SLOW
def test_what_comes_again_from_another_group_is_absorbed(shop: Shop) -> None:
    """Another group has no position: it reads everything, and nothing happens."""
    shop.open(2)
    shop.send(orders(100))
    worker = shop.hire()
    shop.wait_for(100)
    worker.stop()
    shop.group += "-again"
    again = shop.hire("again")
    wait_until(lambda: sum(shop.settled().values()) == 100, "it is not read again")
    again.stop()
    shop.check(orders(100))
    assert shop.inbox.look.status().rates[60].duplicate == 100


def test_a_group_that_is_rewound_changes_nothing(shop: Shop) -> None:
    shop.open(2)
    shop.send(orders(100))
    worker = shop.hire()
    shop.wait_for(100)
    worker.stop()
    position = shop.position()
    shop.kafka.rewind(shop.group, shop.topic)
    assert set(shop.settled().values()) == {0}
    again = shop.hire("again")
    shop.send(orders(110)[100:])
    shop.wait_for(110)
    again.stop()
    shop.check(orders(110))
    assert sum(shop.position().values()) == sum(position.values()) + 10
    assert shop.settled() == shop.position()


def test_a_worker_that_wakes_after_its_partitions_were_taken_commits_nothing(shop: Shop) -> None:
    shop.open(1)
    shop.send(orders(5))
    sleeper = shop.hire("sleeper", pace=0.4)
    wait_until(lambda: bool(shop.position()), "it does not begin")
    rest(1.0)  # it is in the middle of its batch
    sleeper.send(signal.SIGSTOP)
    assert shop.effects() == []
    heir = shop.hire("heir")
    shop.wait_for(5)
    sleeper.send(signal.SIGCONT)
    shop.send(orders(8)[5:])
    shop.wait_for(8)
    sleeper.stop()
    heir.stop()
    shop.check(orders(8))


@SLOW
def test_a_handler_slower_than_the_poll_interval_keeps_its_partition(shop: Shop) -> None:
    shop.open(1)
    worker = shop.hire(pace=2.2, settings={"max.poll.interval.ms": 1500}, batch=1)
    shop.send(orders(2, keys=1))
    shop.wait_for(2)
    assert worker.stop() == 0
    shop.check(orders(2, keys=1))
    assert "in hands for" in worker.said()
    assert "thrown out" not in worker.said()
    assert {row[0] for row in shop.query("SELECT worker FROM effects")} == {"w"}


def test_bad_messages_have_a_clear_outcome(shop: Shop) -> None:
    shop.open(1)
    shop.kafka.produce(
        shop.topic,
        [
            (b"k", b'{"no": "id"}', []),
            (b"k", None, []),
            (b"k", b"", []),
            (b"k", b'{"id": "big", "key": "big", "x": "' + b"x" * 900_000 + b'"}', []),
        ],
    )
    shop.send([("k0", 0)])
    worker = shop.hire()
    shop.wait_for(1)
    worker.stop()
    found = shop.query("SELECT message_id, state, reason FROM oncebox_dead ORDER BY id")
    assert [(row[0], row[1]) for row in found] == [
        (None, "quarantined"),
        (None, "quarantined"),
        (None, "quarantined"),
        ("big", "dead"),
    ]
    assert found[3][2] == "too large"
    assert shop.query("SELECT payload FROM oncebox_dead ORDER BY id")[1] == (b"null",)
    assert shop.settled() == {f"{shop.topic}/0": 5}


def test_handlers_may_be_async(shop: Shop) -> None:
    shop.open(2)
    shop.send(orders(200))
    inbox = Inbox("async", shop.database, identity=Json("id", type=lambda _: "order", key="key"))

    @inbox.on("order")
    async def write(order: dict[str, Any], tx: AsyncTransaction) -> None:
        await tx.execute("INSERT INTO keys VALUES (:key, :number)", **_place(order))
        await tx.execute(
            "INSERT INTO effects (id, key, number) VALUES (:id, :key, :number)",
            id=order["id"],
            **_place(order),
        )

    consumer = Consumer(inbox, source_of(shop.url()), batch=50)
    consumer.on_beat = lambda waits: consumer.stop() if len(shop.effects()) == 200 else None

    async def consume() -> None:
        async with inbox:
            await consumer.arun()

    asyncio.run(consume())
    shop.check(orders(200))
    assert shop.settled() == {f"{shop.topic}/{p}": n for p, n in _lengths(shop).items()}


def _place(order: dict[str, Any]) -> dict[str, Any]:
    return {"key": order["key"], "number": order["number"]}


def _lengths(shop: Shop) -> dict[int, int]:
    """How many messages of the topic were read, by partition."""
    rows = shop.query("SELECT part, next FROM oncebox_position")
    return {int(part.rpartition("/")[2]): next_ for part, next_ in rows}


@SLOW
def test_a_topic_that_was_created_anew_is_read_from_its_beginning(shop: Shop) -> None:
    shop.open(1)
    shop.send(orders(20))
    worker = shop.hire()
    shop.wait_for(20)
    assert worker.stop() == 0
    shop.kafka.delete_topic(shop.topic)
    shop.kafka.create_topic(1, name=shop.topic)
    shop.send(orders(45)[20:])  # more than it had before, and some below the old position
    heir = shop.hire("heir")
    shop.wait_for(45)
    assert heir.stop() == 0
    shop.check(orders(45))
    assert "created anew" in heir.said()


@SLOW
def test_a_topic_that_is_created_anew_under_a_reader_is_noticed(shop: Shop) -> None:
    """Until it is, what is behind the old position comes first."""
    shop.open(1)
    sent = orders(45, keys=45)
    shop.send(sent[:20])
    worker = shop.hire()
    shop.wait_for(20)
    shop.kafka.delete_topic(shop.topic)
    shop.kafka.create_topic(1, name=shop.topic)
    shop.send(sent[20:])
    shop.wait_for(45)
    assert worker.stop() == 0
    shop.check(sent)
    assert "created anew" in worker.said()


@SLOW
def test_what_retention_deleted_is_said(shop: Shop) -> None:
    shop.open(1)
    shop.send(orders(10))
    worker = shop.hire()
    shop.wait_for(10)
    worker.stop()
    shop.send(orders(20)[10:])
    shop.delete_before(15)
    heir = shop.hire("heir")
    wait_until(lambda: shop.position().get(f"{shop.topic}/0") == 20, "it is not read")
    heir.stop()
    assert "deleted by the topic's retention" in heir.said()


@SLOW
def test_a_broker_that_is_away_for_longer_than_the_session(shop: Shop) -> None:
    shop.open(2)
    shop.send(orders(50))
    worker = shop.hire()
    shop.wait_for(50)
    shop.kafka.crash()
    rest(2.5)
    shop.kafka.restart()
    shop.send(orders(100)[50:])
    shop.wait_for(100)
    assert worker.stop() == 0
    shop.check(orders(100))


@SLOW
def test_a_transaction_that_is_aborted_was_never_there(shop: Shop) -> None:
    shop.open(1)
    one, two, three = (orders(30, keys=30)[start : start + 10] for start in (0, 10, 20))
    shop.send_in_transaction(one, commit=True)
    shop.send_in_transaction(two, commit=False)
    shop.send_in_transaction(three, commit=True)
    worker = shop.hire()
    shop.wait_for(20)
    part = f"{shop.topic}/0"
    # The marks of transactions are at the end, and are no lag.
    wait_until(
        lambda: [(p.part, p.lag) for p in shop.inbox.look.status().parts] == [(part, 0)], "it lags"
    )
    assert worker.stop() == 0
    # Kafka is told that they are handled too: 30 messages, three of the marks.
    assert shop.settled() == {part: 33}
    assert shop.position() == {part: 32}


@SLOW
def test_stored_mode_and_topics_by_pattern(shop: Shop) -> None:
    shop.open(2)
    shop.send(orders(100))
    shop.topic, topic = "%5E" + shop.topic[:-4] + ".*", shop.topic
    worker = shop.hire(mode="stored")
    shop.topic = topic
    shop.wait_for(100)
    assert worker.stop() == 0
    shop.check(orders(100))


@SLOW
def test_an_unknown_topic_is_said_and_waited_for(shop: Shop) -> None:
    shop.topic = f"late-{shop.group}"
    worker = shop.hire(settings={"topic.metadata.refresh.interval.ms": 500})
    wait_until(lambda: "nknown topic" in worker.said(), "nothing is said")
    shop.kafka.create_topic(1, name=shop.topic)
    shop.send(orders(10))
    shop.wait_for(10)
    assert worker.stop() == 0


@SLOW
def test_secrets_are_never_told(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONCEBOX_KAFKA_SASL_PASSWORD", "s3cret")
    shop.open(1)
    settings = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}
    worker = shop.hire(settings={**settings, "sasl.username": "me"})
    wait_until(lambda: len(worker.said()) > 0, "nothing is said")
    rest(1.0)
    worker.stop()
    assert "s3cret" not in worker.said()
    assert "s3cret" not in repr(source_of(shop.url()))


@SLOW
def test_the_leader_of_a_partition_is_killed(
    kafka_cluster: Kafka, postgres_url: str, tmp_path: str
) -> None:
    shop = Shop(kafka_cluster, postgres_url, tmp_path, "classic")  # type: ignore[arg-type]
    try:
        shop.open(1, replicas=3)
        shop.send(orders(50))
        worker = shop.hire()
        shop.wait_for(50)
        kafka_cluster.crash(kafka_cluster.leader(shop.topic))
        shop.send(orders(100)[50:])
        shop.wait_for(100)
        assert worker.stop() == 0
        shop.check(orders(100))
    finally:
        shop.close()
