"""How errors are stored and shown: one line, a traceback, a fingerprint."""

from __future__ import annotations

import traceback
from hashlib import blake2b
from typing import NamedTuple

from oncebox.model.message import escaped

ERROR_LIMIT = 2_000
TRACE_LIMIT = 16_000


class ErrorText(NamedTuple):
    """An error in one line, and a fingerprint that is equal for equal causes."""

    line: str
    fingerprint: str


def trace(error: BaseException) -> str:
    """The traceback of an error; only its end if it is long."""
    return escaped("".join(traceback.format_exception(error)))[-TRACE_LIMIT:]


def describe(error: BaseException) -> ErrorText:
    """The text of an error. Its fingerprint consists of class and place, never of values."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f"{frames[-1].filename}:{frames[-1].name}" if frames else ""
    name = type(error).__qualname__
    digest = blake2b(f"{name}|{place}".encode(errors="replace"), digest_size=8).hexdigest()
    return ErrorText(
        line=escaped(f"{name}: {_text(error)}")[:ERROR_LIMIT],
        fingerprint=digest,
    )


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # __str__ of the user may fail
        return "an error without a text"
