"""Logs failures, dead letters and rollbacks; no payloads, no error texts: both may be private."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Iterator, Sequence

from oncebox.model.outcome import Kind, Outcome, Reason
from oncebox.processing.observer import Observer
from oncebox.storage.drivers import error_codes

logger = logging.getLogger("oncebox")

LONGEST_ID = 64
"""The most characters of an id that is repeated in a line."""

_CONSEQUENCES = {
    Kind.failed: "failed and is stored for another attempt",
    Kind.stored: "could not be committed and is stored, to run isolated",
    Kind.dead: "is a dead letter",
    Kind.quarantined: "is quarantined",
}


class OutcomeLog(Observer):
    """Logs what an operator may have to look at."""

    def batch_rolled_back(
        self, consumer: str, error: BaseException | None, consequence: str
    ) -> None:
        logger.warning("%s: batch rolled back (%s), %s", consumer, error_name(error), consequence)

    def batch_committed(self, consumer: str, outcomes: Sequence[Outcome]) -> None:
        for outcome in outcomes:
            has_news = outcome.error is not None or outcome.reason is not None
            if has_news and outcome.kind is not Kind.dead:
                _log(consumer, outcome)

    def message_dead(self, consumer: str, outcome: Outcome) -> None:
        _log(consumer, outcome)


def _log(consumer: str, outcome: Outcome) -> None:
    logger.warning(
        "%s: %s %s (%s)%s",
        consumer,
        _subject(outcome),
        _CONSEQUENCES[outcome.kind],
        ", ".join(_causes(outcome)),
        _where_to_look(outcome),
        extra={"oncebox_outcome": outcome.kind.value},
    )


def _causes(outcome: Outcome) -> Iterator[str]:
    """Why: the reason, the attempt and the class of the error, as far as they are known."""
    if outcome.reason is not None:
        yield outcome.reason.value
    if outcome.kind is Kind.failed:
        yield f"attempt {outcome.attempts}"
    if outcome.error is not None and outcome.reason in (None, Reason.out_of_attempts):
        yield _class_and_code(outcome.error)  # with the other reasons it says the same again
    if outcome.retry_in is not None:
        yield f"next attempt in {outcome.retry_in.total_seconds():.0f} s"


def _where_to_look(outcome: Outcome) -> str:
    """The command that shows the error text, if the id fits into a line of a shell."""
    message = outcome.message
    if message is None and outcome.kind is Kind.quarantined:
        return "; see: oncebox dead-letters APP"
    if message is None or outcome.kind not in (Kind.failed, Kind.dead):
        return ""
    is_short = len(message.id) <= LONGEST_ID and message.id.isprintable()
    if not is_short or message.id.startswith("-"):
        return ""
    return f"; see: oncebox show APP {shlex.quote(message.id)}"


def _subject(outcome: Outcome) -> str:
    """The message and where it came from: for Kafka the topic, the partition and the offset."""
    message, delivery = outcome.message, outcome.delivery
    subject = f"message {message.id!r} of type {message.type!r}" if message else "a delivery"
    place = f" from {delivery.source} at {delivery.coordinates}" if delivery.coordinates else ""
    return subject + place


def error_name(error: BaseException | None) -> str:
    """The class and code of a database error, after its cause in plain words if that is known."""
    cause = error_codes.explain(error)
    return f"{cause}: {_class_and_code(error)}" if cause else _class_and_code(error)


def _class_and_code(error: BaseException | None) -> str:
    if error is None:
        return "no error"
    code = error_codes.code(error)
    return f"{type(error).__name__} {code}" if code else type(error).__name__
