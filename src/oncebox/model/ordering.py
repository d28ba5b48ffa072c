"""Ordering per key: locks, lanes, and the order in which the handlers of a batch run.

processing/plan.py decides which messages block their key.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from functools import lru_cache
from hashlib import blake2b
from itertools import groupby
from operator import itemgetter
from typing import Any, TypeVar

LANES = 64

T = TypeVar("T")


class Ordering(StrEnum):
    """What a dead letter does to the later messages of its key."""

    strict = "strict"
    """Later messages of the key wait until an operator retries or discards the dead letter."""
    skip_dead = "skip_dead"
    """Later messages of the key run."""


@lru_cache(maxsize=65536)
def lane(name: str) -> int:
    """The lane of a key, or of the id of a message without a key. Equal in every process."""
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest()) % LANES


@lru_cache(maxsize=65536)
def lock_number(scope: str, key: str) -> int:
    """The advisory lock number of a key. The scope separates inboxes in the same database."""
    digest = blake2b(f"{scope}\0{key}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, signed=True)


def in_key_order(items: Iterable[T], key: Callable[[T], str | None]) -> list[T]:
    """Sort by key; keep the arrival order within a key, so that all batches lock in one order."""
    return [item for _, item in sorted(((key(i) or "", i) for i in items), key=itemgetter(0))]


def runs(
    items: list[T], key: Callable[[T], str | None], list_of: Callable[[T], Any]
) -> Iterator[list[T]]:
    """Split items, given in key order, into the handler calls that process them.

    `list_of` names the batch handler of an item; None if its handler takes one message. An item
    joins a list only if all earlier items of its key are in earlier calls or in the same list.
    """
    names = set(map(list_of, items))
    if names == {None}:
        yield from ([item] for item in items)
        return
    if len(names) == 1:
        yield items
        return
    waiting = [deque(group) for group in _by_key(items, key)]
    while waiting:
        lists: dict[Any, list[T]] = {}
        for queue in waiting:
            while queue and list_of(queue[0]) is None:
                yield [queue.popleft()]
            if queue:
                name = list_of(queue[0])
                joined = lists.setdefault(name, [])
                while queue and list_of(queue[0]) is name:
                    joined.append(queue.popleft())
        yield from lists.values()
        waiting = [queue for queue in waiting if queue]


def _by_key(items: list[T], key: Callable[[T], str | None]) -> Iterator[list[T]]:
    for name, group in groupby(items, key):
        if name is None:
            yield from ([item] for item in group)
        else:
            yield list(group)
