"""The keeper: a drain that keeps house between its batches, as oncebox run does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from bench.drain import oncebox
from bench.drain.crew import Drain
from oncebox.database.steps import run
from oncebox.housekeeping import Housekeeper


@contextmanager
def open(url: str, batch: int) -> Iterator[Drain]:
    """A batch, and whatever is to be done in the house then."""
    inbox = oncebox.inbox_for_batches(url)
    with oncebox.draining(inbox, batch) as drain:
        keeper = Housekeeper(inbox.housekeeping, inbox, run(inbox._database_for(False)))
        keeper._ask_at = 0.0  # it is time at once

        def step() -> int:
            done = drain()
            if not done or keeper.is_rested:
                run(keeper.step())
            return done

        yield step
        keeper.leave()
