"""The Kafka service of the tests works as its docstrings say."""

from contextlib import closing
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import ConfigResource

from support.services import PATIENCE, Unavailable, wait_until
from support.services.kafka import Kafka, start
from support.services.kafka_client import ArchivedMessage, admin, find_topic, talking_to

ONE: ArchivedMessage = (b"invoice", b"1", [("trace", b"abc"), ("empty", None)])
TWO: ArchivedMessage = (None, b"2", [])
THREE: ArchivedMessage = (b"invoice", None, [])

pytestmark = pytest.mark.slow


def consumer(kafka: Kafka, group: str) -> Consumer:
    """A consumer that starts at the first offset and commits on request."""
    return Consumer(
        {
            **talking_to(kafka.bootstrap),
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )


def consume(client: Consumer, count: int) -> list[Message]:
    """The next messages, whenever they come."""
    messages: list[Message] = []

    def enough() -> bool:
        message = client.poll(0.1)
        if message is not None and message.error() is None:
            messages.append(message)
        return len(messages) == count

    wait_until(enough, f"not {count} messages")
    return messages


def read(kafka: Kafka, topic: str, count: int, group: str = "") -> list[bytes | None]:
    """The values of the next messages for a group, which are then committed."""
    with closing(consumer(kafka, group or uuid4().hex)) as client:
        client.subscribe([topic])
        values = [message.value() for message in consume(client, count)]
        client.commit(asynchronous=False)
        return values


def try_to_send(kafka: Kafka, topic: str) -> str:
    """Send one message with a short timeout, and return its result."""
    ends: list[str] = []

    def note(error: KafkaError | None, message: Message) -> None:
        ends.append(error.name() if error else "sent")

    producer = Producer({**talking_to(kafka.bootstrap), "delivery.timeout.ms": 1000})
    producer.produce(topic, b"2", on_delivery=note)
    producer.flush()
    return ends[0]


def setting(kafka: Kafka, topic: str, name: str) -> str | None:
    """A setting of a topic."""
    if kafka.fidelity == "mock":
        pytest.skip("this needs a real broker")
    client, asked = admin(kafka.bootstrap), ConfigResource("topic", topic)
    found: str | None = client.describe_configs([asked])[asked].result(PATIENCE)[name].value
    return found


def forget_kafka(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make this a machine that has nothing."""
    monkeypatch.setenv("PATH", "/nowhere")
    for name in ("ONCEBOX_TEST_KAFKA", "ONCEBOX_TEST_KAFKA_URL", "ONCEBOX_TEST_REQUIRE"):
        monkeypatch.delenv(name, raising=False)


def test_produced_records_are_consumed(kafka: Kafka) -> None:
    topic = kafka.create_topic()
    assert kafka.produce(topic, [ONE, TWO, THREE]) == [(0, 0), (0, 1), (0, 2)]
    with closing(consumer(kafka, uuid4().hex)) as client:
        client.subscribe([topic])
        messages = consume(client, 3)
    assert [(m.key(), m.value(), m.headers() or []) for m in messages] == [ONE, TWO, THREE]


def test_a_partition_can_be_chosen(kafka: Kafka) -> None:
    topic = kafka.create_topic(partitions=3)
    assert kafka.produce(topic, [ONE, ONE], partition=2) == [(2, 0), (2, 1)]
    assert kafka.produce(topic, [ONE], partition=1) == [(1, 0)]


def test_a_record_that_cannot_be_produced_is_an_error(kafka: Kafka) -> None:
    with pytest.raises(KafkaException):
        kafka.produce(kafka.create_topic(), [ONE], partition=7)


def test_the_committed_offsets_of_a_group_are_returned(kafka: Kafka) -> None:
    topic, group = kafka.create_topic(partitions=2), uuid4().hex
    kafka.produce(topic, [ONE, TWO], partition=1)
    assert kafka.committed(group, topic) == {}
    read(kafka, topic, 2, group)
    assert kafka.committed(group, topic) == {1: 2}


def test_a_rewound_group_reads_again(kafka: Kafka) -> None:
    topic, group = kafka.create_topic(partitions=2), uuid4().hex
    kafka.produce(topic, [ONE, TWO], partition=1)
    read(kafka, topic, 2, group)
    kafka.rewind(group, topic)
    assert kafka.committed(group, topic) == {0: 0, 1: 0}
    assert read(kafka, topic, 2, group) == [b"1", b"2"]


def test_a_group_with_members_cannot_be_rewound(kafka: Kafka) -> None:
    topic, group = kafka.create_topic(), uuid4().hex
    kafka.produce(topic, [ONE])
    with closing(consumer(kafka, group)) as client:
        client.subscribe([topic])
        consume(client, 1)
        with pytest.raises(KafkaException):
            kafka.rewind(group, topic)


def test_a_topic_created_again_is_empty_and_has_another_id(kafka: Kafka) -> None:
    topic = kafka.create_topic()
    kafka.produce(topic, [ONE, TWO])
    first = kafka.topic_id(topic)
    kafka.delete_topic(topic)
    assert kafka.create_topic(name=topic) == topic
    assert kafka.topic_id(topic) != first
    assert kafka.produce(topic, [ONE]) == [(0, 0)]


def test_a_topic_gets_its_settings(kafka: Kafka) -> None:
    topic = kafka.create_topic(cleanup_policy="compact", retention_ms=1000)
    assert setting(kafka, topic, "cleanup.policy") == "compact"
    assert setting(kafka, topic, "retention.ms") == "1000"


@pytest.mark.crash
def test_a_crashed_broker_is_down_until_it_is_restarted(kafka: Kafka) -> None:
    topic, bootstrap = kafka.create_topic(), kafka.bootstrap
    kafka.crash()
    assert try_to_send(kafka, topic) == "_MSG_TIMED_OUT"
    kafka.restart()
    assert kafka.bootstrap == bootstrap
    assert kafka.produce(topic, [ONE]) == [(0, 0)]


@pytest.mark.crash
def test_a_crash_keeps_acknowledged_records(kafka: Kafka) -> None:
    topic, group = kafka.create_topic(), uuid4().hex
    kafka.produce(topic, [ONE, TWO])
    read(kafka, topic, 1, group)
    kafka.crash()
    kafka.restart()
    assert kafka.committed(group, topic) == {0: 1}
    assert kafka.produce(topic, [ONE]) == [(0, 2)]
    assert read(kafka, topic, 3) == [b"1", b"2", b"1"]


@pytest.mark.crash
def test_a_running_broker_is_restarted_with_its_data(kafka: Kafka) -> None:
    topic = kafka.create_topic()
    kafka.produce(topic, [ONE])
    kafka.restart()
    assert read(kafka, topic, 1) == [b"1"]


@pytest.mark.crash
def test_a_paused_broker_responds_after_it_is_resumed(kafka: Kafka) -> None:
    topic = kafka.create_topic()
    kafka.pause()
    assert try_to_send(kafka, topic) == "_MSG_TIMED_OUT"
    kafka.resume()
    assert kafka.produce(topic, [ONE]) == [(0, 0)]


@pytest.mark.crash
def test_healing_brings_back_a_broker_that_a_failed_test_left_down(kafka: Kafka) -> None:
    topic = kafka.create_topic()
    kafka.crash()
    kafka.heal()
    assert kafka.produce(topic, [ONE]) == [(0, 0)]
    kafka.pause()
    kafka.heal()
    assert kafka.produce(topic, [ONE]) == [(0, 1)]


@pytest.mark.crash
def test_a_cluster_loses_its_leader_and_nothing_else(kafka_cluster: Kafka) -> None:
    topic = kafka_cluster.create_topic()
    kafka_cluster.produce(topic, [ONE, TWO])
    leader = kafka_cluster.leader(topic)
    kafka_cluster.crash(leader)
    assert kafka_cluster.produce(topic, [ONE]) == [(0, 2)]
    assert kafka_cluster.leader(topic) != leader
    assert read(kafka_cluster, topic, 3) == [b"1", b"2", b"1"]


def test_a_cluster_keeps_three_copies_and_writes_two_before_it_acknowledges(
    kafka_cluster: Kafka,
) -> None:
    topic = kafka_cluster.create_topic()
    found = find_topic(kafka_cluster.bootstrap, topic)
    assert found is not None
    assert sorted(found.partitions[0].replicas) == [1, 2, 3]
    assert setting(kafka_cluster, topic, "min.insync.replicas") == "2"


def test_borrowed_brokers_are_not_stopped(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONCEBOX_TEST_KAFKA_URL", kafka.bootstrap)
    lent = start()
    with pytest.raises(pytest.skip.Exception, match="ours to break"):
        lent.crash()
    lent.stop()
    assert kafka.produce(kafka.create_topic(), [ONE]) == [(0, 0)]


def test_without_java_there_is_a_mock(monkeypatch: pytest.MonkeyPatch) -> None:
    forget_kafka(monkeypatch)
    mock = start()
    assert mock.fidelity == "mock"
    assert "install java" in mock.origin
    assert mock.produce(mock.create_topic(), [ONE]) == [(0, 0)]
    mock.stop()


def test_the_mock_is_refused_where_kafka_is_required(monkeypatch: pytest.MonkeyPatch) -> None:
    forget_kafka(monkeypatch)
    monkeypatch.setenv("ONCEBOX_TEST_REQUIRE", "postgres,kafka")
    with pytest.raises(Unavailable, match="install java"):
        start()
