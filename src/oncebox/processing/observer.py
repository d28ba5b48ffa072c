"""Observer: receives the events of the batches of an inbox. OutcomeLog logs them."""

from __future__ import annotations

from collections.abc import Sequence

from oncebox.model.message import Message
from oncebox.model.outcome import Kind, Outcome


class Observer:
    """Receives the events of the batches of an inbox. Every method does nothing here.

    An inbox has one observer: an OutcomeLog. A method must return quickly and must not raise: it
    runs between the steps of a batch.
    """

    def batch_started(self, consumer: str, size: int) -> None:
        """A batch of this many messages is about to be claimed or taken from the queue."""

    def handler_finished(
        self,
        consumer: str,
        messages: Sequence[Message | None],
        seconds: float,
        error: BaseException | None,
    ) -> None:
        """A handler returned or raised. Its work is not committed yet, and may be rolled back."""

    def batch_rolled_back(
        self, consumer: str, error: BaseException | None, consequence: str
    ) -> None:
        """The transaction of a batch was rolled back. `consequence` says what happens next."""

    def batch_committed(self, consumer: str, outcomes: Sequence[Outcome]) -> None:
        """The transaction of a batch is committed."""

    def message_dead(self, consumer: str, outcome: Outcome) -> None:
        """A committed batch made this message a dead letter."""


def report_commit(observer: Observer, consumer: str, outcomes: Sequence[Outcome]) -> None:
    """Send the events of a committed batch."""
    if not outcomes:
        return
    observer.batch_committed(consumer, outcomes)
    for outcome in outcomes:
        if outcome.kind is Kind.dead:
            observer.message_dead(consumer, outcome)
