"""Dead letters: find, retry and discard them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Unpack

import msgspec

from oncebox.errors import ConfigurationError, MissingId, NotFound
from oncebox.model.dead_letter import DeadLetter
from oncebox.model.filters import DeadLetterFilter, checked_dead_letter_filter
from oncebox.model.identity.validation import LIMIT
from oncebox.model.inspection import DeadLetterGroup
from oncebox.model.message import Delivery, Message
from oncebox.model.ordering import Ordering
from oncebox.model.outcome import Kind, Reason
from oncebox.operations.audit import audit_entry
from oncebox.operations.fingerprints import full_fingerprint
from oncebox.operations.methods import async_method, sync_method
from oncebox.processing.context import Context
from oncebox.processing.plan import Plan
from oncebox.processing.resequencing import claim_in_sequence
from oncebox.processing.routing import Item
from oncebox.storage.drivers.contract import Work
from oncebox.storage.drivers.transactions import run_transaction
from oncebox.storage.records import AuditEntry
from oncebox.storage.steps import Steps
from oncebox.storage.worker_identity import worker_name

CHUNK = 200
"""Dead letters per transaction. Each may lock a key, and the lock table of a server is limited."""

LONGEST_KEY = 10_000
"""Limit for the additional dead letters of the same keys in one transaction."""


class Acted(msgspec.Struct, frozen=True):
    """The result of retry() or discard()."""

    done: int
    """How many dead letters were retried or discarded."""
    left: int
    """How many were not: they were deleted meanwhile, still have no id, were quarantined for
    another reason, or another transaction held the lock of their key."""
    without_id: int = 0
    """How many of those left are deliveries in which the identity rules find no id."""


class DeadLetters:
    """The dead letters and the quarantine of an inbox: `inbox.dead_letters`.

    `retry` makes a dead letter the first pending message of its key, and releases a quarantined
    delivery. `discard` deletes it and unblocks its key. Both take ids, or the filters of `find`,
    and are recorded in the audit log.
    """

    def __init__(self, context: Context) -> None:
        self._context = context

    def _find(
        self,
        is_async: bool,
        *ids: int,
        limit: int = 100,
        after: int = 0,
        **filter: Unpack[DeadLetterFilter],
    ) -> Steps[list[DeadLetter]]:
        """Find the dead letters that match, oldest first. `after`: only those with a higher id."""
        return (
            yield from self._context.read(
                is_async,
                self._context.store.find_dead_letters,
                (yield from self._checked(is_async, filter)),
                ids=_checked_ids(ids),
                limit=limit,
                after=after,
            )
        )

    find = sync_method(_find)
    afind = async_method(_find)

    def _groups(
        self, is_async: bool, *ids: int, limit: int = 50, **filter: Unpack[DeadLetterFilter]
    ) -> Steps[list[DeadLetterGroup]]:
        """Count the dead letters that match, by state, reason and error."""
        return (
            yield from self._context.read(
                is_async,
                self._context.store.dead_letter_groups,
                (yield from self._checked(is_async, filter)),
                ids=_checked_ids(ids),
                limit=limit,
            )
        )

    groups = sync_method(_groups)
    agroups = async_method(_groups)

    def _retry(
        self,
        is_async: bool,
        *ids: int,
        why: str,
        by: str | None = None,
        everything: bool = False,
        progress: Callable[[int], None] | None = None,
        **filter: Unpack[DeadLetterFilter],
    ) -> Steps[Acted]:
        """Make dead letters pending: a worker runs them before the waiting messages of their keys.

        `by` is the operator; the default is the user of this process. `progress` gets the number of
        dead letters done so far. Without ids or filters, pass `everything=True`.
        """
        return self._act("retry", is_async, ids, filter, why, by, everything, progress)

    retry = sync_method(_retry)
    aretry = async_method(_retry)

    def _discard(
        self,
        is_async: bool,
        *ids: int,
        why: str,
        by: str | None = None,
        everything: bool = False,
        progress: Callable[[int], None] | None = None,
        **filter: Unpack[DeadLetterFilter],
    ) -> Steps[Acted]:
        """Delete dead letters and unblock their keys. The parameters are those of retry()."""
        return self._act("discard", is_async, ids, filter, why, by, everything, progress)

    discard = sync_method(_discard)
    adiscard = async_method(_discard)

    def _act(
        self,
        action: str,
        is_async: bool,
        ids: Sequence[int],
        filter: DeadLetterFilter,
        why: str,
        by: str | None,
        everything: bool,
        progress: Callable[[int], None] | None,
    ) -> Steps[Acted]:
        if not (everything or ids or any(filter.values())):
            raise ConfigurationError(f"{action}() needs ids or filters, or everything=True")
        audit = audit_entry(action, by, why)
        checked = yield from self._checked(is_async, filter)
        database = yield from self._context.open(is_async)
        newest = yield from self._context.read(is_async, self._context.store.newest_dead_letter)
        act = partial(self._chunk, audit, checked, _checked_ids(ids), newest)
        done = left = without_id = after = 0
        while True:
            letters, acted, no_id = yield from run_transaction(database, partial(act, after))
            done, left = done + acted, left + len(letters) - acted
            without_id += no_id
            if progress is not None and letters:
                progress(done)
            if len(letters) < CHUNK:
                break
            after = letters[CHUNK - 1].id
        _check_found(ids, done + left)
        return Acted(done, left, without_id)

    def _checked(self, is_async: bool, filter: DeadLetterFilter) -> Steps[DeadLetterFilter]:
        """The validated filter, with the full fingerprint."""
        checked = checked_dead_letter_filter(filter)
        given = checked.get("fingerprint")
        if given is not None:
            checked["fingerprint"] = yield from full_fingerprint(self._context, is_async, given)
        return checked

    def _chunk(
        self,
        audit: AuditEntry,
        filter: DeadLetterFilter,
        ids: list[int] | None,
        newest: int,
        after: int,
        work: Work,
    ) -> Steps[tuple[list[DeadLetter], int, int]]:
        """Retry or discard some dead letters in one transaction.

        Returns the dead letters that were found, how many were changed, and how many have no id.
        """
        store, consumer = self._context.store, self._context.consumer
        find = partial(store.find_dead_letters, work, consumer, filter, ids=ids, up_to=newest)
        letters = yield from find(limit=CHUNK, after=after)
        if not letters:
            return letters, 0, 0
        # Whole keys: a later dead letter of a key must not run before the earlier ones are pending.
        keys = sorted({letter.key for letter in letters if letter.key is not None})
        rest = yield from find(keys=keys, limit=LONGEST_KEY, after=letters[-1].id)
        letters += rest
        free = yield from store.lock_dead_letters(work, consumer, letters)
        if audit.action == "discard":
            yield from store.discard_dead_letters(work, consumer, free, audit)
            return letters, len(free), 0
        unclaimed = [letter for letter in free if letter.seq is None]
        known = [letter for letter in free if letter.seq is not None]
        admitted, refused = yield from self._admit(work, unclaimed)
        if admitted or refused:
            yield from store.discard_dead_letters(work, consumer, [*admitted, *refused], audit)
        if known:
            yield from store.retry_dead_letters(work, consumer, known, audit)
        without_id = len(unclaimed) - len(admitted) - len(refused)
        return letters, len(known) + len(admitted), without_id

    def _admit(
        self, work: Work, letters: Sequence[DeadLetter]
    ) -> Steps[tuple[list[DeadLetter], list[DeadLetter]]]:
        """Claim quarantined deliveries that were never claimed, as if they arrived now.

        Returns those that were claimed, and those that are now quarantined for another reason.
        Deliveries that still have no id are in neither list.
        """
        items = {letter.id: self._item(letter) for letter in letters}
        plan = Plan(
            [item for item in items.values() if item is not None],
            ordering=Ordering.strict,
            random=random.random,
            receiving=True,
        )
        if not plan.items:
            return [], []
        store, consumer = self._context.store, self._context.consumer
        claims = yield from claim_in_sequence(
            store,
            work,
            consumer,
            plan.arrivals,
            gaps=self._context.gaps,
            receiving=True,
            keep_payload=self._context.keep_payload,
        )
        plan.decide(claims)
        yield from store.record(work, consumer, worker_name(0), plan.entries)
        outcomes = dict(zip(plan.items, plan.outcomes, strict=True))
        found = [(letter, item) for letter in letters if (item := items[letter.id]) is not None]
        refused = [x for x, item in found if outcomes[item].kind is Kind.quarantined]
        return [x for x, _ in found if x not in refused], refused

    def _item(self, letter: DeadLetter) -> Item | None:
        """The dead letter as a new delivery.

        It gets the id that the identity rules find today, or a new id, if its old id was claimed
        with another payload.
        """
        delivery = Delivery(
            letter.payload, letter.headers, letter.key, letter.source, letter.coordinates
        )
        item = Item(delivery)
        try:
            is_mismatch = letter.reason == Reason.payload_mismatch
            message = _with_own_id(letter) if is_mismatch else self._context.identity(delivery)
        except MissingId:
            return None
        item.message, item.key = message, message.key
        return item


def _with_own_id(letter: DeadLetter) -> Message:
    """The message with an id of its own: its old id belongs to a message with another payload."""
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


def _checked_ids(ids: Iterable[int]) -> list[int] | None:
    numbers = list(ids)
    for number in numbers:
        if isinstance(number, bool) or not isinstance(number, int):
            raise ConfigurationError(f"the id of a dead letter is an integer, got {number!r}")
    return numbers or None


def _check_found(ids: Sequence[int], found: int) -> None:
    if ids and not found:
        numbers = ", ".join(map(str, ids))
        raise NotFound(
            f"there is no dead letter {numbers} in this inbox: it was retried or discarded, or "
            "never existed"
        )
