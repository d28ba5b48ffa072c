"""Reports: what is logged. Never payloads, and no texts of errors: they may quote values."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from oncebox.model.outcome import Kind, Outcome
from oncebox.storage.drivers import error_codes

logger = logging.getLogger("oncebox")

_CONSEQUENCES = {
    Kind.failed: "failed and is stored for another attempt",
    Kind.stored: "could not be committed and is stored, to be run by itself",
    Kind.dead: "is a dead letter",
    Kind.quarantined: "is quarantined",
}


def tell(consumer: str, outcomes: Sequence[Outcome]) -> None:
    """Log what somebody may have to look at."""
    for outcome in outcomes:
        if outcome.error is not None or outcome.reason is not None:
            logger.warning(
                "%s: %s %s (%s)",
                consumer,
                _subject(outcome),
                _CONSEQUENCES[outcome.kind],
                outcome.reason or _kind(outcome.error),
                extra={"oncebox_outcome": outcome.kind.value},
            )


def _subject(outcome: Outcome) -> str:
    """The message and its place: for Kafka the topic, the partition and the offset."""
    message, delivery = outcome.message, outcome.delivery
    subject = f"message {message.id!r} of type {message.type!r}" if message else "a delivery"
    place = f" from {delivery.source} at {delivery.coordinates}" if delivery.coordinates else ""
    return subject + place


def name(error: BaseException | None) -> str:
    """The kind of an error of the database, after its cause in plain words where there are some."""
    cause = error_codes.explain(error)
    return f"{cause}: {_kind(error)}" if cause else _kind(error)


def _kind(error: BaseException | None) -> str:
    if error is None:
        return "no error"
    code = error_codes.code(error)
    return f"{type(error).__name__} {code}" if code else type(error).__name__
