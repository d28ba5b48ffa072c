"""Dead letters: finding them, and putting them back or away."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, TypedDict, Unpack

import msgspec

from oncebox.audit import checked_deed
from oncebox.database import committed, seen
from oncebox.database.contract import Work
from oncebox.database.steps import arun, run
from oncebox.errors import ConfigurationError, NotFound, Unidentified
from oncebox.home import Home
from oncebox.liveness import worker_name
from oncebox.message import Delivery, Message
from oncebox.ordering import Order
from oncebox.outcome import Kind, Reason
from oncebox.plan import Item, Plan
from oncebox.properties import LIMIT
from oncebox.sequencing import take_in
from oncebox.store.contract import Steps
from oncebox.store.records import DeadLetter, Deed, Matching

CHUNK = 200
"""Letters per transaction: each may lock a key, and a server has room for so many locks."""

LONGEST_KEY = 10_000
"""Letters of the same keys that come along."""


class Filter(TypedDict, total=False):
    """Which dead letters are meant."""

    state: str | None
    reason: str | None
    type: str | None
    key: str | None
    origin: str | None
    message_id: str | None
    fingerprint: str | None


class Acted(msgspec.Struct, frozen=True):
    """What an operator's act came to."""

    done: int
    """How many letters were acted on."""
    left: int
    """How many were not: gone meanwhile, still unidentified, quarantined for another reason now, or
    their key busy."""


