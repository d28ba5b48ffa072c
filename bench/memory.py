"""Memory: how much a consumer uses while it processes messages. It should not grow."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import psutil

from bench.measure import Contender, check
from bench.workload import Stream

STEPS = 10


def observe(
    contender: Contender, messages: int, *, batch: int, progress: Callable[[str], None]
) -> Iterator[tuple[int, float]]:
    """Messages so far and resident megabytes, once after a warm-up and then ten times."""
    stream = Stream()
    step = max(messages // STEPS // batch, 1) * batch
    done = 0
    for target in (batch, *range(step, messages + 1, step)):
        while done < target:
            contender.process(stream.take(batch))
            done += batch
        progress(f"{done:,} messages")
        yield done, resident()
    check(contender.label, contender.url, stream)


def resident() -> float:
    """The megabytes of this process that are in memory."""
    return float(psutil.Process().memory_info().rss) / 2**20
