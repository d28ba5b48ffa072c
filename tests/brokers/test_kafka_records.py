"""Records that cannot be converted are quarantined, and the partition is read on."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

import pytest

from brokers.conftest import Deployment, Worker, order, orders
from oncebox import AsyncTransaction, Consumer, Inbox, Message
from oncebox.brokers.urls import source_of
from oncebox.model.identity.rules import Headers
from support.services import wait_until

QUARANTINE = """
SELECT state, reason, payload, source, coordinates, error FROM oncebox_dead_letter ORDER BY id
"""


def test_a_header_name_that_is_not_utf8_quarantines_its_record_and_nothing_else(
    deployment: Deployment,
) -> None:
    """Good records come first, so that the interpreter specialises the call that reads headers."""
    deployment.create_topic(1)
    sent = orders(200, keys=200)
    deployment.send(sent[:100])
    for number in range(3):
        deployment.send_bad_header("bad", number)
    deployment.send(sent[100:150])
    deployment.send_bad_header("bad", 3)
    deployment.send(sent[150:])
    worker = deployment.start_worker()
    deployment.wait_for(200)
    assert worker.stop() == 0
    found = deployment.query(QUARANTINE)
    assert [row[4] for row in found] == ["0/100", "0/101", "0/102", "0/153"]
    state, reason, payload, source, _, error = found[0]
    assert (state, reason, source) == ("quarantined", "missing_id", deployment.topic)
    assert payload == order("bad", 0)[1]
    assert "the name of a header is not UTF-8" in error
    assert f"a delivery from {deployment.topic} at 0/100 is quarantined" in worker.log_text()
    assert deployment.committed() == {f"{deployment.topic}/0": 204}


@pytest.mark.slow
def test_a_record_that_crashes_the_process_when_it_is_converted_is_quarantined(
    deployment: Deployment,
) -> None:
    """The process crashes once with the batch, and three times with the isolated record."""
    deployment.create_topic(2)
    sent = orders(60, keys=60)
    deployment.kafka.produce(deployment.topic, [order(*each) for each in sent[:40]], 0)
    deployment.kafka.produce(deployment.topic, [order("crashing", 0)], 0)
    deployment.kafka.produce(deployment.topic, [order(*each) for each in sent[40:50]], 0)
    deployment.kafka.produce(deployment.topic, [order(*each) for each in sent[50:]], 1)
    codes = [_crash(deployment, f"crashing-{number}") for number in range(4)]
    assert codes == [-signal.SIGSEGV] * 4
    last = deployment.start_worker("last", crash_on="crashing-0", batch=100)
    deployment.wait_for(60)
    wait_until(lambda: bool(deployment.query(QUARANTINE)), "the record is not quarantined")
    assert last.stop() == 0
    ((state, _, payload, source, coordinates, error),) = deployment.query(QUARANTINE)
    assert (state, source, coordinates) == ("quarantined", deployment.topic, "0/40")
    assert payload == order("crashing", 0)[1]
    assert "the process crashed each time this record was converted" in error
    assert "crashed the process 3 times in a row; it is quarantined" in last.log_text()
    assert deployment.position() == {f"{deployment.topic}/0": 51, f"{deployment.topic}/1": 10}
    assert deployment.query("SELECT DISTINCT crashes FROM oncebox_position") == [(0,)]
    assert deployment.query("SELECT count(*) FROM oncebox_pending") == [(0,)]


def _crash(deployment: Deployment, name: str) -> int:
    """Run a worker until it crashes, and return its exit code."""
    worker: Worker = deployment.start_worker(name, crash_on="crashing-0", batch=100)
    return worker.process.wait(60)


@pytest.mark.slow
def test_a_worker_killed_from_outside_during_a_conversion_quarantines_no_record(
    deployment: Deployment,
) -> None:
    """The first worker that survives removes the crashes that were counted."""
    deployment.create_topic(1)
    deployment.send(orders(20, keys=20))
    partition = f"{deployment.topic}/0"
    worker = deployment.start_worker()
    deployment.wait_for(20)
    assert worker.stop() == 0
    deployment.send(orders(40, keys=40)[20:])
    deployment.execute(
        "UPDATE oncebox_position SET owner = 'x.y.z', owner_name = 'gone:1:0', batch = 5, "
        "crashes = 2"
    )
    successor = deployment.start_worker("successor")
    deployment.wait_for(40)
    assert successor.stop() == 0
    deployment.check(orders(40, keys=40))
    assert deployment.position() == {partition: 40}
    assert deployment.query("SELECT crashes FROM oncebox_position") == [(0,)]


@pytest.mark.parametrize("is_async", [False, True])
def test_headers_are_text_at_the_first_attempt_and_after_a_retry(
    deployment: Deployment, is_async: bool
) -> None:
    deployment.create_topic(1)
    headers = [("message-id", b"m-1"), ("event-type", b"order"), ("raw", b"\xff"), ("none", None)]
    deployment.kafka.produce(deployment.topic, [(b"k", b"{}", headers)])
    identity = Headers(id="message-id", type="event-type")
    inbox = Inbox("headers", deployment.database, identity=identity)
    seen: list[Any] = []

    def note(message: Message) -> None:
        seen.append(dict(message.headers))
        if len(seen) == 1:
            raise ValueError("not yet")

    async def anote(message: Message, tx: AsyncTransaction) -> None:
        note(message)

    inbox.on("order")(anote if is_async else note)
    consumer = Consumer(inbox, source_of(deployment.url()))
    consumer.on_beat = lambda waits: consumer.stop() if seen else None

    async def run() -> None:
        async with inbox:
            await consumer.arun()
            deployment.execute("UPDATE oncebox_pending SET available_at = NULL")
            await inbox.adrain()

    if is_async:
        asyncio.run(run())
    else:
        with inbox:
            consumer.run()
            deployment.execute("UPDATE oncebox_pending SET available_at = NULL")
            inbox.drain()
    texts = {"message-id": "m-1", "event-type": "order", "raw": "\\xff", "none": None}
    assert seen == [texts, texts]
