"""Plan: what happens to each delivery of a batch. Pure: it decides, and the unit of work acts."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from operator import attrgetter
from typing import Any

from oncebox.errors import (
    ConfigurationError,
    MissingId,
    OnceboxError,
    PayloadTooLarge,
    Undecodable,
    UnknownType,
    UnknownVersion,
)
from oncebox.model.message import Delivery, Message
from oncebox.model.ordering import Ordering, in_key_order
from oncebox.model.outcome import Kind, Outcome, Reason
from oncebox.model.retry import reason_of
from oncebox.processing.handlers import Registry, Route
from oncebox.storage.records import Arrival, Claims, ClaimState, Entry, PendingMessage

_ON_ARRIVAL: dict[type[OnceboxError], Reason] = {
    Undecodable: Reason.undecodable,
    UnknownType: Reason.unknown_type,
    UnknownVersion: Reason.unknown_version,
    PayloadTooLarge: Reason.too_large,
}

_QUARANTINED = {
    ClaimState.payload_mismatch: Reason.payload_mismatch,
    ClaimState.too_late: Reason.too_late,
    ClaimState.late_sequence: Reason.late_sequence,
    ClaimState.sequence_taken: Reason.sequence_taken,
}

_NOBODY = sys.maxsize

Rule = Callable[[Delivery], Message]
"""An identity. It raises Unidentified, and nothing else."""


class Item:
    """A delivery, as far as it is understood without the database."""

    __slots__ = ("_decoded", "delivery", "error", "ignored", "message", "route", "stored")

    def __init__(self, delivery: Delivery, stored: PendingMessage | None = None) -> None:
        self.delivery = delivery
        self.stored = stored
        """What it was before, if it had been stored."""
        self.message: Message | None = stored.message if stored else None
        self.route: Route | None = None
        self.error: OnceboxError | None = None
        self.ignored = False
        self._decoded: Any = None

    @property
    def key(self) -> str | None:
        return self.message.key if self.message else None

    def decode(self) -> None:
        """Decode the payload ahead of the transaction. Raises Undecodable."""
        if self.route is not None and self.message is not None:
            self._decoded = (self.route.decode(self.message),)

    def payload(self) -> Any:
        """A payload of the handler's own: a handler that runs again gets a fresh one."""
        if self._decoded is None:
            self.decode()
        (value,), self._decoded = self._decoded, None
        return value


def read(
    deliveries: Sequence[Delivery], identity: Rule, registry: Registry, *, decode: bool = True
) -> list[Item]:
    """Identify, route and decode each delivery; what cannot be is kept with its error."""
    return [_read(delivery, identity, registry, decode) for delivery in deliveries]


def _read(delivery: Delivery, identity: Rule, registry: Registry, decode: bool) -> Item:
    item = Item(delivery)
    try:
        if delivery.defect is not None:
            raise MissingId(delivery.defect)
        item.message = identity(delivery)
    except MissingId as error:
        item.error = error
        return item
    # What may kill its process is not even decoded before that is written down.
    _route(item, item.message, registry, decode=decode and not delivery.redelivered)
    return item


def read_stored(
    rows: Sequence[PendingMessage], registry: Registry, *, decode: bool = True
) -> list[Item]:
    """Route and decode messages that were stored; what cannot be is kept with its error."""
    items = [Item(row.delivery, row) for row in rows]
    for item, row in zip(items, rows, strict=True):
        _route(item, row.message, registry, decode=decode)
    return items


def _route(item: Item, message: Message, registry: Registry, *, decode: bool) -> None:
    try:
        if registry.ignores(message):
            item.ignored = True
            return
        item.route = registry.route(message)
        if decode:
            item.decode()
    except tuple(_ON_ARRIVAL) as error:
        item.error = error


def cut(rows: Sequence[PendingMessage]) -> list[PendingMessage]:
    """The messages that may run together, of what was read lane by lane, in order.

    One that failed before, or may kill its process, runs by itself, and nothing of its lane before
    it has: so a lane ends before its first such message. Nor does a batch hold a message twice, as
    it may be where replays overlap.
    """
    if rows and rows[0].runs_separately:
        return [rows[0]]
    closed: set[int] = set()
    names: set[tuple[str, str]] = set()
    together = []
    for row in rows:
        if row.runs_separately or (row.replay and (row.message.origin, row.message.id) in names):
            closed.add(row.lane)
        elif row.lane not in closed:
            together.append(row)
            if row.replay:
                names.add((row.message.origin, row.message.id))
    return together


