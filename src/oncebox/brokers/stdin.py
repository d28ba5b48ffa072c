"""JSON lines from standard input. Not durable: a crash loses the lines that were in flight."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Sequence

from oncebox.brokers.contract import Batch, Features, SourceEnded
from oncebox.brokers.lines import LIMIT, stripped
from oncebox.model.message import Delivery
from oncebox.model.outcome import Outcome

CHUNK = 1 << 16
"""Bytes read from the pipe at a time."""


class StdinSource:
    """`-`: the lines of standard input, until it ends."""

    name = "stdin"
    features = Features(order="partition", ends=True, single=True)

    def __init__(self, descriptor: int | None = None) -> None:
        self._descriptor = sys.stdin.fileno() if descriptor is None else descriptor
        self._incomplete = b""
        self._lines: list[bytes] = []
        self._is_at_end = False

    def read(self, limit: int, seconds: float) -> Batch | None:
        while len(self._lines) < limit and self._fill(0 if self._lines else seconds):
            pass
        if self._lines:
            lines, self._lines = self._lines[:limit], self._lines[limit:]
            return Batch([Delivery(line, source=self.name) for line in lines])
        if self._is_at_end:
            raise SourceEnded
        return None

    def _fill(self, seconds: float) -> bool:
        """Read what the pipe holds; False if nothing arrives within `seconds` or it has ended."""
        if self._is_at_end or not select.select([self._descriptor], [], [], seconds)[0]:
            return False
        chunk = os.read(self._descriptor, CHUNK)
        self._is_at_end = not chunk
        complete, _, rest = (self._incomplete + chunk).rpartition(b"\n")
        if self._is_at_end or len(rest) > LIMIT:
            complete, rest = complete + rest[:LIMIT], b""
        self._incomplete = rest
        self._lines += filter(None, map(stripped, complete.split(b"\n")))
        return True

    def ack(self, batch: Batch, outcomes: Sequence[Outcome]) -> None:
        """The writer of the pipe does not wait for acks."""

    def nack(self, batch: Batch) -> None:
        self._lines = [delivery.body for delivery in batch.deliveries] + self._lines

    def extend(self, batch: Batch) -> None:
        """Lines of a pipe have no lease."""

    def trouble(self) -> None:
        """A pipe can be read until it ends."""

    def close(self) -> None:
        """The process that opened the pipe closes it."""
