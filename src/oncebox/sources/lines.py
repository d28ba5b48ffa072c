"""Lines: how long one may be, and what a message is made of it."""

from __future__ import annotations

LIMIT = 64_000_000
"""Bytes. Of a longer line the beginning is kept, for the quarantine."""


def stripped(line: bytes) -> bytes:
    """A line without its end; empty if nothing is on it."""
    return line.rstrip(b"\r\n").strip(b" \t") and line.rstrip(b"\r\n")
