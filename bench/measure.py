"""Contenders process the same messages by turns, and every turn is checked."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from statistics import median

import msgspec

from bench import business
from bench.workload import Stream
from oncebox import Delivery

Process = Callable[[Sequence[Delivery]], None]

WARM_UP = 1500
"""Messages, so that psycopg prepares its statements and PostgreSQL fixes their plans."""


class Contender(msgspec.Struct, frozen=True):
    """A way to process deliveries, on a database of its own."""

    label: str
    url: str
    process: Process
    goal: float | None = None
    """How many times as fast as the baseline it should be."""


class Measured(msgspec.Struct, frozen=True):
    """A contender's messages per second, a figure per round."""

    contender: Contender
    rates: list[float]

    @property
    def rate(self) -> float:
        return median(self.rates)

    def ratio(self, baseline: Measured) -> float:
        """How many times as fast: the medians compared."""
        return self.rate / baseline.rate

    def ratios(self, baseline: Measured) -> list[float]:
        """How many times as fast, round by round: shows how stable the machine was."""
        return [ours / theirs for ours, theirs in zip(self.rates, baseline.rates, strict=True)]


class WrongResult(Exception):
    """A contender lost a message or booked one twice."""


def interleave(
    contenders: Sequence[Contender],
    *,
    messages: int,
    rounds: int,
    progress: Callable[[str], None],
) -> list[Measured]:
    """Let all contenders process the same new messages, round by round; the first is the baseline.

    A round before the others, which does not count, opens connections and lets the drivers prepare
    what they execute often.
    """
    stream = Stream()
    play(contenders, stream, WARM_UP)
    results = [Measured(contender, []) for contender in contenders]
    for number in range(1, rounds + 1):
        rates = play(contenders, stream, messages)
        for measured, rate in zip(results, rates, strict=True):
            measured.rates.append(rate)
        progress(f"round {number} of {rounds}: " + ", ".join(f"{rate:,.0f}/s" for rate in rates))
    return results


def play(contenders: Sequence[Contender], stream: Stream, messages: int) -> list[float]:
    """One round: the rate of each contender on the same messages."""
    deliveries = stream.take(messages)
    rates = []
    for contender in contenders:
        rates.append(len(deliveries) / seconds(contender.process, deliveries))
        check(contender.label, contender.url, stream)
    return rates


def seconds(process: Process, deliveries: Sequence[Delivery]) -> float:
    """How long a call takes, after a garbage collection."""
    gc.collect()
    started = time.perf_counter()
    process(deliveries)
    return time.perf_counter() - started


def check(label: str, url: str, stream: Stream) -> None:
    """Raise unless every payment so far was booked exactly once."""
    found = business.totals(url)
    if found != stream.totals:
        raise WrongResult(
            f"{label}: {found.payments} payments were booked instead of "
            f"{stream.totals.payments}, or to other accounts"
        )
