"""Sequence numbers of keys, and messages that await theirs; shared by the SQL stores."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from oncebox.model.gap import Gap
from oncebox.model.message import headers_json
from oncebox.model.ordering import lane
from oncebox.model.sequencing import SequenceState
from oncebox.storage.contract import Connection
from oncebox.storage.records import Arrival, AwaitingMessage, SequenceKey, SequenceMove
from oncebox.storage.sql.dialect import Dialect
from oncebox.storage.steps import Steps


class SqlSequences(Dialect):
    """Sequence numbers of keys, and messages that await theirs."""

    at_once = 1_000
    """How many waiting messages of a key are stored at once when the missing number arrives."""

    def _numbers(self, following: int | None, early: Sequence[int]) -> SequenceState:
        """The state of a sequence, of which up to `at_once` + 1 waiting numbers were read."""
        return SequenceState(following, early[: self.at_once], len(early) > self.at_once)

    @abstractmethod
    def sequence_states(
        self, connection: Connection, consumer: str, counts: Sequence[SequenceKey]
    ) -> Steps[dict[SequenceKey, SequenceState]]:
        """The states of these sequences. Sequences that have not begun are left out."""

    @abstractmethod
    def _store_awaiting(
        self, connection: Connection, rows: Sequence[Mapping[str, Any]]
    ) -> Steps[list[Sequence[Any]]]:
        """Store messages that wait, unless their numbers are taken.

        Returns key, epoch and number of those that were stored.
        """

    @abstractmethod
    def _pull(
        self, connection: Connection, consumer: str, numbers: Sequence[tuple[SequenceKey, int]]
    ) -> Steps[None]:
        """Move messages that wait to the end of their keys."""

    @abstractmethod
    def _move(
        self, connection: Connection, consumer: str, moves: Sequence[SequenceMove]
    ) -> Steps[None]:
        """Record the next number of each sequence."""

    @abstractmethod
    def try_lock_key(self, connection: Connection, consumer: str, key: str) -> Steps[bool]:
        """Lock a key if no other transaction has locked it. Returns False if one has."""

    @abstractmethod
    def _release(self, connection: Connection, consumer: str, keys: Sequence[str]) -> Steps[None]:
        """Make the messages of these keys ready, up to the next one that blocks its key."""

    @abstractmethod
    def _age_params(self, age: float) -> dict[str, Any]:
        """The parameters of statements that need an age in seconds."""

    def store_awaiting(
        self, connection: Connection, consumer: str, early: Sequence[AwaitingMessage]
    ) -> Steps[Collection[tuple[SequenceKey, int]]]:
        """Store messages until their sequence numbers are due.

        Returns the sequence numbers that other messages have taken.
        """
        if not early:
            return ()
        rows = [_early_row(consumer, kept) for kept in early]
        there = yield from self._store_awaiting(connection, rows)
        kept = {(SequenceKey(key, epoch), number) for key, epoch, number in there}
        return {_place(e.arrival) for e in early} - kept

    def advance_sequences(
        self, connection: Connection, consumer: str, moves: Sequence[SequenceMove]
    ) -> Steps[None]:
        """Record the next number of each sequence, and store the messages that may run now."""
        pulled = [(move.sequence, number) for move in moves for number in move.admitted]
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
        """Missing sequence numbers, the longest wait first.

        Only those missing for `age` seconds, and only gaps of at most `longest` numbers.
        """
        wanted = {"consumer": consumer, "key": key, "longest": longest, "limit": limit}
        params = {**wanted, **self._age_params(age)}
        found = yield from connection.fetch(self._sql["gaps"], params)
        gaps = [dict(zip(Gap.__struct_fields__, row, strict=True)) for row in found]
        return [Gap(**{**gap, "waiting_since": self._moment(gap["waiting_since"])}) for gap in gaps]

    def cut_sequences(self, connection: Connection, consumer: str) -> Steps[list[SequenceKey]]:
        """Sequences whose next number has arrived, but too many messages waited to store all."""
        params = {"consumer": consumer, "limit": 20}
        found = yield from connection.fetch(self._sql["cut_sequences"], params)
        return [SequenceKey(key, epoch) for key, epoch in found]

    def is_gap(self, connection: Connection, consumer: str, gap: Gap, *, age: float) -> Steps[bool]:
        """True if this number is still missing, for at least `age` seconds."""
        params = {
            "consumer": consumer,
            "key": gap.key,
            "epoch": gap.epoch,
            "next": gap.next,
            **self._age_params(age),
        }
        return bool((yield from connection.fetch(self._sql["is_gap"], params)))


def _place(arrival: Arrival) -> tuple[SequenceKey, int]:
    message = arrival.message
    assert message.key is not None
    assert message.sequence is not None
    return SequenceKey(message.key, message.epoch), message.sequence


def _early_row(consumer: str, early: AwaitingMessage) -> dict[str, Any]:
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
