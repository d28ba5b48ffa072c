"""Sequencing: how a store keeps the numbers of keys, and messages that came early. The same on
every database, but for locks and lists."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from oncebox.model.gap import Gap
from oncebox.model.message import headers_json
from oncebox.model.ordering import lane
from oncebox.model.sequencing import Numbers
from oncebox.storage.contract import Connection
from oncebox.storage.records import Arrival, Count, Early, Move
from oncebox.storage.sql.dialect import Dialect
from oncebox.storage.steps import Steps


class Sequencing(Dialect):
    """A store, as far as messages are numbered."""

    at_once = 1_000
    """Messages of a key that are stored at once when the number comes that they waited for."""

    def _numbers(self, following: int | None, early: Sequence[int]) -> Numbers:
        """What is known, where one more was looked for than is stored at once."""
        return Numbers(following, early[: self.at_once], len(early) > self.at_once)

    @abstractmethod
    def sequence_states(
        self, connection: Connection, consumer: str, counts: Sequence[Count]
    ) -> Steps[dict[Count, Numbers]]:
        """What is known of these counts; nothing of those that have not begun."""

    @abstractmethod
    def _store_awaiting(
        self, connection: Connection, rows: Sequence[Mapping[str, Any]]
    ) -> Steps[list[Sequence[Any]]]:
        """Keep messages; answers the key, epoch and number of those that could be kept."""

    @abstractmethod
    def _pull(
        self, connection: Connection, consumer: str, numbers: Sequence[tuple[Count, int]]
    ) -> Steps[None]:
        """Store messages that were kept, at the end of their keys."""

    @abstractmethod
    def _move(self, connection: Connection, consumer: str, moves: Sequence[Move]) -> Steps[None]:
        """Note where counts are."""

    @abstractmethod
    def try_lock_key(self, connection: Connection, consumer: str, key: str) -> Steps[bool]:
        """Lock a key, if it is free."""

    @abstractmethod
    def _release(self, connection: Connection, consumer: str, keys: Sequence[str]) -> Steps[None]:
        """What waits for these keys may run, as far as nothing holds them."""

    @abstractmethod
    def _aged(self, age: float) -> dict[str, Any]:
        """What a statement must be told of an age in seconds."""

    def store_awaiting(
        self, connection: Connection, consumer: str, early: Sequence[Early]
    ) -> Steps[Collection[tuple[Count, int]]]:
        """Keep messages until their numbers are due; answers the numbers that were taken."""
        if not early:
            return ()
        rows = [_early_row(consumer, kept) for kept in early]
        there = yield from self._store_awaiting(connection, rows)
        kept = {(Count(key, epoch), number) for key, epoch, number in there}
        return {_place(e.arrival) for e in early} - kept

    def advance_sequences(
        self, connection: Connection, consumer: str, moves: Sequence[Move]
    ) -> Steps[None]:
        """Note where counts are, and store what is admitted by that."""
        pulled = [(move.count, number) for move in moves for number in move.admitted]
        if pulled:
            yield from self._pull(connection, consumer, pulled)
            keys = sorted({count.key for count, _ in pulled})
            yield from self._release(connection, consumer, keys)
        if moves:
            yield from self._move(connection, consumer, moves)

    def gaps(
        self,
        connection: Connection,
        consumer: str,
        *,
        age: float = 0,
        key: str | None = None,
        longest: int | None = None,
        limit: int = 100,
    ) -> Steps[list[Gap]]:
        """The numbers that are waited for since so many seconds, the longest first; where so many
        are missing at most."""
        wanted = {"consumer": consumer, "key": key, "longest": longest, "limit": limit}
        params = {**wanted, **self._aged(age)}
        found = yield from connection.fetch(self._sql["gaps"], params)
        gaps = [dict(zip(Gap.__struct_fields__, row, strict=True)) for row in found]
        return [Gap(**{**gap, "waiting_since": self._moment(gap["waiting_since"])}) for gap in gaps]

    def cut_sequences(self, connection: Connection, consumer: str) -> Steps[list[Count]]:
        """Counts whose next number waits already: there were too many to store at once."""
        params = {"consumer": consumer, "limit": 20}
        found = yield from connection.fetch(self._sql["cut_sequences"], params)
        return [Count(key, epoch) for key, epoch in found]

    def is_gap(self, connection: Connection, consumer: str, gap: Gap, *, age: float) -> Steps[bool]:
        """Whether it is still this number that is waited for, since so many seconds."""
        params = {
            "consumer": consumer,
            "key": gap.key,
            "epoch": gap.epoch,
            "next": gap.next,
            **self._aged(age),
        }
        return bool((yield from connection.fetch(self._sql["is_gap"], params)))


def _place(arrival: Arrival) -> tuple[Count, int]:
    message = arrival.message
    assert message.key is not None
    assert message.sequence is not None
    return Count(message.key, message.epoch), message.sequence


def _early_row(consumer: str, early: Early) -> dict[str, Any]:
    message, delivery = early.arrival.message, early.arrival.delivery
    return {
        "consumer": consumer,
        "key": message.key,
        "epoch": message.epoch,
        "number": message.sequence,
        "seq": early.seq,
        "lane": lane(message.key or message.id),
        "origin": message.origin,
        "message_id": message.id,
        "type": message.type,
        "version": message.version,
        "payload": message.payload if early.seq is not None else b"",
        "headers": headers_json(message.headers) if early.seq is not None else None,
        "source": delivery.source,
        "coordinates": delivery.coordinates,
        "occurred_at": message.occurred_at,
        "isolated": delivery.redelivered,
    }
