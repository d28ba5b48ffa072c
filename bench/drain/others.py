"""Others: libraries that drain a table of PostgreSQL, each as its own documentation says."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

from bench.drain import outbox, pgqueuer
from bench.drain.comparison import BATCH, SINGLE, Contender, line, start, warm_up
from bench.drain.load import Load
from bench.drain.options import Options
from bench.environment import Environment

MESSAGES = 5000
PGQUEUER = Contender(
    "PGQueuer (no order)",
    pgqueuer.create,
    pgqueuer.fill,
    pgqueuer.left,
    pgqueuer.open,
    ordered=False,
)
OUTBOX = Contender("pg-transactional-outbox", outbox.create, outbox.fill, outbox.left, outbox.open)


def others(environment: Environment, options: Options) -> Iterator[str]:
    """Beside oncebox, on uniform keys."""
    yield f"others, uniform keys, {MESSAGES:,} messages, a handler per message"
    reasons = {PGQUEUER.label: pgqueuer.missing(), OUTBOX.label: outbox.missing()}
    yield from (f"  {label}: {reason}" for label, reason in reasons.items() if reason)
    found = [one for one in (PGQUEUER, OUTBOX) if not reasons[one.label]]
    if not found:
        return
    with ExitStack() as stack:
        contenders_running = start(stack, environment, options, [SINGLE, BATCH, *found])
        warm_up(contenders_running)
        for number in range(1, options.rounds + 1):
            for running in contenders_running:
                running.rates.append(running.play(Load(MESSAGES), limit=60).rate)
            rates = ", ".join(f"{running.rates[-1]:,.0f}/s" for running in contenders_running)
            options.progress(f"others: round {number} of {options.rounds}: {rates}")
    first, *rest = contenders_running
    yield line(first.contender.label, first.rates)
    for running in rest:
        yield line(running.contender.label, running.rates, first.rates)
