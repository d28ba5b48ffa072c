"""Lines of text as messages: their length limit, and their content."""

from __future__ import annotations

LIMIT = 64_000_000
"""Bytes. A longer line is cut, and its beginning goes to the quarantine."""


def stripped(line: bytes) -> bytes:
    """Return a line without its line end; empty if it is blank."""
    return line.rstrip(b"\r\n").strip(b" \t") and line.rstrip(b"\r\n")
