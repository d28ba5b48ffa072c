"""Kafka, as far as no broker is needed: settings, and where a partition is read from."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from oncebox.errors import ConfigurationError
from oncebox.sources import KafkaSource, source_of
from oncebox.sources.kafka.settings import parse, settings_of
from oncebox.sources.kafka.starting import Facts, beginning, longest, starting
from oncebox.store.records import Position

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
def test_a_part_without_a_position_begins_where_its_group_stands(
    facts: Facts, reset: str, offset: int
) -> None:
    found = beginning("orders/0", facts, reset=reset)
    assert found is not None
    assert found.next == offset


@pytest.mark.parametrize("committed", [None, 0, 9])
def test_the_position_is_the_truth_whatever_the_group_says(committed: int | None) -> None:
    start = starting(Position("orders/0", 5, "id:0"), Facts(0, 9, committed, "id"))
    assert (start.offset, start.mark, start.prefix, start.complaint) == (5, "id:0", "", None)


def test_another_topic_of_the_same_name_is_read_from_its_beginning() -> None:
    start = starting(Position("orders/0", 5, "id:0"), Facts(2, 9, None, "other"))
    assert (start.offset, start.mark, start.prefix) == (2, "other:1", "1:")
    assert "created anew" in str(start.complaint)
    again = starting(Position("orders/0", 3, "other:1"), Facts(2, 9, None, "other"))
    assert (again.offset, again.mark, again.prefix, again.complaint) == (3, "other:1", "1:", None)


def test_a_broker_that_does_not_know_ids_is_believed() -> None:
    start = starting(Position("orders/0", 5, "id:2"), Facts(0, 9))
    assert (start.offset, start.mark, start.complaint) == (5, "id:2", None)


def test_what_retention_deleted_is_said() -> None:
    start = starting(Position("orders/0", 5, "id:0"), Facts(7, 9, None, "id"))
    assert (start.offset, start.mark) == (7, "id:0")
    assert "retention" in str(start.complaint)


def test_a_log_that_lost_its_end_is_read_again() -> None:
    start = starting(Position("orders/0", 10, "id:0"), Facts(0, 9, None, "id"))
    assert (start.offset, start.mark, start.prefix) == (0, "id:1", "1:")
    assert "absorbs" in str(start.complaint)


def test_a_partition_without_a_leader_is_read_on_or_waited_for() -> None:
    assert starting(Position("orders/0", 5, "id:0"), Facts(topic_id="id")).offset == 5
    assert beginning("orders/0", Facts(), reset="earliest") is None
    known = beginning("orders/0", Facts(committed=3), reset="earliest")
    assert known is not None
    assert known.next == 3


def test_marks_of_transactions_that_retention_deleted_are_no_loss() -> None:
    start = starting(Position("orders/0", 5, "id:0"), Facts(7, 9, 7, "id"))
    assert (start.offset, start.complaint) == (7, None)


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
def test_how_partitions_come_and_go_is_known(url: str, incremental: bool) -> None:
    assert settings(url).is_incremental is incremental


def test_where_the_broker_assigns_no_strategy_is_named() -> None:
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
        ("kafka://a/t?group=g&enable.auto.commit=0", "cannot be set"),
        ("kafka://a/t?group=g&auto.offset.reset=never", "earliest or latest"),
    ],
)
def test_a_wrong_url_is_met_with_a_remedy(url: str, remedy: str) -> None:
    with pytest.raises(ConfigurationError, match=remedy) as caught:
        source_of(url)
    assert "pw" not in str(caught.value)


def test_a_setting_that_librdkafka_does_not_know_is_named() -> None:
    source = KafkaSource("localhost:1", ["t"], group="g", settings={"sesion.timeout.ms": 1})
    with pytest.raises(ConfigurationError, match=r"sesion\.timeout\.ms"):
        source.parts()
    source.close()


# -- how long topics keep messages ----------------------------------------------------------------


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
def test_the_longest_topic_counts(topics: list[dict[str, str]], span: timedelta | None) -> None:
    assert longest(topics) == span