class DeadLetters:
    """The dead letters and the quarantine of an inbox: `inbox.dead`.

    `retry` puts a letter back at the head of its key, and releases a quarantined one. `discard`
    removes it and lets its key go on. Both take numbers, or the filters of `find`, and write down
    who did it and why.
    """

    def __init__(self, home: Home) -> None:
        self._home = home

    def find(
        self, *ids: int, limit: int = 100, after: int = 0, **filter: Unpack[Filter]
    ) -> list[DeadLetter]:
        """Letters that match, the oldest first; `after` is the number to go on behind."""
        return run(self._find(ids, limit, after, filter, is_async=False))

    async def afind(
        self, *ids: int, limit: int = 100, after: int = 0, **filter: Unpack[Filter]
    ) -> list[DeadLetter]:
        """See find()."""
        return await arun(self._find(ids, limit, after, filter, is_async=True))

    def retry(
        self,
        *ids: int,
        why: str,
        by: str | None = None,
        everything: bool = False,
        progress: Callable[[int], None] | None = None,
        **filter: Unpack[Filter],
    ) -> Acted:
        """Put letters back: the drain runs them again, each at the head of its key.

        `by` is who you are, as far as it is not the user of this process. `progress` is called with
        the number of letters done so far. Without numbers or filters, say `everything=True`.
        """
        act = self._act("retry", ids, why, by, everything, progress, filter, is_async=False)
        return run(act)

    async def aretry(
        self,
        *ids: int,
        why: str,
        by: str | None = None,
        everything: bool = False,
        progress: Callable[[int], None] | None = None,
        **filter: Unpack[Filter],
    ) -> Acted:
        """See retry()."""
        act = self._act("retry", ids, why, by, everything, progress, filter, is_async=True)
        return await arun(act)

    def discard(
        self,
        *ids: int,
        why: str,
        by: str | None = None,
        everything: bool = False,
        progress: Callable[[int], None] | None = None,
        **filter: Unpack[Filter],
    ) -> Acted:
        """Remove letters for good; what waited behind them goes on. See retry()."""
        act = self._act("discard", ids, why, by, everything, progress, filter, is_async=False)
        return run(act)

    async def adiscard(
        self,
        *ids: int,
        why: str,
        by: str | None = None,
        everything: bool = False,
        progress: Callable[[int], None] | None = None,
        **filter: Unpack[Filter],
    ) -> Acted:
        """See discard()."""
        act = self._act("discard", ids, why, by, everything, progress, filter, is_async=True)
        return await arun(act)

    # -- the steps --------------------------------------------------------------------------------

    def _find(
        self, ids: Sequence[int], limit: int, after: int, filter: Filter, *, is_async: bool
    ) -> Steps[list[DeadLetter]]:
        database = yield from self._home._database_for(is_async)
        matching = _matching(ids, filter)
        return (
            yield from seen(
                database,
                lambda work: self._home._store.find_dead(
                    work, self._home.name, matching, limit=limit, after=after
                ),
            )
        )

    def _act(
        self,
        act: str,
        ids: Sequence[int],
        why: str,
        by: str | None,
        everything: bool,
        progress: Callable[[int], None] | None,
        filter: Filter,
        *,
        is_async: bool,
    ) -> Steps[Acted]:
        matching = _matching(ids, filter)
        if not everything and matching == Matching():
            raise ConfigurationError(f"{act}() takes numbers or filters, or everything=True")
        deed = checked_deed(act, by, why)
        database = yield from self._home._database_for(is_async)
        newest = yield from seen(
            database, lambda work: self._home._store.newest_dead(work, self._home.name)
        )
        done = left = after = 0
        while True:
            letters, acted = yield from committed(
                database, partial(self._chunk, deed, matching, after, newest)
            )
            done, left = done + acted, left + len(letters) - acted
            if progress is not None and letters:
                progress(done)
            if len(letters) < CHUNK:
                break
            after = letters[CHUNK - 1].id
        _check_found(ids, done + left)
        return Acted(done, left)

    def _chunk(
        self, deed: Deed, matching: Matching, after: int, up_to: int, work: Work
    ) -> Steps[tuple[list[DeadLetter], int]]:
        """One transaction's share: what was found, and how many of it were acted on."""
        store, consumer = self._home._store, self._home.name
        letters = yield from store.find_dead(
            work, consumer, matching, limit=CHUNK, after=after, up_to=up_to
        )
        if not letters:
            return letters, 0
        # Whole keys: the later ones of a key must not be released before the earlier ones are back.
        keys = sorted({letter.key for letter in letters if letter.key is not None})
        rest = yield from store.find_dead(
            work,
            consumer,
            msgspec.structs.replace(matching, keys=keys),
            limit=LONGEST_KEY,
            after=letters[-1].id,
            up_to=up_to,
        )
        letters += rest
        free = yield from store.lock_dead(work, consumer, letters)
        if deed.act == "discard":
            yield from store.put_away(work, consumer, free, deed)
            return letters, len(free)
        strangers = [letter for letter in free if letter.seq is None]
        known = [letter for letter in free if letter.seq is not None]
        admitted, refused = yield from self._admit(work, strangers)
        if admitted or refused:
            yield from store.put_away(work, consumer, [*admitted, *refused], deed)
        if known:
            yield from store.revive(work, consumer, known, deed)
        return letters, len(known) + len(admitted)

    def _admit(
        self, work: Work, letters: Sequence[DeadLetter]
    ) -> Steps[tuple[list[DeadLetter], list[DeadLetter]]]:
        """Take in what was never claimed, as if it arrived now: what was, and what is quarantined
        for another reason from now on. What has no identity still is neither."""
        items = {letter.id: self._item(letter) for letter in letters}
        plan = Plan(
            [item for item in items.values() if item is not None],
            order=Order.park,
            chance=random.random,
            receiving=True,
        )
        if not plan.items:
            return [], []
        store, consumer = self._home._store, self._home.name
        claims = yield from take_in(
            store,
            work,
            consumer,
            plan.arrivals,
            gaps=self._home._gaps,
            receiving=True,
            keep_payload=self._home._keep_payload,
        )
        plan.decide(claims)
        yield from store.record(work, consumer, worker_name(0), plan.entries)
        fates = dict(zip(plan.items, plan.outcomes, strict=True))
        found = [(letter, item) for letter in letters if (item := items[letter.id]) is not None]
        refused = [x for x, item in found if fates[item].kind is Kind.quarantined]
        return [x for x, _ in found if x not in refused], refused

    def _item(self, letter: DeadLetter) -> Item | None:
        """The letter as an arrival: with today's identity, or one that sets its bytes apart."""
        delivery = Delivery(
            letter.payload, letter.headers, letter.key, letter.source, letter.coordinates
        )
        item = Item(delivery)
        try:
            of_its_own = letter.reason == Reason.other_bytes
            item.message = _apart(letter) if of_its_own else self._home.identity(delivery)
        except Unidentified:
            return None
        return item


def _apart(letter: DeadLetter) -> Message:
    """A message of the same id with other bytes, that is to be run all the same."""
    digest = (letter.content_hash or b"").hex()
    room = LIMIT - 1 - len(digest)
    return Message(
        id=(letter.message_id or "").encode()[:room].decode(errors="ignore") + f"~{digest}",
        payload=letter.payload,
        origin=letter.origin or "default",
        type=letter.type or "",
        version=letter.version or 0,
        key=letter.key,
        headers=letter.headers,
        occurred_at=letter.occurred_at,
        content_hash=letter.content_hash,
    )


def _matching(ids: Iterable[int], filter: Filter) -> Matching:
    numbers = list(ids)
    for number in numbers:
        if isinstance(number, bool) or not isinstance(number, int):
            raise ConfigurationError(f"a dead letter's number is an integer, not {number!r}")
    unknown = sorted(set(filter) - set(Filter.__annotations__))
    if unknown:
        known = ", ".join(Filter.__annotations__)
        raise ConfigurationError(f"unknown filter {unknown[0]!r}; the filters are {known}")
    values: dict[str, Any] = dict(filter)
    return Matching(ids=numbers or None, **values)


def _check_found(ids: Sequence[int], found: int) -> None:
    if ids and not found:
        numbers = ", ".join(map(str, ids))
        raise NotFound(f"there is no dead letter {numbers} in this inbox")
