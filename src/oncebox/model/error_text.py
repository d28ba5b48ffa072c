"""How errors are stored and shown: one line, a traceback, a fingerprint."""

from __future__ import annotations

import os
import traceback
from hashlib import blake2b
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from oncebox.model.message import escaped

ERROR_LIMIT = 2_000
TRACE_LIMIT = 16_000

_PACKAGE = str(Path(__file__).parents[1]) + os.sep
"""The folder of the files of oncebox."""


class ErrorText(NamedTuple):
    """An error in one line, and a fingerprint that is equal for equal causes."""

    line: str
    fingerprint: str


def trace(error: BaseException) -> str:
    """The traceback of an error, from the handler on; only its end if it is long."""
    lines = traceback.format_exception(type(error), error, _in_handler(error.__traceback__))
    return escaped("".join(lines))[-TRACE_LIMIT:]


def _in_handler(raised: TracebackType | None) -> TracebackType | None:
    """The traceback without the frames of oncebox that lead to the handler."""
    found = raised
    while found is not None and found.tb_frame.f_code.co_filename.startswith(_PACKAGE):
        found = found.tb_next
    return found or raised


def describe(error: BaseException) -> ErrorText:
    """The text of an error. Its fingerprint consists of class and place, never of values."""
    frames = traceback.extract_tb(error.__traceback__)
    place = _place(frames[-1]) if frames else ""
    name = type(error).__qualname__
    digest = blake2b(f"{name}|{place}".encode(errors="replace"), digest_size=8).hexdigest()
    return ErrorText(
        line=escaped(f"{name}: {_text(error)}")[:ERROR_LIMIT],
        fingerprint=digest,
    )


def _place(frame: traceback.FrameSummary) -> str:
    """Folder, file and function: equal wherever the program is installed."""
    return f"{'/'.join(Path(frame.filename).parts[-2:])}:{frame.name}"


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # __str__ of the user may fail
        return "an error without a text"