class Plan:
    """The fate of a batch's items, decided one by one."""

    def __init__(
        self,
        items: Sequence[Item],
        *,
        ordering: Ordering,
        chance: Callable[[], float],
        failed: BaseException | None = None,
        isolated: BaseException | None = None,
        receiving: bool = False,
    ) -> None:
        self.items = items
        self._ordering = ordering
        self._chance = chance
        self._failed = failed
        """What the whole batch failed with before; nothing is run any more."""
        self._alone = isolated
        """Why nothing is run, but everything stored."""
        self.is_committing = False
        """Whether our own COMMIT was sent: from then on its claims may be committed."""
        self.token: Any = None
        """What the store knows the transaction of the claim by."""
        self._receiving = receiving
        """Nothing is run: the claim stores everything."""
        self._numbers: dict[Item, int] = {}
        self._twins: dict[Item, Item] = {}
        self._seqs: dict[Item, int | None] = {}
        self._entries: dict[Item, Entry] = {}
        self._held: dict[str, int] = {}
        """The keys that have to wait, and the number of the message from which on they do."""

    @property
    def is_receiving(self) -> bool:
        return self._receiving

    @cached_property
    def arrivals(self) -> list[Arrival]:
        """The messages to claim: of equal ones the first, whose duplicates the others are."""
        arrivals: list[Arrival] = []
        first: dict[tuple[str, str, bytes | None], Item] = {}
        for item in self.items:
            message = item.message
            if message is None or self._is_nothing(item):
                continue
            name = (message.origin, message.id, message.content_hash)
            if first.setdefault(name, item) is not item:
                self._twins[item] = first[name]
                continue
            self._numbers[item] = len(arrivals)
            arrivals.append(Arrival(message, item.delivery))
        return arrivals

    @staticmethod
    def _is_nothing(item: Item) -> bool:
        """Whether it is not even claimed: nobody wants it, nor does its number count."""
        return item.ignored and (item.message is None or item.message.sequence is None)

    # -- after the claim --------------------------------------------------------------------------

    def decide(self, claims: Claims) -> list[Item]:
        """Settle what needs no handler, in arrival order; returns the rest in key order."""
        if ClaimState.refused in claims.answers:
            raise ConfigurationError(
                "messages with keys can be kept in order only at READ COMMITTED, and this "
                "connection begins its transactions at a stricter level: give the inbox a pool or "
                "an engine of its own"
            )
        self.token = claims.token
        runnable = [item for item in self.items if self._decide(item, claims)]
        return in_key_order(runnable, attrgetter("key"))

    def _decide(self, item: Item, claims: Claims) -> bool:
        """Whether the item is to be run."""
        if self._is_nothing(item):
            self._settle(item, Kind.ignored)
        elif item.message is None:
            self._settle(item, Kind.quarantined, reason=Reason.missing_id, error=item.error)
        elif item in self._twins:
            self._decide_twin(item, self._entries.get(self._twins[item]))
        else:
            number = self._numbers[item]
            self._seqs[item] = claims.seqs[number]
            return self._decide_claimed(item, claims.answers[number])
        return False

    def _decide_twin(self, item: Item, first: Entry | None) -> None:
        if first is not None and first.outcome.reason is Reason.payload_mismatch:
            self._settle(item, Kind.quarantined, reason=Reason.payload_mismatch)
        else:
            self._settle(item, Kind.duplicate)

    def _decide_claimed(self, item: Item, answer: str) -> bool:
        if answer == ClaimState.duplicate:
            self._settle(item, Kind.duplicate)
        elif answer in _QUARANTINED:
            self._settle(item, Kind.quarantined, reason=_QUARANTINED[answer])
        elif answer == ClaimState.awaiting_sequence:
            self._settle(item, Kind.blocked, kept=True)
        elif answer == ClaimState.stored:
            self._settle(item, Kind.stored, kept=True)
        elif self._receiving:
            self._settle(
                item, Kind.blocked if answer == ClaimState.blocked else Kind.stored, kept=True
            )
        elif answer in (ClaimState.blocked, ClaimState.queued):
            ready = answer == ClaimState.queued
            self._settle(item, Kind.blocked, ready=ready, isolated=item.delivery.redelivered)
        else:
            return self._admit(item)
        return False

    def resume(self) -> list[Item]:
        """The messages had been stored, and are taken out: as decide()."""
        for number, item in enumerate(self.items):
            assert item.stored is not None
            self._numbers[item] = number
            self._seqs[item] = item.stored.seq
        runnable = [item for item in self.items if self._admit(item)]
        return in_key_order(runnable, attrgetter("key"))

    def _admit(self, item: Item) -> bool:
        """Whether a message whose turn it is, is to be run."""
        if self._waits(item):
            self._settle(item, Kind.blocked, isolated=item.delivery.redelivered)
        elif item.ignored:  # since it was stored
            self._settle(item, Kind.ignored)
        elif item.error is not None:
            self._bury(item, _ON_ARRIVAL[type(item.error)], item.error, attempts=_runs(item))
        elif self._failed is not None:
            self.fail(item, self._failed)
        elif self._alone is not None:
            self._settle(item, Kind.stored, ready=True, isolated=True, error=self._alone)
        elif item.delivery.redelivered:
            self._hold(item)
            self._settle(item, Kind.stored, ready=True, isolated=True)
        else:
            return True
        return False

    # -- while handlers run -----------------------------------------------------------------------

    def unheld(self, items: Sequence[Item]) -> list[Item]:
        """The items that may still run; the others are parked behind their key's failure."""
        if not self._held:
            return list(items)
        free = []
        for item in items:
            if self._waits(item):
                self._settle(item, Kind.blocked)
            else:
                free.append(item)
        return free

    def done(self, items: Sequence[Item]) -> None:
        """Their handlers' work stays."""
        for item in items:
            stored = item.stored
            runs = 0 if stored is None else stored.attempts + 1
            outcome = Outcome(Kind.done, item.delivery, item.message, attempts=runs)
            self._entries[item] = Entry(
                outcome, self._seqs[item], ran=stored is not None, stored=stored
            )

    def fail(self, item: Item, error: BaseException, duration: float | None = None) -> None:
        """Its handler raised: another attempt later, or a dead letter. Either may hold its key.

        If its key is held by now, it only waits: what it ran on has not happened.
        """
        assert item.route is not None
        if self._waits(item):
            self._settle(item, Kind.blocked)
            return
        run: dict[str, Any] = {"attempts": _runs(item) + 1, "duration": duration, "ran": True}
        delay = item.route.handler.retry.delay(_runs(item) + 1, error, self._chance())
        if delay is None:
            self._bury(item, reason_of(error), error, **run)
        else:
            self._hold(item)
            self._settle(item, Kind.failed, error=error, retry_in=delay, **run)

    def kill(self, item: Item, reason: Reason, error: BaseException) -> None:
        """It is not run again: a dead letter."""
        self._bury(item, reason, error, attempts=_runs(item))

    def store(self, items: Sequence[Item]) -> None:
        """Not run now: stored to be run one by one; what follows them in their keys waits."""
        for item in items:
            self._hold(item)
            self._settle(item, Kind.stored, ready=True, isolated=True)

    @property
    def has_failures(self) -> bool:
        return bool(self._held) or any(e.ran for e in self._entries.values() if e.outcome.error)

    @property
    def new(self) -> dict[Item, int]:
        """What this transaction has claimed and not stored yet, with its sequence numbers."""
        kept = {item for item, entry in self._entries.items() if entry.kept}
        return {i: seq for i, seq in self._seqs.items() if seq is not None and i not in kept}

    def bury_all(self, seqs: Mapping[Item, int], error: BaseException) -> None:
        """The items were claimed by a transaction that a handler committed: dead letters."""
        for number, item in enumerate(self.items):
            self._numbers[item], self._seqs[item] = number, seqs[item]
            self._bury(item, Reason.transaction_lost, error)

    # -- the result -------------------------------------------------------------------------------

    @property
    def entries(self) -> list[Entry]:
        """Everything to be written down, in arrival order."""
        return [self._entries[item] for item in self.items]

    @property
    def outcomes(self) -> list[Outcome]:
        """What became of each delivery, in arrival order."""
        return [self._entries[item].outcome for item in self.items]

    def _bury(self, item: Item, reason: Reason, error: BaseException, **details: Any) -> None:
        ordering = item.route.handler.ordering if item.route else self._ordering
        blocks_key = (
            ordering is Ordering.strict
            and item.key is not None
            and reason is not Reason.unknown_type
        )
        if blocks_key:
            self._hold(item)
        self._settle(item, Kind.dead, reason=reason, error=error, blocks_key=blocks_key, **details)

    def _hold(self, item: Item) -> None:
        if item.key is not None:
            number = self._numbers[item]
            self._held[item.key] = min(number, self._held.get(item.key, number))

    def _waits(self, item: Item) -> bool:
        """Whether an earlier message of its key is unfinished."""
        return item.key is not None and self._numbers[item] > self._held.get(item.key, _NOBODY)

    def _settle(
        self,
        item: Item,
        kind: Kind,
        *,
        blocks_key: bool = False,
        ready: bool = False,
        isolated: bool = False,
        kept: bool = False,
        ran: bool = False,
        duration: float | None = None,
        **details: Any,
    ) -> None:
        outcome = Outcome(kind, item.delivery, item.message, **details)
        seq = self._seqs.get(item)
        self._entries[item] = Entry(
            outcome, seq, blocks_key, ready, isolated, kept, ran, duration, item.stored
        )


def _runs(item: Item) -> int:
    """How often it failed before."""
    return item.stored.attempts if item.stored else 0
