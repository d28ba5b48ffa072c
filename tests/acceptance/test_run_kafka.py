"""oncebox run on Kafka: what an operator sees while the broker is away."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from oncebox.cli.commands import UNHEALTHY
from support.services import free_port, wait_until
from support.services.kafka import Kafka

from .conftest import Command, query
from .processes import complaints, is_ready, workers

pytestmark = [pytest.mark.usefixtures("ready"), pytest.mark.crash]

QUICK = "session.timeout.ms=1500&heartbeat.interval.ms=300&reconnect.backoff.max.ms=500"


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def run(start: Callable[..., Any], port: int) -> Iterator[Callable[..., Any]]:
    """Start a worker on a topic; it is ended with the test."""
    started: list[Any] = []

    def run(bootstrap: str, topic: str, settings: str = "") -> Any:
        url = f"kafka://{bootstrap}/{topic}?group=billing-{topic}&{QUICK}{settings}"
        command = ["run", "billing:inbox", "--from", url, "--health", str(port)]
        started.append(start(*command))
        return started[-1]

    yield run
    for process in started:
        process.terminate()
        process.communicate(timeout=60)


def test_messages_that_were_gone_before_they_were_read_are_shown(
    oncebox: Command, database: str
) -> None:
    now = "now()" if database.startswith("postgresql") else "1"
    query(
        database,
        "INSERT INTO oncebox_position (consumer, source, partition, next, lag, skipped, "
        "skipped_at, "
        f"skipped_why, moved_at) VALUES ('billing', 'kafka:g', 'orders/0', 9, 3, 1829, {now}, "
        f"'deleted by the broker before they were read', {now})",
    )
    status = oncebox("status", "billing:inbox", "--check")
    assert status.returncode == 0
    assert "skipped  up to 1,829 messages of orders/0" in status.stdout
    assert re.search(
        r"^source +partition +position +acked +lag +reader", status.stdout, re.MULTILINE
    )
    assert " 3 unread " in status.stdout


WAITS = ["consumer 1 waits for the source"]


SASL = "&security.protocol=SASL_PLAINTEXT&sasl.mechanism=PLAIN"


@pytest.mark.parametrize("settings", ["", pytest.param(SASL, marks=pytest.mark.slow)])
def test_a_broker_that_never_answers_is_seen(
    run: Callable[..., Any],
    oncebox: Command,
    database: str,
    port: int,
    kafka: Kafka,
    settings: str,
    environment: dict[str, str],
) -> None:
    """Nothing listens there; or a broker does not take the password."""
    environment |= {"ONCEBOX_KAFKA_SASL_USERNAME": "me", "ONCEBOX_KAFKA_SASL_PASSWORD": "wrong"}
    bootstrap = kafka.bootstrap if settings else f"127.0.0.1:{free_port()}"
    process = run(bootstrap, f"orders-{port}", settings)
    wait_until(lambda: bool(workers(port)), "it does not begin")
    wait_until(lambda: complaints(port) == WAITS, "it stays ready")
    assert workers(port), "it is alive"
    status = oncebox("status", "billing:inbox", "--check")
    assert status.returncode == UNHEALTHY
    assert "no broker has answered for" in status.stdout
    assert "wrong" not in status.stdout
    process.terminate()
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert "cannot read kafka:" in err
    assert "wrong" not in err
    assert query(database, "SELECT count(*) FROM oncebox_outage") == [(0,)]
    assert oncebox("status", "billing:inbox", "--check").returncode == 0


@pytest.mark.slow
def test_a_broker_that_dies_is_seen_and_so_is_its_return(
    run: Callable[..., Any], oncebox: Command, database: str, port: int, kafka: Kafka
) -> None:
    topic = kafka.create_topic(1)
    run(kafka.bootstrap, topic)
    wait_until(lambda: is_ready(port), "it does not get ready")
    wait_until(lambda: bool(query(database, "SELECT 1 FROM oncebox_position")), "nothing is read")
    kafka.crash()
    wait_until(lambda: complaints(port) == WAITS, "it stays ready")
    status = oncebox("status", "billing:inbox", "--check")
    assert status.returncode == UNHEALTHY
    assert "outage " in status.stdout
    kafka.restart()
    wait_until(lambda: is_ready(port), "it does not get ready again")
    wait_until(
        lambda: oncebox("status", "billing:inbox", "--check").returncode == 0, "it stays unhealthy"
    )
