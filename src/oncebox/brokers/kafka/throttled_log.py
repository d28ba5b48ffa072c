"""Warnings of a source, each kind at most once a minute."""

from __future__ import annotations

import logging
import time
from typing import Any

logger = logging.getLogger("oncebox")

REPEAT_AFTER = 60.0
"""Seconds within which a warning of the same kind is not repeated."""


class ThrottledLog:
    """Logs warnings with the name of a source."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._logged_at: dict[Any, float] = {}

    def warn(self, kind: Any, text: str) -> None:
        """Log a warning, unless one of the same kind was logged within the last minute."""
        now = time.monotonic()
        if now - self._logged_at.get(kind, -REPEAT_AFTER) >= REPEAT_AFTER:
            self._logged_at[kind] = now
            logger.warning("%s: %s", self._name, text)
