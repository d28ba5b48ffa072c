"""Kafka with real brokers: after any crash, each message is processed once, in key order."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

import pytest

from brokers.conftest import Deployment, orders, rest
from oncebox import AsyncTransaction, Consumer, Inbox, Json
from oncebox.brokers.urls import source_of
from support.services import wait_until
from support.services.kafka import Kafka

SLOW = pytest.mark.slow
EVERY = pytest.mark.parametrize(
    "protocol",
    ["classic", pytest.param("eager", marks=SLOW), pytest.param("consumer", marks=SLOW)],
    indirect=True,
)


@EVERY
def test_a_topic_is_processed_and_its_offsets_are_committed(deployment: Deployment) -> None:
    deployment.create_topic(4)
    deployment.send(orders(300))
    worker = deployment.start_worker()
    deployment.wait_for(300)
    assert worker.stop() == 0
    deployment.check(orders(300))
    assert sum(deployment.position().values()) == 300
    assert deployment.committed() == deployment.position()


@EVERY
def test_partitions_are_shared_and_released(deployment: Deployment) -> None:
    deployment.create_topic(4)
    one = deployment.start_worker("one")
    deployment.send(orders(100))
    deployment.wait_for(100)
    two = deployment.start_worker("two")
    wait_until(lambda: "reads" in two.log_text(), "the second worker gets nothing")
    deployment.send(orders(300)[100:])
    deployment.wait_for(300)
    readers = {p.owner for p in deployment.inbox.status().partitions}
    assert len(readers) == 2
    assert one.stop() == 0
    deployment.send(orders(400)[300:])
    deployment.wait_for(400)
    assert two.stop() == 0
    deployment.check(orders(400))
    # A worker that stops cleanly leaves no suspects.
    assert {p.suspects for p in deployment.inbox.status().partitions} == {0}
    assert deployment.query("SELECT count(*) FROM oncebox_attempt") == [(0,)]


def test_a_crash_between_commit_and_ack_loses_and_repeats_nothing(deployment: Deployment) -> None:
    deployment.create_topic(1)
    deployment.send(orders(40))
    crashing = deployment.start_worker("crashing", batch=30, crash_before_ack=True)
    crashing.process.wait(60)
    assert len(deployment.effects()) == 30
    assert deployment.committed() == {}
    successor = deployment.start_worker("successor")
    deployment.wait_for(40)
    assert successor.stop() == 0
    deployment.check(orders(40))
    assert deployment.committed() == deployment.position()


@SLOW
def test_messages_that_another_group_reads_again_are_absorbed(deployment: Deployment) -> None:
    """Another group has no position: it reads everything, and every message is a duplicate."""
    deployment.create_topic(2)
    deployment.send(orders(100))
    worker = deployment.start_worker()
    deployment.wait_for(100)
    worker.stop()
    deployment.group += "-again"
    again = deployment.start_worker("again")
    wait_until(lambda: sum(deployment.committed().values()) == 100, "it is not read again")
    again.stop()
    deployment.check(orders(100))
    assert deployment.inbox.status().rates[60].duplicate == 100


@SLOW
def test_a_group_that_is_rewound_changes_nothing(deployment: Deployment) -> None:
    deployment.create_topic(2)
    deployment.send(orders(100))
    worker = deployment.start_worker()
    deployment.wait_for(100)
    worker.stop()
    position = deployment.position()
    deployment.kafka.rewind(deployment.group, deployment.topic)
    assert set(deployment.committed().values()) == {0}
    again = deployment.start_worker("again")
    deployment.send(orders(110)[100:])
    deployment.wait_for(110)
    again.stop()
    deployment.check(orders(110))
    assert sum(deployment.position().values()) == sum(position.values()) + 10
    assert deployment.committed() == deployment.position()


@SLOW
def test_a_worker_that_wakes_after_its_partitions_were_taken_commits_nothing(
    deployment: Deployment,
) -> None:
    deployment.create_topic(1)
    deployment.send(orders(5))
    sleeper = deployment.start_worker("sleeper", pace=0.4)
    wait_until(lambda: bool(deployment.position()), "it does not begin")
    rest(1.0)  # it is in the middle of its batch
    sleeper.send(signal.SIGSTOP)
    assert deployment.effects() == []
    successor = deployment.start_worker("successor")
    deployment.wait_for(5)
    sleeper.send(signal.SIGCONT)
    deployment.send(orders(8)[5:])
    deployment.wait_for(8)
    sleeper.stop()
    successor.stop()
    deployment.check(orders(8))


@SLOW
def test_a_handler_slower_than_the_poll_interval_keeps_its_partition(
    deployment: Deployment,
) -> None:
    deployment.create_topic(1)
    worker = deployment.start_worker(pace=2.2, settings={"max.poll.interval.ms": 1500}, batch=1)
    deployment.send(orders(2, keys=1))
    deployment.wait_for(2)
    assert worker.stop() == 0
    deployment.check(orders(2, keys=1))
    assert "in flight for" in worker.log_text()
    assert "thrown out" not in worker.log_text()
    assert {row[0] for row in deployment.query("SELECT worker FROM effects")} == {"w"}


def test_bad_messages_have_a_clear_outcome(deployment: Deployment) -> None:
    deployment.create_topic(1)
    deployment.kafka.produce(
        deployment.topic,
        [
            (b"k", b'{"no": "id"}', []),
            (b"k", None, []),
            (b"k", b"", []),
            (b"k", b'{"id": "big", "key": "big", "x": "' + b"x" * 900_000 + b'"}', []),
        ],
    )
    deployment.send([("k0", 0)])
    worker = deployment.start_worker()
    deployment.wait_for(1)
    worker.stop()
    found = deployment.query(
        "SELECT message_id, state, reason FROM oncebox_dead_letter ORDER BY id"
    )
    assert [(row[0], row[1]) for row in found] == [
        (None, "quarantined"),
        (None, "quarantined"),
        (None, "quarantined"),
        ("big", "dead"),
    ]
    assert found[3][2] == "too_large"
    assert deployment.query("SELECT payload FROM oncebox_dead_letter ORDER BY id")[1] == (b"null",)
    assert deployment.committed() == {f"{deployment.topic}/0": 5}


def test_handlers_may_be_async(deployment: Deployment) -> None:
    deployment.create_topic(2)
    deployment.send(orders(200))
    inbox = Inbox(
        "async", deployment.database, identity=Json("id", type=lambda _: "order", key="key")
    )

    @inbox.on("order")
    async def write(order: dict[str, Any], tx: AsyncTransaction) -> None:
        await tx.execute("INSERT INTO keys VALUES (:key, :number)", **_place(order))
        await tx.execute(
            "INSERT INTO effects (id, key, number) VALUES (:id, :key, :number)",
            id=order["id"],
            **_place(order),
        )

    consumer = Consumer(inbox, source_of(deployment.url()), batch=50)
    consumer.on_beat = lambda waits: consumer.stop() if len(deployment.effects()) == 200 else None

    async def consume() -> None:
        async with inbox:
            await consumer.arun()

    asyncio.run(consume())
    deployment.check(orders(200))
    assert deployment.committed() == {
        f"{deployment.topic}/{p}": n for p, n in _lengths(deployment).items()
    }


def _place(order: dict[str, Any]) -> dict[str, Any]:
    return {"key": order["key"], "number": order["number"]}


def _lengths(deployment: Deployment) -> dict[int, int]:
    """Return how many messages of each partition were read."""
    rows = deployment.query("SELECT partition, next FROM oncebox_position")
    return {int(partition.rpartition("/")[2]): next_ for partition, next_ in rows}


@SLOW
def test_a_topic_that_was_created_again_is_read_from_its_beginning(deployment: Deployment) -> None:
    deployment.create_topic(1)
    deployment.send(orders(20))
    worker = deployment.start_worker()
    deployment.wait_for(20)
    assert worker.stop() == 0
    deployment.kafka.delete_topic(deployment.topic)
    deployment.kafka.create_topic(1, name=deployment.topic)
    deployment.send(orders(45)[20:])  # more than it had before, and some below the old position
    successor = deployment.start_worker("successor")
    deployment.wait_for(45)
    assert successor.stop() == 0
    deployment.check(orders(45))
    assert "deleted and created again" in successor.log_text()


@SLOW
def test_a_topic_that_is_created_again_while_it_is_read_is_noticed(deployment: Deployment) -> None:
    """Until then, the messages after the old position come first."""
    deployment.create_topic(1)
    sent = orders(45, keys=45)
    deployment.send(sent[:20])
    worker = deployment.start_worker()
    deployment.wait_for(20)
    deployment.kafka.delete_topic(deployment.topic)
    deployment.kafka.create_topic(1, name=deployment.topic)
    deployment.send(sent[20:])
    deployment.wait_for(45)
    assert worker.stop() == 0
    deployment.check(sent)
    assert "deleted and created again" in worker.log_text()


@SLOW
def test_messages_that_retention_deleted_are_logged(deployment: Deployment) -> None:
    deployment.create_topic(1)
    deployment.send(orders(10))
    worker = deployment.start_worker()
    deployment.wait_for(10)
    worker.stop()
    deployment.send(orders(20)[10:])
    deployment.delete_before(15)
    successor = deployment.start_worker("successor")
    wait_until(lambda: deployment.position().get(f"{deployment.topic}/0") == 20, "it is not read")
    successor.stop()
    assert "up to 5 messages were deleted before they were read" in successor.log_text()


@SLOW
def test_a_broker_that_is_away_for_longer_than_the_session(deployment: Deployment) -> None:
    deployment.create_topic(2)
    deployment.send(orders(50))
    worker = deployment.start_worker()
    deployment.wait_for(50)
    deployment.kafka.crash()
    rest(2.5)
    deployment.kafka.restart()
    deployment.send(orders(100)[50:])
    deployment.wait_for(100)
    assert worker.stop() == 0
    deployment.check(orders(100))


@SLOW
def test_messages_of_an_aborted_transaction_are_not_read(deployment: Deployment) -> None:
    deployment.create_topic(1)
    one, two, three = (orders(30, keys=30)[start : start + 10] for start in (0, 10, 20))
    deployment.send_in_transaction(one, commit=True)
    deployment.send_in_transaction(two, commit=False)
    deployment.send_in_transaction(three, commit=True)
    worker = deployment.start_worker()
    deployment.wait_for(20)
    partition = f"{deployment.topic}/0"
    # Transaction markers are at the end, and do not count as lag.
    wait_until(
        lambda: (
            [(p.partition, p.lag) for p in deployment.inbox.status().partitions] == [(partition, 0)]
        ),
        "it lags",
    )
    assert worker.stop() == 0
    # The committed offset includes them: 30 messages and three markers.
    assert deployment.committed() == {partition: 33}
    assert deployment.position() == {partition: 32}


@SLOW
def test_stored_mode_and_topics_by_pattern(deployment: Deployment) -> None:
    deployment.create_topic(2)
    deployment.send(orders(100))
    deployment.topic, topic = "%5E" + deployment.topic[:-4] + ".*", deployment.topic
    worker = deployment.start_worker(mode="stored")
    deployment.topic = topic
    deployment.wait_for(100)
    assert worker.stop() == 0
    deployment.check(orders(100))


@SLOW
def test_an_unknown_topic_is_logged_and_waited_for(deployment: Deployment) -> None:
    deployment.topic = f"late-{deployment.group}"
    worker = deployment.start_worker(settings={"topic.metadata.refresh.interval.ms": 500})
    wait_until(lambda: "nknown topic" in worker.log_text(), "nothing is logged")
    deployment.kafka.create_topic(1, name=deployment.topic)
    deployment.send(orders(10))
    deployment.wait_for(10)
    assert worker.stop() == 0


@SLOW
def test_secrets_are_never_logged(deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONCEBOX_KAFKA_SASL_PASSWORD", "s3cret")
    deployment.create_topic(1)
    settings = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}
    worker = deployment.start_worker(settings={**settings, "sasl.username": "me"})
    wait_until(lambda: len(worker.log_text()) > 0, "nothing is logged")
    rest(1.0)
    worker.stop()
    assert "s3cret" not in worker.log_text()
    assert "s3cret" not in repr(source_of(deployment.url()))


@SLOW
def test_a_crash_of_the_leader_of_a_partition_loses_nothing(
    kafka_cluster: Kafka, postgres_url: str, tmp_path: str
) -> None:
    deployment = Deployment(kafka_cluster, postgres_url, tmp_path, "classic")  # type: ignore[arg-type]
    try:
        deployment.create_topic(1, replicas=3)
        deployment.send(orders(50))
        worker = deployment.start_worker()
        deployment.wait_for(50)
        kafka_cluster.crash(kafka_cluster.leader(deployment.topic))
        deployment.send(orders(100)[50:])
        deployment.wait_for(100)
        assert worker.stop() == 0
        deployment.check(orders(100))
    finally:
        deployment.close()
