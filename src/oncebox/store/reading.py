"""Reading: what operators look at. The same on every database, but for how it keeps time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import msgspec

from oncebox.store.contract import Connection, Steps
from oncebox.store.dialect import Dialect

MANY = 100_001
"""Rows that are counted at most: beyond, it does not matter any more."""

T = TypeVar("T")


class Rates(msgspec.Struct, frozen=True):
    """What happened within some minutes."""

    received: int
    done: int
    duplicate: int
    failed: int
    dead: int
    quarantined: int


class DeadCount(msgspec.Struct, frozen=True):
    """How many died of a reason."""

    state: str
    reason: str
    count: int
    keys: int
    """How many keys wait for them."""


class WorkerSeen(msgspec.Struct, frozen=True):
    """A drainer, as it was last heard of."""

    name: str
    batch: int
    started_at: datetime
    beat_at: datetime
    is_overdue: bool


class PartSeen(msgspec.Struct, frozen=True):
    """A part of a source, and how far it was read."""

    source: str
    part: str
    next: int
    lag: int | None
    """How much was there that was not read yet, when its reader was last heard of."""
    settled: int | None
    """The position that the broker knows."""
    owner: str | None
    owned_at: datetime | None
    """Since when it has this reader."""
    suspects: int
    moved_at: datetime
    is_overdue: bool


class Status(msgspec.Struct, frozen=True):
    """How a consumer is."""

    consumer: str
    ready: int
    retrying: int
    parked: int
    alone: int
    early: int
    """How many wait for numbers before their own."""
    gaps: int
    """How many keys wait for a number."""
    oldest_gap: datetime | None
    oldest_pending: datetime | None
    forgotten_before: datetime | None
    """What came before is forgotten, and would be quarantined if it came anew."""
    kept_house_at: datetime | None
    """When somebody last looked for what may be forgotten."""
    hold_until: datetime | None
    """Nothing is forgotten before, because something was restored."""
    dead: Sequence[DeadCount]
    rates: Mapping[int, Rates]
    """By minutes: 1, 5 and 60."""
    workers: Sequence[WorkerSeen]
    parts: Sequence[PartSeen]


class Seen(msgspec.Struct, frozen=True):
    """A message in a list."""

    seq: int
    origin: str
    message_id: str
    type: str
    version: int
    key: str | None
    state: str
    reason: str | None
    attempts: int
    received_at: datetime
    processed_at: datetime | None
    last_error: str | None


class Attempt(msgspec.Struct, frozen=True):
    """A run of a handler."""

    replay: int
    """0, or the number of the replay that it belongs to."""
    number: int
    outcome: str
    error: str | None
    duration: float | None
    worker: str
    ended_at: datetime


class Action(msgspec.Struct, frozen=True):
    """What an operator did."""

    act: str
    by: str
    why: str
    replay: int
    at: datetime


class Detail(msgspec.Struct, frozen=True):
    """Everything about a message."""

    message: Seen
    payload: bytes | None
    headers: str | None
    source: str | None
    coordinates: str | None
    occurred_at: datetime | None
    waits: str | None
    """What it waits for, if it is pending and not ready."""
    letter: int | None
    """Its number among the dead letters."""
    attempts: Sequence[Attempt]
    actions: Sequence[Action]


class DeadGroup(msgspec.Struct, frozen=True):
    """Dead letters that died of the same."""

    state: str
    reason: str
    fingerprint: str
    type: str | None
    count: int
    first: int
    last: int
    died_at: datetime
    error: str | None


class Reading(Dialect):
    """A store, as far as people look into it."""

    def status(self, connection: Connection, consumer: str) -> Steps[Status]:
        """How a consumer is."""
        some = {"consumer": consumer, "limit": MANY, "now": self._kept(datetime.now(UTC))}
        pending = (yield from connection.fetch(self._sql["count_pending"], some))[0]
        oldest = yield from connection.fetch(self._sql["oldest_pending"], some)
        early = (yield from connection.fetch(self._sql["count_early"], some))[0]
        house = yield from connection.fetch(self._sql["kept_house"], some)
        forgotten, kept, hold = house[0] if house else (None, None, None)
        dead = yield from connection.fetch(self._sql["count_dead"], some)
        workers = yield from connection.fetch(self._sql["workers"], some)
        parts = yield from connection.fetch(self._sql["all_positions"], some)
        rates = {}
        for minutes in (1, 5, 60):
            # Counters are kept by the minute: the one that has begun belongs to it.
            earliest = datetime.now(UTC) - timedelta(minutes=minutes + 1)
            rates[minutes] = yield from self.rates(connection, consumer, since=earliest)
        ready, retrying, parked, alone = map(int, pending)
        return Status(
            consumer=consumer,
            ready=ready,
            retrying=retrying,
            parked=parked,
            alone=alone,
            early=int(early[0]),
            gaps=int(early[1]),
            oldest_gap=self._moment(early[2]),
            oldest_pending=self._moment(oldest[0][0]) if oldest else None,
            forgotten_before=self._moment(forgotten),
            kept_house_at=self._moment(kept),
            hold_until=self._moment(hold),
            dead=[DeadCount(*row) for row in dead],
            rates=rates,
            workers=[self._made(WorkerSeen, row) for row in workers],
            parts=[self._made(PartSeen, row) for row in parts],
        )

    def rates(self, connection: Connection, consumer: str, *, since: datetime) -> Steps[Rates]:
        """What happened since a time."""
        params = {"consumer": consumer, "earliest": self._kept(since)}
        row = (yield from connection.fetch(self._sql["rates"], params))[0]
        return Rates(*map(int, row))

    def messages(
        self,
        connection: Connection,
        consumer: str,
        *,
        since: datetime | None,
        after: int,
        limit: int,
        state: str | None = None,
        type: str | None = None,
        key: str | None = None,
    ) -> Steps[list[Seen]]:
        """Messages that arrived since a time, behind a number, the newest last."""
        params = {
            "consumer": consumer,
            "since": self._kept(since),
            "after": after,
            "limit": limit,
            "state": state,
            "type": type,
            "key": key,
        }
        found = yield from connection.fetch(self._sql["messages"], params)
        return [self._made(Seen, row) for row in found]

    def message(
        self, connection: Connection, consumer: str, id: str, origin: str | None
    ) -> Steps[list[Detail]]:
        """Everything about the messages of an id: one per origin."""
        params = {"consumer": consumer, "id": id, "origin": origin}
        details = []
        for row in (yield from connection.fetch(self._sql["message_named"], params)):
            seen = self._made(Seen, row[:12])
            named = {**params, "origin": seen.origin}
            attempts = yield from connection.fetch(self._sql["attempts"], named)
            actions = yield from connection.fetch(self._sql["actions"], named)
            payload, headers, source, coordinates, occurred_at = row[12:]
            details.append(
                Detail(
                    seen,
                    None if payload is None else bytes(payload),
                    headers,
                    source,
                    coordinates,
                    self._moment(occurred_at),
                    (yield from self._waits(connection, consumer, seen)),
                    (yield from self._letter(connection, consumer, seen)),
                    [self._made(Attempt, attempt) for attempt in attempts],
                    [self._made(Action, action) for action in actions],
                )
            )
        return details

    def _waits(self, connection: Connection, consumer: str, seen: Seen) -> Steps[str | None]:
        """What a pending message waits for, in words."""
        params = {"consumer": consumer, "seq": seen.seq}
        if seen.state == "early":
            found = yield from connection.fetch(self._sql["early_of"], params)
            return _until(*found[0]) if found else None
        if seen.state != "pending":
            return None
        found = yield from connection.fetch(self._sql["waits"], params)
        if not found:
            return None
        kind, due_at, alone, deaths, ahead, letter = found[0]
        words = []
        if kind == "parked" and ahead is not None:
            words.append(f"behind message {ahead!r} of its key")
        elif kind == "parked" and letter is not None:
            words.append(f"behind dead letter {letter} of its key")
        elif kind == "retrying":
            words.append(f"until {self._moment(due_at):%Y-%m-%d %H:%M:%S}")
        if alone:
            words.append("to be run alone")
        if deaths:
            words.append(f"its process died {deaths} times in a row")
        return ", ".join(words) or None

    def _letter(self, connection: Connection, consumer: str, seen: Seen) -> Steps[int | None]:
        params = {"consumer": consumer, "seq": seen.seq}
        found = yield from connection.fetch(self._sql["letter_of"], params)
        return int(found[0][0]) if found else None

    def dead_groups(
        self, connection: Connection, consumer: str, *, limit: int
    ) -> Steps[list[DeadGroup]]:
        """Dead letters by what they died of, the most frequent first."""
        params = {"consumer": consumer, "limit": limit}
        found = yield from connection.fetch(self._sql["dead_groups"], params)
        return [self._made(DeadGroup, row) for row in found]

    def _made(self, kind: Callable[..., T], row: Sequence[Any]) -> T:
        """A value of a row; its fields whose names end with _at, or are "at", are times."""
        fields: tuple[str, ...] = kind.__struct_fields__  # type: ignore[attr-defined]
        return kind(
            *(
                self._moment(value)
                if name.endswith("_at") or name == "at"
                else bool(value)
                if name.startswith("is_")
                else value
                for name, value in zip(fields, row, strict=True)
            )
        )


def _until(number: int, following: int | None) -> str:
    missing = "what comes before" if following is None else f"number {following}"
    return f"for {missing} of its key: its own is {number}"
