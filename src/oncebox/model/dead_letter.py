"""DeadLetter: a dead or quarantined message."""

from __future__ import annotations

from datetime import datetime

import msgspec

from oncebox.model.message import HeaderMap


class DeadLetter(msgspec.Struct, frozen=True):
    """A message that failed for good, or whose identity cannot be trusted."""

    id: int
    state: str
    """dead or quarantined"""
    reason: str
    seq: int | None
    origin: str | None
    message_id: str | None
    type: str | None
    version: int | None
    key: str | None
    blocks_key: bool
    """True if later messages of its key wait until it is retried or discarded."""
    payload: bytes
    content_hash: bytes | None
    headers: HeaderMap
    source: str
    coordinates: str | None
    occurred_at: datetime | None
    attempts: int
    crashes: int
    replay: int
    error: str | None
    fingerprint: str | None
    """Equal for dead letters with the same error; see `describe` in error_text."""
    dead_at: datetime
