"""Kafka rules that need no broker: settings, start offsets, availability, retention."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import pytest

from oncebox.brokers.kafka import KafkaSource
from oncebox.brokers.kafka.availability import Availability
from oncebox.brokers.kafka.partition import Partition
from oncebox.brokers.kafka.settings import parse, settings_of
from oncebox.brokers.kafka.start_offset import (
    Facts,
    LogId,
    Signature,
    initial_position,
    longest_retention,
    start_at,
)
from oncebox.brokers.urls import source_of
from oncebox.errors import ConfigurationError
from oncebox.model.position import Position

# -- where a partition is read from ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("facts", "reset", "offset"),
    [
        (Facts(3, 9), "earliest", 3),
        (Facts(3, 9), "latest", 9),
        (Facts(3, 9, committed=5), "earliest", 5),
        (Facts(3, 9, committed=5), "latest", 5),
        (Facts(0, 9, committed=0), "latest", 0),
    ],
)
def test_a_partition_without_a_position_begins_where_another_program_left_it(
    facts: Facts, reset: str, offset: int
) -> None:
    found = initial_position("orders/0", facts, reset=reset)
    assert found is not None
    assert (found.position.next, found.is_loss) == (offset, False)
    assert LogId.of(found.position.log_id).first_offset == offset


@pytest.mark.parametrize("reset", ["earliest", "latest"])
def test_an_offset_of_our_own_without_a_position_means_that_the_database_lost_it(
    reset: str,
) -> None:
    """It is read again from where it was first read, and not from an earlier offset."""
    facts = Facts(0, 1000, 900, Signature(version=1, next=899, first_offset=100), "id")
    found = initial_position("orders/0", facts, reset=reset)
    assert found is not None
    assert (found.position.next, found.is_loss) == (100, True)
    assert LogId.of(found.position.log_id) == LogId("id", version=1, first_offset=100)
    assert "restored or replaced" in found.why


def test_messages_that_retention_deleted_after_a_lost_position_are_counted() -> None:
    facts = Facts(400, 1000, 900, Signature(version=0, next=900, first_offset=100), "id")
    found = initial_position("orders/0", facts, reset="earliest")
    assert found is not None
    assert start_at(found.position, facts).skipped == 300


@pytest.mark.parametrize("committed", [None, 0, 9])
@pytest.mark.parametrize("signature", [None, Signature(0, 9, 0)])
def test_the_position_decides_and_not_the_offset_of_the_group(
    committed: int | None, signature: Signature | None
) -> None:
    position = Position("orders/0", 5, "id:0:3:1")
    start = start_at(position, Facts(0, 9, committed, signature, "id"))
    assert (start.offset, start.warning, start.skipped) == (5, None, 0)
    assert start.log_id == LogId("id", version=0, epoch=3, first_offset=1)


def test_another_topic_of_the_same_name_is_read_from_its_beginning() -> None:
    start = start_at(Position("orders/0", 5, "id:0:7:4"), Facts(2, 9, topic_id="other"))
    assert (start.offset, start.log_id) == (2, LogId("other", version=1))
    assert start.log_id.coordinates_prefix == "1:"
    assert start.skipped == 2, "retention deleted two messages of the new topic"
    assert "created again" in str(start.warning)
    again = start_at(Position("orders/0", 3, str(start.log_id)), Facts(2, 9, topic_id="other"))
    assert (again.offset, again.log_id, again.warning) == (3, start.log_id, None)


def test_a_broker_without_topic_ids_is_trusted() -> None:
    start = start_at(Position("orders/0", 5, "id:2"), Facts(0, 9))
    assert (start.offset, start.log_id, start.warning) == (5, LogId("id", version=2), None)


@pytest.mark.parametrize(
    ("committed", "signature"),
    [
        (None, None),
        (7, None),  # another program skipped ahead
        (7, Signature(version=0, next=6, first_offset=0)),  # the database was restored
        (
            6,
            Signature(version=0, next=5, first_offset=0),
        ),  # one more offset may have been a message
        (7, Signature(version=1, next=5, first_offset=0)),  # of another log
    ],
)
def test_messages_that_may_have_been_deleted_unread_are_counted(
    committed: int | None, signature: Signature | None
) -> None:
    start = start_at(Position("orders/0", 5, "id:0:3:0"), Facts(7, 9, committed, signature, "id"))
    assert (start.offset, start.skipped) == (7, 2)
    assert start.log_id.epoch is None, "no message before the new position was read"


@pytest.mark.parametrize("next_", [4, 5])
def test_transaction_markers_that_retention_deleted_are_not_a_loss(next_: int) -> None:
    facts = Facts(7, 9, 7, Signature(version=0, next=next_, first_offset=0), "id")
    start = start_at(Position("orders/0", 5, "id:0"), facts)
    assert (start.offset, start.skipped, start.warning) == (7, 0, None)


def test_a_truncated_log_is_read_again_from_the_truncation() -> None:
    start = start_at(
        Position("orders/0", 10, "id:0:3:1"), Facts(0, 20, topic_id="id", truncated_at=6)
    )
    assert (start.offset, start.log_id) == (6, LogId("id", version=1, first_offset=1))
    assert start.skipped == 0
    assert "unclean leader election" in str(start.warning)


@pytest.mark.parametrize(("truncated_at", "skipped"), [(6, 2), (-1, 0)])
def test_a_truncated_log_is_read_from_its_beginning_if_that_is_later(
    truncated_at: int, skipped: int
) -> None:
    start = start_at(
        Position("orders/0", 10, "id:0:3"), Facts(8, 20, topic_id="id", truncated_at=truncated_at)
    )
    assert (start.offset, start.log_id.version, start.skipped) == (8, 1, skipped)


def test_a_truncation_after_the_position_does_not_matter() -> None:
    start = start_at(
        Position("orders/0", 10, "id:0:3"), Facts(0, 20, topic_id="id", truncated_at=10)
    )
    assert (start.offset, start.log_id.version) == (10, 0)


@pytest.mark.parametrize(
    ("log_id", "is_refused", "is_read_again"),
    [("id:0", False, True), ("id:0:3", False, False), ("id:0:3", True, True)],
)
def test_a_log_that_lost_its_end_is_read_again(
    log_id: str, is_refused: bool, is_read_again: bool
) -> None:
    """Where the leader epoch is known, the broker has to refuse the position first."""
    facts = Facts(0, 9, topic_id="id", is_refused=is_refused)
    start = start_at(Position("orders/0", 10, log_id), facts)
    assert (start.offset, start.log_id.version) == ((0, 1) if is_read_again else (10, 0))
    assert ("absorbs" in str(start.warning)) is is_read_again


def test_a_partition_without_a_leader_is_read_on_or_waited_for() -> None:
    assert start_at(Position("orders/0", 5, "id:0"), Facts(topic_id="id")).offset == 5
    assert initial_position("orders/0", Facts(), reset="earliest") is None
    known = initial_position("orders/0", Facts(committed=3), reset="earliest")
    assert known is not None
    assert known.position.next == 3


@pytest.mark.parametrize(
    "log_id",
    [LogId(), LogId("id"), LogId("id", 2, 0, 5), LogId(None, 1, None, 7), LogId("id", 0, 12)],
)
def test_a_log_id_survives_being_stored(log_id: LogId) -> None:
    assert LogId.of(str(log_id)) == log_id


@pytest.mark.parametrize("metadata", [None, "", "spring", "oncebox", "oncebox x 1 2", "a 0 1 2"])
def test_metadata_of_other_programs_is_not_a_signature(metadata: str | None) -> None:
    assert Signature.of(metadata) is None
    assert Signature.of(str(Signature(1, 2, 3))) == Signature(1, 2, 3)


def test_metadata_that_is_not_text_is_not_a_signature() -> None:
    from oncebox.brokers.kafka.admin import _committed

    class Foreign:
        offset = 5

        @property
        def metadata(self) -> str:
            return b"\xff".decode()

    assert _committed(Foreign()) == (5, None)  # type: ignore[arg-type]


# -- availability ---------------------------------------------------------------------------------


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that only the test moves."""
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def test_a_source_is_in_trouble_when_brokers_are_silent_for_too_long(clock: list[float]) -> None:
    availability = Availability(timeout=10)
    availability.failed("connection refused")
    clock[0] += 9
    assert availability.trouble([]) is None
    clock[0] += 2
    assert availability.trouble([]) == "no broker has answered for 11 s (connection refused)"
    availability.answered()
    assert availability.trouble([]) is None


