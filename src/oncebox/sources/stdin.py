"""stdin: JSON lines from a pipe. Not durable: what a killed reader had in hands is the sender's."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Sequence
from datetime import timedelta

from oncebox.message import Delivery
from oncebox.outcome import Outcome
from oncebox.sources.contract import Batch, Features
from oncebox.sources.lines import LIMIT, stripped
from oncebox.store.records import Gauge, Position

CHUNK = 1 << 16


class StdinSource:
    """`-`: the lines of standard input, until it ends."""

    name = "stdin"
    features = Features(ordered=True, ends=True, single=True)

    def __init__(self, descriptor: int | None = None) -> None:
        self._descriptor = sys.stdin.fileno() if descriptor is None else descriptor
        self._rest = b""
        self._lines: list[bytes] = []
        self._ended = False

    def parts(self) -> Sequence[str]:
        return [""]

    def is_reassigned(self) -> bool:
        return False

    def beginning(self, part: str) -> Position:
        return Position(part, 0)

    def open(self, position: Position) -> None:
        """There is only one way to read a pipe."""

    def read(self, limit: int, seconds: float) -> Batch | None:
        while len(self._lines) < limit and self._fill(0 if self._lines else seconds):
            pass
        if not self._lines:
            return None
        lines, self._lines = self._lines[:limit], self._lines[limit:]
        return Batch([Delivery(line, source=self.name) for line in lines])

    def _fill(self, seconds: float) -> bool:
        """Read what is there; False if nothing came within that time, or ever will."""
        if self._ended or not select.select([self._descriptor], [], [], seconds)[0]:
            return False
        chunk = os.read(self._descriptor, CHUNK)
        self._ended = not chunk
        whole, _, rest = (self._rest + chunk).rpartition(b"\n")
        if self._ended or len(rest) > LIMIT:
            whole, rest = whole + rest[:LIMIT], b""
        self._rest = rest
        self._lines += filter(None, map(stripped, whole.split(b"\n")))
        return True

    def settle(self, batch: Batch, outcomes: Sequence[Outcome]) -> None:
        """Nobody waits for it."""

    def gauge(self, part: str) -> Gauge:
        return Gauge()

    def release(self, part: str) -> None:
        """It is read until it ends."""

    def is_finished(self, part: str, position: Position | None) -> bool:
        return self._ended and not self._lines

    def keeps(self) -> timedelta | None:
        return None

    def close(self) -> None:
        """It is not ours."""
