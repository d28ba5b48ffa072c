"""Deliver messages as brokers do, repeated and mixed, and check the outcomes."""

from __future__ import annotations

import random
from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Sequence
from typing import Any

from oncebox.errors import ConfigurationError
from oncebox.inbox import Inbox
from oncebox.model.message import Delivery
from oncebox.model.outcome import Kind, Outcome


def deliver(
    inbox: Inbox,
    *deliveries: Delivery,
    copies: int = 1,
    batch: int = 100,
    seed: int | None = None,
) -> list[Outcome]:
    """Process deliveries as a broker might deliver them: in batches, repeated, reordered.

    Every delivery comes `copies` times. With a seed they are mixed. The first copies of deliveries
    with the same broker key stay in order, as in a partition.
    """
    outcomes: list[Outcome] = []
    given = _checked(deliveries, "deliver")
    for chunk in _batches(disturbed(given, copies=copies, seed=seed), batch):
        outcomes += inbox.process(chunk)
    return outcomes


async def adeliver(
    inbox: Inbox,
    *deliveries: Delivery,
    copies: int = 1,
    batch: int = 100,
    seed: int | None = None,
) -> list[Outcome]:
    """Async version of deliver()."""
    outcomes: list[Outcome] = []
    given = _checked(deliveries, "adeliver")
    for chunk in _batches(disturbed(given, copies=copies, seed=seed), batch):
        outcomes += await inbox.aprocess(chunk)
    return outcomes


def disturbed(
    deliveries: Sequence[Delivery], *, copies: int = 1, seed: int | None = None
) -> list[Delivery]:
    """Repeat deliveries and, with a seed, mix them. The same seed returns the same order."""
    if seed is None:
        return [delivery for delivery in deliveries for _ in range(copies)]
    chance = random.Random(seed)
    mixed = list(_interleaved(deliveries, chance))
    # A copy may come at any place after the original, as with a broker that redelivers.
    for delivery in deliveries:
        for _ in range(copies - 1):
            first = next(n for n, other in enumerate(mixed) if other is delivery)
            mixed.insert(chance.randint(first + 1, len(mixed)), delivery)
    return mixed


def assert_kinds(outcomes: Sequence[Outcome], **expected: int) -> None:
    """Assert the number of outcomes of each kind: `assert_kinds(outcomes, done=2, dead=1)`."""
    unknown = expected.keys() - {kind.value for kind in Kind}
    assert not unknown, f"unknown kinds of outcome: {', '.join(sorted(unknown))}"
    counts = Counter(outcome.kind.value for outcome in outcomes)
    found = {kind: count for kind, count in counts.items() if count}
    wanted = {kind: count for kind, count in expected.items() if count}
    errors = [f"{o.kind}: {o.error!r}" for o in outcomes if o.error is not None]
    assert found == wanted, "\n".join([f"expected {wanted}, got {found}", *errors])


def _checked(deliveries: Sequence[Delivery], call: str) -> Sequence[Delivery]:
    """Raise ConfigurationError for a list of deliveries."""
    if any(isinstance(delivery, list | tuple) for delivery in deliveries):
        raise ConfigurationError(f"pass deliveries, not a list: {call}(inbox, *deliveries)")
    return deliveries


def _interleaved(deliveries: Sequence[Delivery], chance: random.Random) -> Iterator[Delivery]:
    lines: dict[Any, deque[Delivery]] = defaultdict(deque)
    for number, delivery in enumerate(deliveries):
        lines[number if delivery.key is None else delivery.key].append(delivery)
    waiting = list(lines.values())
    while waiting:
        line = chance.choice(waiting)
        yield line.popleft()
        waiting = [line for line in waiting if line]


def _batches(deliveries: Sequence[Delivery], size: int) -> Iterator[Sequence[Delivery]]:
    for start in range(0, len(deliveries), size):
        yield deliveries[start : start + size]