def test_a_source_is_in_trouble_when_the_leader_of_a_partition_is_silent(
    clock: list[float],
) -> None:
    availability, partitions = (
        Availability(timeout=10),
        [Partition("orders", 0), Partition("orders", 1)],
    )
    clock[0] += 11
    availability.answered()
    partitions[1].measured_at = clock[0]
    assert availability.trouble(partitions) == "no leader answers for orders/0"


def test_a_source_is_in_trouble_until_brokers_let_it_read(clock: list[float]) -> None:
    availability = Availability(timeout=10)
    availability.refused("group authorization failed")
    assert availability.trouble([]) == "group authorization failed"
    assert availability.admitted()
    assert availability.trouble([]) is None


# -- settings -------------------------------------------------------------------------------------


def settings(url: str) -> Any:
    return settings_of(*parse(url))


def test_a_url_names_servers_topics_group_and_settings() -> None:
    made = settings("kafka://a:1,b:2/orders,%5Eshop%5C..*?group=billing&session.timeout.ms=6000")
    assert made.servers == "a:1,b:2"
    assert made.topics == ("orders", r"^shop\..*")
    assert made.client["group.id"] == "billing"
    assert made.client["session.timeout.ms"] == "6000"
    assert made.client["enable.auto.offset.store"] is False


