"""Claims in the caller's transaction on SQLite: one INSERT, which also takes the write lock."""

from __future__ import annotations

from collections.abc import Sequence

from oncebox.storage.contract import Connection
from oncebox.storage.records import Arrival, ClaimState
from oncebox.storage.sql.caller_claims import REFUSED, CountsDuplicates
from oncebox.storage.sql.rows import Row
from oncebox.storage.sqlite.claims import SqliteClaims, inbox_row
from oncebox.storage.sqlite.values import MINUTE, now
from oncebox.storage.steps import Steps


class SqliteCallerClaims(SqliteClaims, CountsDuplicates):
    """claim_one() and claim_many()."""

    def claim_one(
        self,
        connection: Connection,
        consumer: str,
        arrival: Arrival,
        *,
        keep_payload: bool = True,
        any_snapshot: bool = False,
    ) -> Steps[str]:
        params = inbox_row(consumer, None, arrival, now(), keep_payload=keep_payload)
        if not (yield from self._inserts(connection, params)):
            return (yield from self._duplicate(connection, params))
        if arrival.message.produced_at is None:
            return ClaimState.new
        if not (yield from connection.fetch(self._sql["too_late"], params)):
            return ClaimState.new
        yield from connection.execute(self._sql["release_claim"], params)
        return ClaimState.too_late

    def _inserts(self, connection: Connection, params: Row) -> Steps[bool]:
        """Insert a row. Returns True if it is new."""
        insert = getattr(connection, "insert", None)
        if insert is not None:
            return (yield from insert(self._sql["claim_one"], params))  # type: ignore[no-any-return]
        # This changes no row, so the driver can still notice that no transaction is open.
        yield from connection.execute(self._sql["take_write_lock"], {})
        returning = f"{self._sql['claim_one']} RETURNING 1"
        return bool((yield from connection.fetch(returning, params)))

    def _duplicate(self, connection: Connection, params: Row) -> Steps[str]:
        """The state of a message that was claimed before."""
        if params["content_hash"] is not None:
            found = yield from connection.fetch(self._sql["has_other_payload"], params)
            if found[0][0]:
                return ClaimState.payload_mismatch
        yield from self._note_duplicates(connection, params["consumer"], ClaimState.duplicate)
        return ClaimState.duplicate

    def claim_many(
        self,
        connection: Connection,
        consumer: str,
        arrivals: Sequence[Arrival],
        *,
        keep_payload: bool = True,
        any_snapshot: bool = False,
    ) -> Steps[str]:
        claims = yield from self.claim(
            connection,
            consumer,
            arrivals,
            ordered=False,
            keep_payload=keep_payload,
            by_caller=True,
        )
        if not REFUSED.isdisjoint(claims.answers):
            yield from self.release_claims(connection, consumer, arrivals, claims)
        yield from self._note_duplicates(connection, consumer, claims.answers)
        return claims.answers

    def _note_duplicates(self, connection: Connection, consumer: str, states: str) -> Steps[None]:
        at = now()
        params = {"consumer": consumer, "minute": at - at % MINUTE}
        yield from self._count_duplicates(connection, states, params)
