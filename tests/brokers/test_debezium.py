"""The Debezium settings of docs/kafka.md, on a real Kafka Connect."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest

from brokers.conftest import QUICK
from oncebox import Consumer, Debezium, Inbox, Message
from oncebox.brokers.kafka import KafkaSource
from support.services import Unavailable, skip_or_fail
from support.services.debezium import connect, find_jars
from support.services.kafka import Kafka

PAGE = Path(__file__).parents[2] / "docs" / "kafka.md"
ID = "0192f0c4-0000-7000-8000-000000000001"

pytestmark = pytest.mark.slow


@pytest.fixture
def outbox(kafka: Kafka, postgres_url: str) -> Iterator[str]:
    """A database with the outbox table of the page; skipped if Debezium cannot run."""
    try:
        find_jars()
    except Unavailable as reason:
        skip_or_fail("debezium", reason)
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        if connection.execute("SHOW wal_level").fetchone() != ("logical",):
            skip_or_fail("debezium", Unavailable("PostgreSQL runs without wal_level=logical"))
        connection.execute(block("sql"))
        yield postgres_url
        connection.execute("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")
        connection.execute("DROP PUBLICATION dbz_publication")


def block(language: str) -> str:
    """Return the code block in a language from the Debezium section of the page."""
    section = PAGE.read_text().partition("\n### Debezium\n")[2].partition("\n## ")[0]
    found = re.search(rf"```{language}\n(.*?)```", section, re.DOTALL)
    assert found is not None
    return found[1]


def settings(url: str) -> dict[str, str]:
    """Return the connector settings of the page, for the database of the test."""
    lines = [line.partition("=") for line in block("properties").splitlines()]
    at = urlsplit(url)
    return {name: value for name, _, value in lines} | {
        "database.hostname": str(at.hostname),
        "database.port": str(at.port),
        "database.user": "postgres",
        "database.password": "",
        "database.dbname": at.path.strip("/"),
    }


def test_an_event_of_debezium_has_an_id_a_type_and_a_key(
    kafka: Kafka, outbox: str, tmp_path: Path
) -> None:
    topic = kafka.create_topic(1, name="outbox.event.order")
    inbox = Inbox("billing", f"sqlite:///{tmp_path}/inbox.db", identity=Debezium())
    inbox.migrate()
    seen: list[Message] = []

    @inbox.on("*")
    def note(message: Message) -> None:
        seen.append(message)

    source = KafkaSource(kafka.bootstrap, [topic], group=tmp_path.name, settings=QUICK["classic"])
    consumer = Consumer(inbox, source)
    consumer.on_beat = lambda waits: consumer.stop() if seen else None
    with connect(kafka.bootstrap, settings(outbox), tmp_path), inbox:
        with psycopg.connect(outbox) as connection:
            connection.execute(
                "INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload) "
                "VALUES (%s, 'order', 'order-17', 'order.confirmed', %s)",
                (ID, '{"total": 100}'),
            )
        consumer.run()
    (message,) = seen
    assert (message.id, message.type, message.key) == (ID, "order.confirmed", "order-17")
    assert message.payload.replace(b" ", b"") == b'{"total":100}'