@pytest.mark.parametrize(
    ("url", "incremental"),
    [
        ("kafka://a/t?group=g", True),
        ("kafka://a/t?group=g&partition.assignment.strategy=range,roundrobin", False),
        ("kafka://a/t?group=g&group.protocol=consumer", True),
    ],
)
def test_incremental_rebalances_are_recognised(url: str, incremental: bool) -> None:
    assert settings(url).is_incremental is incremental


def test_where_the_broker_assigns_no_strategy_is_set() -> None:
    made = settings("kafka://a/t?group=g&group.protocol=consumer")
    assert not {"partition.assignment.strategy", "session.timeout.ms"} & made.client.keys()


def test_secrets_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONCEBOX_KAFKA_SASL_PASSWORD", "s3cret")
    made = settings("kafka://a/t?group=g&sasl.username=me")
    assert made.client["sasl.password"] == "s3cret"
    assert made.connection["sasl.password"] == "s3cret"
    assert "group.id" not in made.connection


@pytest.mark.parametrize(
    ("url", "remedy"),
    [
        ("kafka:///orders?group=g", "needs a server"),
        ("kafka://a?group=g", "needs a topic"),
        ("kafka://a/orders,?group=g", "needs a topic"),
        ("kafka://a/orders", "needs a group"),
        ("kafka://me:pw@a/orders?group=g", "ONCEBOX_KAFKA_SASL_PASSWORD"),
        ("kafka://a/t?group=g&sasl.password=x", "ONCEBOX_KAFKA_SASL_PASSWORD"),
        (
            "kafka://a/t?group=g&sasl.oauthbearer.config=x",
            "ONCEBOX_KAFKA_SASL_OAUTHBEARER_CONFIG",
        ),
        ("kafka://a/t?group=g&enable.auto.commit=0", "cannot be set"),
        ("kafka://a/t?group=g&auto.offset.reset=never", "earliest or latest"),
    ],
)
def test_the_error_for_a_wrong_url_names_a_remedy(url: str, remedy: str) -> None:
    with pytest.raises(ConfigurationError, match=remedy) as caught:
        source_of(url)
    assert "pw" not in str(caught.value)


def test_a_setting_that_librdkafka_does_not_know_is_named() -> None:
    source = KafkaSource("localhost:1", ["t"], group="g", settings={"sesion.timeout.ms": 1})
    with pytest.raises(ConfigurationError, match=r"sesion\.timeout\.ms"):
        source.partitions()
    source.close()


# -- retention of topics --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("topics", "span"),
    [
        ([], None),
        ([{}], None),
        ([{"retention.ms": "86400000"}], timedelta(days=1)),
        ([{"retention.ms": "86400000"}, {}, {"retention.ms": "1000"}], timedelta(days=1)),
        ([{"retention.ms": "-1"}], timedelta.max),
        ([{"retention.ms": "1000", "cleanup.policy": "compact"}], timedelta.max),
        ([{"retention.ms": "1000", "cleanup.policy": "compact,delete"}], timedelta(seconds=1)),
        ([{"retention.ms": str(2**63 - 1)}], timedelta.max),
    ],
)
def test_the_longest_retention_counts(topics: list[dict[str, str]], span: timedelta | None) -> None:
    assert longest_retention(topics) == span
