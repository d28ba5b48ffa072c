"""How many Python functions process() calls for one message, on a warm inbox."""

from __future__ import annotations

import cProfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from types import CodeType

import msgspec

from bench.environment import Environment
from bench.work import book
from bench.workload import Stream
from oncebox import Inbox

WARM_UP = 50
"""Messages before the counted ones: the driver prepares its statements during these."""
COUNTED = 11


class Calls(msgspec.Struct, frozen=True):
    """The calls during one process([message])."""

    python: int
    """Calls of Python functions. Each time that a generator is resumed counts as a call."""
    builtin: int
    functions: int
    """Different Python functions."""


DATABASES: dict[str, Callable[[Environment], str]] = {
    "sqlite": lambda environment: environment.sqlite(),
    "psycopg": lambda environment: environment.postgres(),
}


def lines(environment: Environment, only: list[str]) -> Iterator[str]:
    """A line for each database."""
    yield f"function calls of process([one new message]), warm, medians of {COUNTED}"
    yield f"  {'library':<10}{'Python':>8}{'built-in':>10}{'different functions':>21}"
    for name, url_of in DATABASES.items():
        if name in only:
            with _warm_inbox(url_of(environment)) as (inbox, stream):
                counted = [count(inbox, stream) for _ in range(COUNTED)]
            yield (
                f"  {name:<10}{median(calls.python for calls in counted):>8.0f}"
                f"{median(calls.builtin for calls in counted):>10.0f}"
                f"{median(calls.functions for calls in counted):>21.0f}"
            )


def count(inbox: Inbox, stream: Stream) -> Calls:
    """Process one message and count the calls."""
    deliveries = stream.take(1)
    profile = cProfile.Profile()
    profile.enable()
    inbox.process(deliveries)
    profile.disable()
    entries = profile.getstats()
    python = [entry.callcount for entry in entries if isinstance(entry.code, CodeType)]
    return Calls(
        python=sum(python),
        builtin=sum(entry.callcount for entry in entries) - sum(python),
        functions=len(python),
    )


@contextmanager
def _warm_inbox(url: str) -> Iterator[tuple[Inbox, Stream]]:
    inbox, stream = Inbox("bench", url), Stream(repeats=False)
    inbox.on("payment")(book)
    inbox.migrate()
    with inbox:
        for delivery in stream.take(WARM_UP):
            inbox.process([delivery])
        yield inbox, stream
