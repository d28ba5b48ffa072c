"""Clients of Kafka for the tests."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient, TopicMetadata

from support.services import PATIENCE

Headers = Sequence[tuple[str, bytes | None]]
ArchivedMessage = tuple[bytes | None, bytes | None, Headers]


def admin(bootstrap: str) -> AdminClient:
    """A client that asks for things: a new one each time, as none outlives a crash unharmed."""
    return AdminClient(talking_to(bootstrap))


def outsider(bootstrap: str, group: str) -> closing[Consumer]:
    """A consumer that asks about a group without becoming a member.

    An AdminClient could ask as well, but dies of SIGSEGV when the coordinator has moved:
    https://github.com/confluentinc/librdkafka/issues/5040
    """
    return closing(
        Consumer({**talking_to(bootstrap), "group.id": group, "enable.auto.commit": False})
    )


def raise_for_error(partitions: list[TopicPartition]) -> None:
    """Raise what a client tells of some partitions only beside the answer for others."""
    for partition in partitions:
        if partition.error is not None:
            raise KafkaException(partition.error)


def talking_to(bootstrap: str) -> dict[str, Any]:
    """The settings of a client that is quick to come back, and silent about failures."""
    backoff = {"reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 100}
    return {"bootstrap.servers": bootstrap, "log_level": 0, **backoff}


def producing(bootstrap: str) -> dict[str, Any]:
    """The settings of a producer that loses nothing and keeps the order."""
    return {
        **talking_to(bootstrap),
        "acks": "all",
        "max.in.flight": 1,
        "delivery.timeout.ms": int(PATIENCE * 1000),
        "queue.buffering.max.messages": 0,
    }


def place(error: KafkaError | None, message: Message) -> tuple[int, int]:
    """Where a message lies."""
    if error is not None:
        raise KafkaException(error)
    partition, offset = message.partition(), message.offset()
    assert partition is not None
    assert offset is not None
    return partition, offset


def find_topic(bootstrap: str, name: str) -> TopicMetadata | None:
    """What a broker knows of a topic. Asked for by name, some would create it."""
    return admin(bootstrap).list_topics(timeout=PATIENCE).topics.get(name)


def led(topic: TopicMetadata | None) -> bool:
    """True if the topic exists and each of its partitions has a leader."""
    if topic is None or topic.error is not None:
        return False
    return all(partition.leader >= 0 for partition in topic.partitions.values())
