"""Claims in the caller's transaction on PostgreSQL: one INSERT, no function of the schema."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from oncebox.model.message import headers_json
from oncebox.storage.contract import Connection
from oncebox.storage.postgres.claims import PostgresClaims
from oncebox.storage.records import Arrival, Claims, ClaimState
from oncebox.storage.sql.caller_claims import REFUSED, CountsDuplicates
from oncebox.storage.steps import Steps


class PostgresCallerClaims(PostgresClaims, CountsDuplicates):
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
        message, delivery = arrival.message, arrival.delivery
        params = {
            "consumer": consumer,
            "origin": message.origin,
            "message_id": message.id,
            "type": message.type,
            "version": message.version,
            "key": message.key,
            "payload": message.payload if keep_payload else None,
            "content_hash": message.content_hash,
            "headers": headers_json(message.headers),
            "source": delivery.source,
            "coordinates": delivery.coordinates,
            "produced_at": message.produced_at,
            "any_snapshot": any_snapshot,
        }
        if message.produced_at is None:
            found = yield from connection.fetch(self._sql["claim_one"], params)
            if found:
                return ClaimState.new
        else:
            found = yield from connection.fetch(self._sql["claim_dated"], params)
        if not found:
            return (yield from self._unclaimed(connection, consumer, [arrival], any_snapshot))
        seq, is_old = found[0]
        if not is_old or not (yield from connection.fetch(self._sql["too_late"], params)):
            return ClaimState.new
        claims = Claims(ClaimState.too_late, [seq])
        yield from self.release_claims(connection, consumer, [arrival], claims)
        return ClaimState.too_late

    def claim_many(
        self,
        connection: Connection,
        consumer: str,
        arrivals: Sequence[Arrival],
        *,
        keep_payload: bool = True,
        any_snapshot: bool = False,
    ) -> Steps[str]:
        params = _columns(consumer, arrivals, keep_payload, any_snapshot)
        found = yield from connection.fetch(self._sql["claim_many"], params)
        new = {(origin, id): (seq, is_old) for origin, id, seq, is_old in found}
        claimed = [new.get((a.message.origin, a.message.id)) for a in arrivals]
        others = [a for a, claim in zip(arrivals, claimed, strict=True) if claim is None]
        states = iter((yield from self._unclaimed(connection, consumer, others, any_snapshot)))
        old = [a for a, claim in zip(arrivals, claimed, strict=True) if claim and claim[1]]
        late = yield from self._is_too_late(connection, consumer, old)
        if_new = ClaimState.too_late if late else ClaimState.new
        answers = "".join(if_new if claim else next(states) for claim in claimed)
        if not REFUSED.isdisjoint(answers):
            claims = Claims(answers, [claim[0] if claim else None for claim in claimed])
            yield from self.release_claims(connection, consumer, arrivals, claims)
        return answers

    def _is_too_late(
        self, connection: Connection, consumer: str, old: Sequence[Arrival]
    ) -> Steps[bool]:
        """True if a purge moved the watermark past one of these while they were claimed."""
        times = [a.message.produced_at for a in old if a.message.produced_at is not None]
        if not times:
            return False
        oldest = {"consumer": consumer, "produced_at": min(times)}
        return bool((yield from connection.fetch(self._sql["too_late"], oldest)))

    def _unclaimed(
        self,
        connection: Connection,
        consumer: str,
        arrivals: Sequence[Arrival],
        any_snapshot: bool,
    ) -> Steps[str]:
        """Find out why these messages were not claimed, and count the duplicates."""
        if not arrivals:
            return ""
        params = {
            **_names(consumer, arrivals),
            "hashes": [arrival.message.content_hash for arrival in arrivals],
            "produced": [arrival.message.produced_at for arrival in arrivals],
            "any_snapshot": any_snapshot,
        }
        found = yield from connection.fetch(self._sql["unclaimed"], params)
        states = "".join(row[0] for row in found)
        yield from self._count_duplicates(connection, states, {"consumer": consumer})
        return states


def _names(consumer: str, arrivals: Sequence[Arrival]) -> dict[str, Any]:
    return {
        "consumer": consumer,
        "origins": [arrival.message.origin for arrival in arrivals],
        "ids": [arrival.message.id for arrival in arrivals],
    }


def _columns(
    consumer: str, arrivals: Sequence[Arrival], keep_payload: bool, any_snapshot: bool
) -> dict[str, Any]:
    messages = [arrival.message for arrival in arrivals]
    return {
        **_names(consumer, arrivals),
        "types": [m.type for m in messages],
        "versions": [m.version for m in messages],
        "keys": [m.key for m in messages],
        "payloads": [m.payload if keep_payload else None for m in messages],
        "hashes": [m.content_hash for m in messages],
        "headers": [headers_json(m.headers) for m in messages],
        "sources": [arrival.delivery.source for arrival in arrivals],
        "coordinates": [arrival.delivery.coordinates for arrival in arrivals],
        "occurred": [m.occurred_at for m in messages],
        "produced": [m.produced_at for m in messages],
        "any_snapshot": any_snapshot,
    }
