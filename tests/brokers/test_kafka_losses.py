"""Losses of a database or a broker: messages are read again, or reported as lost."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import TopicPartition

from brokers.conftest import Deployment, orders
from support.services import wait_until
from support.services.kafka import Kafka
from support.services.kafka_client import outsider, raise_for_error

SLOW = pytest.mark.slow


def commit_as_another_program(deployment: Deployment, offset: int) -> None:
    with outsider(deployment.kafka.bootstrap, deployment.group) as client:
        at = [TopicPartition(deployment.topic, 0, offset)]
        raise_for_error(client.commit(offsets=at, asynchronous=False))


@pytest.mark.slow
@pytest.mark.parametrize(
    "protocol", ["classic", pytest.param("consumer", marks=SLOW)], indirect=True
)
def test_a_database_restored_to_before_the_first_position_reads_everything_again(
    deployment: Deployment,
) -> None:
    deployment.create_topic(2)
    deployment.send(orders(100))
    worker = deployment.start_worker()
    deployment.wait_for(100)
    assert worker.stop() == 0
    assert sum(deployment.committed().values()) == 100
    deployment.lose_database()
    successor = deployment.start_worker("successor")
    deployment.wait_for(100)
    assert successor.stop() == 0
    deployment.check(orders(100))
    assert (
        successor.log_text().count("the database has no position: it was restored or replaced") == 2
    )


@pytest.mark.slow
def test_an_offset_that_another_program_committed_is_adopted_and_logged(
    deployment: Deployment,
) -> None:
    """The earlier messages are not read either if the database loses the position."""
    deployment.create_topic(1)
    sent = orders(30, keys=30)
    deployment.send(sent)
    commit_as_another_program(deployment, 10)
    worker = deployment.start_worker()
    deployment.wait_for(20)
    assert worker.stop() == 0
    assert "reading it from offset 10 (the group committed this offset)" in worker.log_text()
    deployment.check(sent[10:])
    deployment.lose_database()
    successor = deployment.start_worker("successor")
    deployment.wait_for(20)
    assert successor.stop() == 0
    deployment.check(sent[10:])


def test_messages_that_retention_deleted_before_a_restored_database_are_reported(
    deployment: Deployment,
) -> None:
    deployment.create_topic(1)
    sent = orders(60, keys=60)
    deployment.send(sent)
    worker = deployment.start_worker()
    deployment.wait_for(60)
    assert worker.stop() == 0
    deployment.lose_database()
    deployment.execute(
        "INSERT INTO oncebox_position (consumer, source, partition, next) "
        f"VALUES ('billing', 'kafka:{deployment.group}', '{deployment.topic}/0', 20)"
    )
    deployment.delete_before(45)
    successor = deployment.start_worker("successor")
    deployment.wait_for(15)
    assert successor.stop() == 0
    assert deployment.effects() == sorted(f"{key}-{number}" for key, number in sent[45:])
    assert "up to 25 messages were deleted before they were read" in successor.log_text()
    (partition,) = deployment.inbox.status().partitions
    assert (partition.next, partition.skipped) == (60, 25)
    assert partition.skipped_at is not None
    assert partition.skipped_why == "deleted by the broker before they were read"
    again = deployment.start_worker("again")
    deployment.send([("more", 0)])
    deployment.wait_for(16)
    assert again.stop() == 0
    assert "messages were deleted" not in again.log_text()
    (partition,) = deployment.inbox.status().partitions
    assert (partition.next, partition.skipped) == (61, 25)


@SLOW
def test_a_gap_is_reported_though_no_message_follows_it(deployment: Deployment) -> None:
    deployment.create_topic(1)
    deployment.send(orders(10))
    worker = deployment.start_worker()
    deployment.wait_for(10)
    assert worker.stop() == 0
    deployment.send(orders(20)[10:])
    deployment.delete_before(20)
    successor = deployment.start_worker("successor")
    partition = f"{deployment.topic}/0"
    wait_until(lambda: deployment.position() == {partition: 20}, "the position stays behind")
    wait_until(lambda: deployment.committed() == {partition: 20}, "the offset is not committed")
    assert successor.stop() == 0
    (found,) = deployment.inbox.status().partitions
    assert found.skipped == 10


@SLOW
def test_markers_of_transactions_that_retention_deleted_are_not_reported(
    deployment: Deployment,
) -> None:
    deployment.create_topic(1)
    deployment.send_in_transaction(orders(10), commit=True)
    worker = deployment.start_worker()
    deployment.wait_for(10)
    partition = f"{deployment.topic}/0"
    wait_until(
        lambda: deployment.committed() == {partition: 11},
        "the offset after the marker is not committed",
    )
    assert worker.stop() == 0
    assert deployment.position() == {partition: 10}
    deployment.delete_before(11)
    successor = deployment.start_worker("successor")
    deployment.send(orders(20)[10:])
    deployment.wait_for(20)
    assert successor.stop() == 0
    (found,) = deployment.inbox.status().partitions
    assert found.skipped == 0
    assert "messages were deleted" not in successor.log_text()


@SLOW
@pytest.mark.crash
def test_a_truncated_log_that_grew_again_is_read_from_the_truncation(
    kafka_cluster: Kafka, postgres_url: str, tmp_path: Path
) -> None:
    """A follower that missed messages becomes the leader; the log is longer than before."""
    deployment = Deployment(kafka_cluster, postgres_url, tmp_path, "classic")
    try:
        deployment.create_topic(
            1, replicas=2, unclean_leader_election_enable="true", min_insync_replicas=1
        )
        old, new = kafka_cluster.leader(deployment.topic), kafka_cluster.follower(deployment.topic)
        sent = orders(230, keys=230)
        deployment.send(sent[:50])
        kafka_cluster.crash(new)
        deployment.send(sent[50:100])
        worker = deployment.start_worker()
        deployment.wait_for(100)
        assert worker.stop() == 0
        kafka_cluster.crash(old)
        kafka_cluster.restart(new)
        wait_until(lambda: kafka_cluster.leader(deployment.topic) == new, "no leader is elected")
        deployment.send(sent[100:230])
        successor = deployment.start_worker("successor")
        deployment.wait_for(230)
        assert successor.stop() == 0
        deployment.check(sent)
        assert "unclean leader election" in successor.log_text()
        assert deployment.position() == {f"{deployment.topic}/0": 180}
        last = deployment.start_worker("last")  # the log was not truncated again
        deployment.send([("more", 0)])
        deployment.wait_for(231)
        assert last.stop() == 0
        assert "unclean" not in last.log_text()
    finally:
        deployment.close()
