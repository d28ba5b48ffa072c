"""Others: libraries that drain a table of PostgreSQL, each as its own documentation says."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

from bench.drain import outbox, pgqueuer
from bench.drain.contest import BATCH, SINGLE, Contender, enter, line, warm_up
from bench.drain.load import Load
from bench.drain.options import Options
from bench.place import Place

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


def others(place: Place, options: Options) -> Iterator[str]:
    """Beside oncebox, on uniform keys."""
    yield f"others, uniform keys, {MESSAGES:,} messages, a handler per message"
    reasons = {PGQUEUER.label: pgqueuer.missing(), OUTBOX.label: outbox.missing()}
    yield from (f"  {label}: {reason}" for label, reason in reasons.items() if reason)
    found = [one for one in (PGQUEUER, OUTBOX) if not reasons[one.label]]
    if not found:
        return
    with ExitStack() as stack:
        entrants = enter(stack, place, options, [SINGLE, BATCH, *found])
        warm_up(entrants)
        for number in range(1, options.rounds + 1):
            for entrant in entrants:
                entrant.rates.append(entrant.play(Load(MESSAGES), limit=60).rate)
            rates = ", ".join(f"{entrant.rates[-1]:,.0f}/s" for entrant in entrants)
            options.progress(f"others: round {number} of {options.rounds}: {rates}")
    first, *rest = entrants
    yield line(first.contender.label, first.rates)
    for entrant in rest:
        yield line(entrant.contender.label, entrant.rates, first.rates)
