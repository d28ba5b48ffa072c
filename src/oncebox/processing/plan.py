"""Plan: the pure decisions about each message of a batch. The unit of work carries them out."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from operator import attrgetter
from typing import Any

from oncebox.errors import ConfigurationError
from oncebox.model.ordering import Ordering, in_key_order
from oncebox.model.outcome import Kind, Outcome, Reason
from oncebox.model.retry import reason_of
from oncebox.processing.routing import ROUTING_ERRORS, Item
from oncebox.storage.records import TOO_STRICT, Arrival, Claims, ClaimState, Entry

_QUARANTINED = {
    ClaimState.payload_mismatch: Reason.payload_mismatch,
    ClaimState.too_late: Reason.too_late,
    ClaimState.late_sequence: Reason.late_sequence,
    ClaimState.sequence_taken: Reason.sequence_taken,
}


class Plan:
    """The outcome of each item of a batch, decided one by one."""

    def __init__(
        self,
        items: Sequence[Item],
        *,
        ordering: Ordering,
        random: Callable[[], float],
        failed: BaseException | None = None,
        isolated: BaseException | None = None,
        receiving: bool = False,
    ) -> None:
        self.items = items
        self._ordering = ordering
        self._random = random
        self._failed = failed
        """The error of the whole batch: no handler runs, and each message has failed with it."""
        self._isolated = isolated
        """Why no handler runs, and each message is stored to run isolated."""
        self.is_receiving = receiving
        """Whether no handler runs, because the messages are stored for a worker."""
        self.is_committing = False
        """Whether COMMIT was sent: from then on the claims may be committed."""
        self.token: Any = None
        """Identifies the transaction of the claim for the store."""
        self._numbers: dict[Item, int] = {}
        self._first: dict[Item, Item] = {}
        """The earlier item of this batch with the same id, for items that repeat one."""
        self._seqs: dict[Item, int | None] = {}
        self._entries: dict[Item, Entry] = {}
        self._blocked_from: dict[str, int] = {}
        """The blocked keys, and the number of the unfinished item that blocks each."""

    @cached_property
    def arrivals(self) -> list[Arrival]:
        """The messages to claim. Of several equal ones, only the first is claimed."""
        arrivals: list[Arrival] = []
        first: dict[tuple[str, str, bytes | None], Item] = {}
        for item in self.items:
            message = item.message
            if message is None or _needs_no_claim(item):
                continue
            name = (message.origin, message.id, message.content_hash)
            if first.setdefault(name, item) is not item:
                self._first[item] = first[name]
                continue
            self._numbers[item] = len(arrivals)
            arrivals.append(Arrival(message, item.delivery))
        return arrivals

    # -- after the claim --------------------------------------------------------------------------

    def decide(self, claims: Claims) -> list[Item]:
        """Decide the items that need no handler. Returns the others, in key order."""
        if ClaimState.refused in claims.answers:
            raise ConfigurationError(TOO_STRICT)
        self.token = claims.token
        runnable = [item for item in self.items if self._may_run(item, claims)]
        return in_key_order(runnable, attrgetter("key"))

    def _may_run(self, item: Item, claims: Claims) -> bool:
        """Whether the handler of an item runs now. If not, its outcome is decided."""
        if _needs_no_claim(item):
            self._conclude(item, Kind.ignored)
        elif item.message is None:
            self._conclude(item, Kind.quarantined, reason=Reason.missing_id, error=item.error)
        elif item in self._first:
            self._conclude_repeated(item, self._entries.get(self._first[item]))
        else:
            number = self._numbers[item]
            self._seqs[item] = claims.seqs[number]
            return self._may_run_claimed(item, claims.answers[number])
        return False

    def _conclude_repeated(self, item: Item, first: Entry | None) -> None:
        if first is not None and first.outcome.reason is Reason.payload_mismatch:
            self._conclude(item, Kind.quarantined, reason=Reason.payload_mismatch)
        else:
            self._conclude(item, Kind.duplicate)

    def _may_run_claimed(self, item: Item, answer: str) -> bool:
        if answer == ClaimState.duplicate:
            self._conclude(item, Kind.duplicate)
        elif answer in _QUARANTINED:
            self._conclude(item, Kind.quarantined, reason=_QUARANTINED[answer])
        elif answer == ClaimState.awaiting_sequence:
            self._conclude(item, Kind.blocked, kept=True)
        elif answer == ClaimState.stored:
            self._conclude(item, Kind.stored, kept=True)
        elif self.is_receiving:
            kind = Kind.blocked if answer == ClaimState.blocked else Kind.stored
            self._conclude(item, kind, kept=True)
        elif answer in (ClaimState.blocked, ClaimState.queued):
            ready = answer == ClaimState.queued
            self._conclude(item, Kind.blocked, ready=ready, isolated=item.delivery.redelivered)
        else:
            return self._is_admitted(item)
        return False

    def resume(self) -> list[Item]:
        """As decide(), for messages that were stored before and are removed from the queue."""
        for number, item in enumerate(self.items):
            assert item.stored is not None
            self._numbers[item] = number
            self._seqs[item] = item.stored.seq
        runnable = [item for item in self.items if self._is_admitted(item)]
        return in_key_order(runnable, attrgetter("key"))

    def _is_admitted(self, item: Item) -> bool:
        """Whether the handler runs now, for a message that no stored message precedes."""
        if self._is_blocked(item):
            self._conclude(item, Kind.blocked, isolated=item.delivery.redelivered)
        elif item.ignored:  # ignore() was called after it was stored
            self._conclude(item, Kind.ignored)
        elif item.error is not None:
            reason = ROUTING_ERRORS[type(item.error)]
            self.make_dead(item, reason, item.error)
        elif self._failed is not None:
            self.fail(item, self._failed)
        elif self._isolated is not None:
            self._conclude(item, Kind.stored, ready=True, isolated=True, error=self._isolated)
        elif item.delivery.redelivered:
            self._block_key(item)
            self._conclude(item, Kind.stored, ready=True, isolated=True)
        else:
            return True
        return False

    # -- while handlers run -----------------------------------------------------------------------

    def unblocked(self, items: Sequence[Item]) -> list[Item]:
        """The items that may still run; the others are blocked by a failure of their key."""
        if not self._blocked_from:
            return list(items)
        free = []
        for item in items:
            if self._is_blocked(item):
                self._conclude(item, Kind.blocked)
            else:
                free.append(item)
        return free

    def done(self, items: Sequence[Item]) -> None:
        """Their handlers succeeded."""
        for item in items:
            stored = item.stored
            runs = 0 if stored is None else stored.attempts + 1
            outcome = Outcome(Kind.done, item.delivery, item.message, attempts=runs)
            self._entries[item] = Entry(
                outcome, self._seqs[item], ran=stored is not None, stored=stored
            )

    def fail(self, item: Item, error: BaseException, duration: float | None = None) -> None:
        """Its handler failed: it is retried later, or becomes a dead letter.

        If an earlier message of its key failed too, it is only blocked: that run did not count.
        """
        assert item.route is not None
        if self._is_blocked(item):
            self._conclude(item, Kind.blocked)
            return
        attempts = _attempts(item) + 1
        run: dict[str, Any] = {"attempts": attempts, "duration": duration, "ran": True}
        delay = item.route.handler.retry.delay(attempts, error, self._random())
        if delay is None:
            self._conclude_dead(item, reason_of(error), error, **run)
        else:
            self._block_key(item)
            self._conclude(item, Kind.failed, error=error, retry_in=delay, **run)

    def make_dead(self, item: Item, reason: Reason, error: BaseException) -> None:
        """It does not run again: a dead letter."""
        self._conclude_dead(item, reason, error, attempts=_attempts(item))

    def store_isolated(self, items: Sequence[Item]) -> None:
        """They do not run now, but later and isolated. They block their keys."""
        for item in items:
            self._block_key(item)
            self._conclude(item, Kind.stored, ready=True, isolated=True)

    @property
    def has_failures(self) -> bool:
        """Whether a message of this batch failed."""
        if self._blocked_from:
            return True
        return any(e.ran for e in self._entries.values() if e.outcome.error is not None)

    @property
    def claimed(self) -> dict[Item, int]:
        """The messages that this transaction claimed and did not store, with their seq."""
        kept = {item for item, entry in self._entries.items() if entry.kept}
        return {i: seq for i, seq in self._seqs.items() if seq is not None and i not in kept}

    def make_all_dead(self, seqs: Mapping[Item, int], error: BaseException) -> None:
        """Dead letters, all of them: a handler committed the transaction that claimed them."""
        for number, item in enumerate(self.items):
            self._numbers[item], self._seqs[item] = number, seqs[item]
            self._conclude_dead(item, Reason.transaction_lost, error)

    # -- the result -------------------------------------------------------------------------------

    @property
    def entries(self) -> list[Entry]:
        """What the store records, in arrival order."""
        return [self._entries[item] for item in self.items]

    @property
    def outcomes(self) -> list[Outcome]:
        """The outcome of each delivery, in arrival order."""
        return [self._entries[item].outcome for item in self.items]

    def _conclude_dead(
        self, item: Item, reason: Reason, error: BaseException, **details: Any
    ) -> None:
        ordering = item.route.handler.ordering if item.route else self._ordering
        blocks_key = (
            ordering is Ordering.strict
            and item.key is not None
            and reason is not Reason.unknown_type
        )
        if blocks_key:
            self._block_key(item)
        details |= {"reason": reason, "error": error, "blocks_key": blocks_key}
        self._conclude(item, Kind.dead, **details)

    def _block_key(self, item: Item) -> None:
        if item.key is not None:
            number = self._numbers[item]
            self._blocked_from[item.key] = min(number, self._blocked_from.get(item.key, number))

    def _is_blocked(self, item: Item) -> bool:
        """Whether an earlier message of its key is unfinished."""
        if item.key is None or not self._blocked_from:
            return False
        return self._numbers[item] > self._blocked_from.get(item.key, sys.maxsize)

    def _conclude(
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


def _needs_no_claim(item: Item) -> bool:
    """Whether its type is ignored and it has no sequence number."""
    return item.ignored and (item.message is None or item.message.sequence is None)


def _attempts(item: Item) -> int:
    """How often its handler failed before this transaction."""
    return item.stored.attempts if item.stored else 0
