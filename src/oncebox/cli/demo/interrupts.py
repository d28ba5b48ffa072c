"""Ctrl-C and signals: the demo stops after the first one, and kills its processes at the second."""

from __future__ import annotations

import signal
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """Counts the signals inside the block, instead of raising KeyboardInterrupt."""

    def __init__(self) -> None:
        self.count = 0
        self._before: list[Any] = []

    def __enter__(self) -> Interrupts:
        self._before = [signal.signal(number, self._add) for number in SIGNALS]
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in zip(SIGNALS, self._before, strict=True):
            signal.signal(number, handler)

    def _add(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
