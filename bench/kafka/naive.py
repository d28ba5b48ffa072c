"""What people write: a transaction per message, and the offset once it is committed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import psycopg
from confluent_kafka import Consumer, KafkaException, Message

from bench.kafka.watch import Watch
from bench.kafka.worker import Consume, Order
from bench.work import by_hand
from oncebox import Delivery


@contextmanager
def open(url: str, batch: int) -> Iterator[Consume]:
    """A connection that stays."""
    with psycopg.connect(url) as connection:
        process = by_hand(connection)

        def consume(order: Order, watch: Watch) -> None:
            with closing(Consumer(_settings(order))) as consumer:
                consumer.subscribe([order.topic], on_assign=lambda *_: watch.start())
                while True:
                    message = _checked(consumer.poll(1.0))
                    if message is None:
                        continue
                    process([Delivery(message.value() or b"")])
                    consumer.store_offsets(message)
                    if watch.committed(1):
                        return

        yield consume


def _settings(order: Order) -> dict[str, Any]:
    """Offsets are committed in the background, but none before its message's transaction is."""
    return {
        "bootstrap.servers": order.servers,
        "group.id": order.group,
        "auto.offset.reset": "earliest",
        "enable.auto.offset.store": False,
    }


def _checked(message: Message | None) -> Message | None:
    if message is not None and (error := message.error()) is not None:
        raise KafkaException(error)
    return message
