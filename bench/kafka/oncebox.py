"""oncebox: its own Consumer on its own source, inline."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

from bench.kafka.watch import Watch
from bench.kafka.worker import Consume, Order
from bench.work import book, book_all
from oncebox import Consumer, Inbox
from oncebox.brokers.contract import Batch
from oncebox.brokers.kafka import KafkaSource
from oncebox.model.outcome import Outcome
from oncebox.model.position import Position


class Watched(KafkaSource):
    """Notifies the watch, and stops its consumer once the last message is acked."""

    def __init__(self, order: Order, watch: Watch, inbox: Inbox, batch: int) -> None:
        super().__init__(order.servers, [order.topic], group=order.group)
        self.watch = watch
        self.consumer = Consumer(inbox, self, batch=batch)

    def open(self, position: Position) -> None:
        self.watch.start()
        super().open(position)

    def ack(self, batch: Batch, outcomes: Sequence[Outcome]) -> None:
        super().ack(batch, outcomes)
        if self.watch.committed(len(batch.deliveries)):
            self.consumer.stop()


def open_single(url: str, batch: int) -> AbstractContextManager[Consume]:
    """A handler per message."""
    inbox = Inbox("bench", url)
    inbox.on("payment")(book)
    return _opened(inbox, batch)


def open_batch(url: str, batch: int) -> AbstractContextManager[Consume]:
    """A handler for all messages of a batch."""
    inbox = Inbox("bench", url)
    inbox.on("payment", batch=True)(book_all)
    return _opened(inbox, batch)


@contextmanager
def _opened(inbox: Inbox, batch: int) -> Iterator[Consume]:
    inbox.migrate()

    def consume(order: Order, watch: Watch) -> None:
        Watched(order, watch, inbox, batch).consumer.run()

    with inbox:
        yield consume
