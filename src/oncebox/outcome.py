"""Outcome: what became of a delivery. Outcomes are values; settle after you have them."""

from __future__ import annotations

import traceback
from datetime import timedelta
from enum import StrEnum
from hashlib import blake2b
from typing import NamedTuple

import msgspec

from oncebox.message import Delivery, Message

ERROR_LIMIT = 2_000
TRACE_LIMIT = 16_000


class Kind(StrEnum):
    """What became of a delivery. All of them are committed, so all of them may be settled."""

    done = "done"
    duplicate = "duplicate"
    failed = "failed"
    """The handler raised; stored as pending with its attempt counted."""
    parked = "parked"
    """Stored behind an unfinished message or a dead letter of its key, or until the numbers before
    its own have come."""
    stored = "stored"
    """Stored as pending, to be run later: it was only received, or it is to be run by itself."""
    dead = "dead"
    quarantined = "quarantined"
    ignored = "ignored"


class Reason(StrEnum):
    """Why a message is dead or quarantined."""

    undecodable = "undecodable"
    unknown_type = "unknown type"
    unknown_version = "unknown version"
    too_large = "too large"
    rejected = "rejected"
    out_of_attempts = "out of attempts"
    killed = "killed its process"
    lost = "transaction lost"
    unidentified = "unidentified"
    other_bytes = "other bytes"
    too_late = "too late"
    late_number = "late number"
    number_taken = "number taken"


class Outcome(msgspec.Struct, frozen=True):
    """What became of one delivery."""

    kind: Kind
    delivery: Delivery
    message: Message | None = None
    """None where the delivery could not be identified, or was ignored."""
    reason: Reason | None = None
    error: BaseException | None = None
    attempts: int = 0
    retry_in: timedelta | None = None


class ErrorText(NamedTuple):
    """An error as it is written down: one line, and what groups it with its like."""

    line: str
    fingerprint: str


def trace(error: BaseException) -> str:
    """The traceback of an error, its end where it is long."""
    return _escaped("".join(traceback.format_exception(error)))[-TRACE_LIMIT:]


def describe(error: BaseException) -> ErrorText:
    """Write an error down. The fingerprint is made of the class and the place, never of values."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f"{frames[-1].filename}:{frames[-1].name}" if frames else ""
    name = type(error).__qualname__
    digest = blake2b(f"{name}|{place}".encode(errors="replace"), digest_size=8).hexdigest()
    return ErrorText(
        line=_escaped(f"{name}: {_text(error)}")[:ERROR_LIMIT],
        fingerprint=digest,
    )


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # not even that can be relied on
        return "an error without a text"


def _escaped(text: str) -> str:
    """No database takes lone surrogates, and PostgreSQL takes no NUL."""
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\0")
