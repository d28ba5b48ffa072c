"""Reports: what is logged. Never payloads, and no texts of errors: they may quote values."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from oncebox.database import faults
from oncebox.outcome import Kind, Outcome

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
            message = outcome.message
            logger.warning(
                "%s: %s %s (%s)",
                consumer,
                f"message {message.id!r} of type {message.type!r}" if message else "a delivery",
                _CONSEQUENCES[outcome.kind],
                outcome.reason or name(outcome.error),
                extra={"oncebox_outcome": outcome.kind.value},
            )


def name(error: BaseException | None) -> str:
    """The kind of an error; in plain words where that is the disk."""
    if error is None:
        return "no error"
    code = faults.code(error)
    kind = f"{type(error).__name__} {code}" if code else type(error).__name__
    return f"the disk is full: {kind}" if faults.is_full(error) else kind
