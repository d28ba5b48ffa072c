"""Status, lists and details for operators; shared by the SQL stores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from oncebox.model.filters import MessageSearch, as_list
from oncebox.model.inspection import (
    Attempt,
    AuditRecord,
    DeadLetterCount,
    MessageDetail,
    MessageSummary,
    Outage,
    PartitionStatus,
    Rates,
    Status,
    WorkerStatus,
)
from oncebox.storage.contract import Connection
from oncebox.storage.sql.dialect import Dialect
from oncebox.storage.steps import Steps

FIRST = -(2**63)
"""Less than every seq."""

SEARCHED = ("origin", "type", "key", "reason", "fingerprint")
"""The fields of a message that a filter compares as they are."""

MANY = 100_001
"""The largest count: counting more rows would only cost time."""

T = TypeVar("T")


class SqlReading(Dialect):
    """Status, lists and details for operators."""

    def status(self, connection: Connection, consumer: str) -> Steps[Status]:
        """Counts, rates, workers and positions of a consumer."""
        some = {"consumer": consumer, "limit": MANY, "now": self._time_param(datetime.now(UTC))}
        pending = (yield from connection.fetch(self._sql["count_pending"], some))[0]
        oldest = yield from connection.fetch(self._sql["oldest_pending"], some)
        oldest_ready = yield from connection.fetch(self._sql["oldest_ready"], some)
        awaiting = (yield from connection.fetch(self._sql["count_awaiting"], some))[0]
        found = yield from connection.fetch(self._sql["purge_state"], some)
        purged_before, last_purge_at, paused_until = found[0] if found else (None, None, None)
        dead = yield from connection.fetch(self._sql["count_dead_letters"], some)
        workers = yield from connection.fetch(self._sql["workers"], some)
        partitions = yield from connection.fetch(self._sql["all_positions"], some)
        outages = yield from connection.fetch(self._sql["outages"], some)
        rates = {}
        for minutes in (1, 5, 60):
            # There is one counter row per minute. Include the minute that has just begun.
            earliest = datetime.now(UTC) - timedelta(minutes=minutes + 1)
            rates[minutes] = yield from self.rates(connection, consumer, since=earliest)
        ready, retrying, blocked, isolated = map(int, pending)
        return Status(
            consumer=consumer,
            ready=ready,
            retrying=retrying,
            blocked=blocked,
            isolated=isolated,
            awaiting_sequence=int(awaiting[0]),
            gaps=int(awaiting[1]),
            oldest_gap=self._moment(awaiting[2]),
            oldest_pending=self._moment(oldest[0][0]) if oldest else None,
            purged_before=self._moment(purged_before),
            last_purge_at=self._moment(last_purge_at),
            purge_paused_until=self._moment(paused_until),
            dead=[DeadLetterCount(*row) for row in dead],
            rates=rates,
            workers=[self._struct(WorkerStatus, row) for row in workers],
            partitions=[self._struct(PartitionStatus, row) for row in partitions],
            outages=[self._struct(Outage, row) for row in outages],
            oldest_ready=self._moment(oldest_ready[0][0]) if oldest_ready else None,
        )

    def rates(self, connection: Connection, consumer: str, *, since: datetime) -> Steps[Rates]:
        """How many messages had which outcome since a time, to the minute."""
        params = {"consumer": consumer, "earliest": self._time_param(since)}
        row = (yield from connection.fetch(self._sql["rates"], params))[0]
        return Rates(*map(int, row))

    def messages(
        self,
        connection: Connection,
        consumer: str,
        *,
        filter: MessageSearch,
        limit: int,
        after: int | None = None,
    ) -> Steps[list[MessageSummary]]:
        """The messages that arrived last, in order of arrival; or the next ones after a seq."""
        state, ids = filter.get("state"), filter.get("ids")
        params = {
            "consumer": consumer,
            **{name: filter.get(name) for name in SEARCHED},
            "states": None if state is None else self._list(as_list(state)),
            "ids": None if ids is None else self._list(as_list(ids)),
            "since": self._time_param(filter.get("since")),
            "until": self._time_param(filter.get("until")),
            "after": FIRST if after is None else after,
            "limit": limit,
        }
        direction = "DESC" if after is None else "ASC"
        sql = self._sql["messages"].replace("DIRECTION", direction)
        found = yield from connection.fetch(sql, params)
        return [self._struct(MessageSummary, row) for row in found]

    def message(
        self, connection: Connection, consumer: str, id: str, origin: str | None
    ) -> Steps[list[MessageDetail]]:
        """Everything about the messages with an id, one per origin."""
        params = {"consumer": consumer, "id": id, "origin": origin}
        details = []
        for row in (yield from connection.fetch(self._sql["message_named"], params)):
            seen = self._struct(MessageSummary, row[:12])
            named = {**params, "origin": seen.origin}
            attempts = yield from connection.fetch(self._sql["attempts"], named)
            actions = yield from connection.fetch(self._sql["audits"], named)
            payload, headers, source, coordinates, occurred_at = row[12:]
            details.append(
                MessageDetail(
                    seen,
                    None if payload is None else bytes(payload),
                    headers,
                    source,
                    coordinates,
                    self._moment(occurred_at),
                    (yield from self._waits(connection, consumer, seen)),
                    (yield from self._letter(connection, consumer, seen)),
                    [self._struct(Attempt, attempt) for attempt in attempts],
                    [self._struct(AuditRecord, action) for action in actions],
                )
            )
        return details

    def _waits(
        self, connection: Connection, consumer: str, seen: MessageSummary
    ) -> Steps[str | None]:
        """What a pending message waits for, as a text for people."""
        params = {"consumer": consumer, "seq": seen.seq}
        if seen.state == "awaiting_sequence":
            found = yield from connection.fetch(self._sql["awaiting_of_message"], params)
            return _until(*found[0]) if found else None
        if seen.state != "pending":
            return None
        found = yield from connection.fetch(self._sql["waits"], params)
        if not found:
            return None
        kind, due_at, isolated, crashes, ahead, letter = found[0]
        words = []
        if kind == "blocked" and ahead is not None:
            words.append(f"behind message {ahead!r} of its key")
        elif kind == "blocked" and letter is not None:
            words.append(f"behind dead letter {letter} of its key")
        elif kind == "retrying":
            words.append(f"until {self._moment(due_at):%Y-%m-%d %H:%M:%S}")
        if isolated:
            words.append("to run in isolation")
        if crashes:
            words.append(f"crashed its process {crashes} times in a row")
        return ", ".join(words) or None

    def _letter(
        self, connection: Connection, consumer: str, seen: MessageSummary
    ) -> Steps[int | None]:
        params = {"consumer": consumer, "seq": seen.seq}
        found = yield from connection.fetch(self._sql["dead_letter_of"], params)
        return int(found[0][0]) if found else None

    def _struct(self, kind: Callable[..., T], row: Sequence[Any]) -> T:
        """Make a struct from a row.

        Fields named "at" or "..._at" are times, fields named "is_..." are booleans.
        """
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
    missing = "earlier sequence numbers" if following is None else f"sequence number {following}"
    return f"for {missing} of its key; its own is {number}"
