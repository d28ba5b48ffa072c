"""Caller claims: inbox.claim(), claim_many() and failed(), in the caller's own transaction."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from random import random
from typing import Any, TypedDict
from uuid import UUID

from oncebox.errors import (
    ClaimError,
    MissingPrivilege,
    PayloadMismatch,
    SchemaMissing,
    SnapshotRisk,
    TooLate,
)
from oncebox.model.identity.caller_messages import checked_message, valid_message
from oncebox.model.message import Delivery, Message, RawHeaders, checked_deliveries
from oncebox.model.outcome import Kind, Outcome
from oncebox.model.retry import Retry, reason_of
from oncebox.storage.contract import Store
from oncebox.storage.drivers import error_codes
from oncebox.storage.drivers.connect import borrow, driver_of
from oncebox.storage.records import Arrival, ClaimState, Entry
from oncebox.storage.sql import migrations
from oncebox.storage.steps import Steps

OWN_LOOP = "own_loop"
"""The name of the worker in attempts that inbox.failed() records."""


class Properties(TypedDict, total=False):
    """What the caller may pass about a message besides its id."""

    origin: str
    type: str
    version: int
    key: str | None
    payload: bytes | None
    headers: RawHeaders
    produced_at: datetime | None
    source: str
    coordinates: str | None


class CallerClaims:
    """Claims on the caller's connection."""

    def __init__(
        self,
        consumer: str,
        dialect: str,
        store: Store,
        *,
        retry: Retry,
        keep_payload: bool,
        has_on_dead: bool,
    ) -> None:
        self._retry = retry
        self._has_on_dead = has_on_dead
        self._consumer = consumer
        self._dialect = dialect
        self._store = store
        self._keep_payload = keep_payload
        self._is_checked = False

    def claim(
        self,
        is_async: bool,
        connection: Any,
        id: str | UUID,
        properties: Properties,
        *,
        accept_retries: bool,
    ) -> Steps[bool]:
        """Claim one message. Returns whether it is new."""
        arrival = _arrival(id, **properties)
        driver = driver_of(connection.__class__)
        if driver is not None and driver.is_async is is_async:  # usually
            dialect, work = driver.dialect, driver.wrap(connection)
        else:
            dialect, work = yield from borrow(connection, is_async=is_async)
        try:
            state = yield from self._store_for(dialect).claim_one(
                work,
                self._consumer,
                arrival,
                keep_payload=self._keep_payload,
                any_snapshot=accept_retries,
            )
        except Exception as error:
            _explain(error)
            raise
        if state == ClaimState.new:
            return True
        _check_refused([arrival], state)
        return False

    def failed(
        self,
        is_async: bool,
        connection: Any,
        id: str | UUID,
        error: BaseException,
        properties: Properties,
    ) -> Steps[timedelta | None]:
        """Count a failed attempt; at the limit, claim the message and make it a dead letter."""
        if not isinstance(error, BaseException):
            raise ClaimError(f"failed() takes the exception, got {type(error).__qualname__}")
        arrival = _arrival(id, **properties)
        dialect, work = yield from borrow(connection, is_async=is_async)
        store = self._store_for(dialect)
        try:
            yield from self._check_schema(store, work)
            attempts = 1 + (yield from store.count_failures(work, self._consumer, arrival.message))
            delay = self._retry.delay(attempts, error, random())
            if delay is None:
                yield from self._store_dead_letter(store, work, arrival, error, attempts)
            else:
                outcome = _outcome(Kind.failed, arrival, error, attempts)
                entry = Entry(outcome, kept=True, ran=True)
                yield from store.record(work, self._consumer, OWN_LOOP, [entry])
        except Exception as raised:
            _explain(raised)
            raise
        return delay

    def _check_schema(self, store: Store, work: Any) -> Steps[None]:
        """Raise SchemaMissing if the schema has only the claims tables."""
        if not self._is_checked:
            found = yield from store.version(work)
            remedy = getattr(work, "schema_remedy", migrations.REMEDY)
            migrations.check(store.migrations, found, remedy)
            self._is_checked = True

    def _store_dead_letter(
        self, store: Store, work: Any, arrival: Arrival, error: BaseException, attempts: int
    ) -> Steps[None]:
        claims = yield from store.claim(
            work, self._consumer, [arrival], ordered=False, keep_payload=self._keep_payload
        )
        if claims.seqs[0] is None:  # another worker has finished it
            return
        outcome = _outcome(Kind.dead, arrival, error, attempts)
        entry = Entry(outcome, claims.seqs[0], ran=True)
        yield from store.record(
            work, self._consumer, OWN_LOOP, [entry], has_on_dead=self._has_on_dead
        )

    def claim_many(
        self,
        is_async: bool,
        connection: Any,
        messages: Sequence[str | UUID | Message],
        *,
        accept_retries: bool,
    ) -> Steps[list[bool]]:
        """Claim many messages. The second of two equal ids is a duplicate of the first."""
        if isinstance(messages, str):
            raise ClaimError("claim_many() takes a list of ids: claim() takes one")
        wanted = [_checked(message) for message in messages]
        first: dict[tuple[str, str], Message] = {}
        for message in wanted:
            known = first.setdefault((message.origin, message.id), message)
            hashes = {known.content_hash, message.content_hash}
            if len(hashes) > 1 and None not in hashes:
                raise PayloadMismatch(_mismatch(message))
        if not first:
            return []
        arrivals = [Arrival(message, Delivery(message.payload)) for message in first.values()]
        states = yield from self._claim_many(is_async, connection, arrivals, accept_retries)
        named = zip(first, states, strict=True)
        new = {name for name, state in named if state == ClaimState.new}
        return [_taken(new, (message.origin, message.id)) for message in wanted]

    def _claim_many(
        self, is_async: bool, connection: Any, arrivals: Sequence[Arrival], accept_retries: bool
    ) -> Steps[str]:
        dialect, work = yield from borrow(connection, is_async=is_async)
        try:
            states = yield from self._store_for(dialect).claim_many(
                work,
                self._consumer,
                arrivals,
                keep_payload=self._keep_payload,
                any_snapshot=accept_retries,
            )
        except Exception as error:
            _explain(error)
            raise
        _check_refused(arrivals, states)
        return states

    def _store_for(self, dialect: str) -> Store:
        """The store, if the connection is one to a database of its kind."""
        if dialect != self._dialect:
            raise ClaimError(
                f"the connection is one of {dialect}, but inbox {self._consumer!r} uses "
                f"{self._dialect}: claim in the database of the inbox"
            )
        return self._store


def _arrival(
    id: str | UUID,
    *,
    source: str = "default",
    coordinates: str | None = None,
    payload: bytes | None = None,
    **properties: Any,
) -> Arrival:
    """A message as the caller describes it, and its delivery."""
    message = checked_message(id, payload=payload, **properties)
    arrived = Delivery(message.payload, source=source, coordinates=coordinates)
    if source != "default" or coordinates is not None:
        arrived = checked_deliveries([arrived])[0]
    return Arrival(message, arrived)


def _outcome(kind: Kind, arrival: Arrival, error: BaseException, attempts: int) -> Outcome:
    reason = reason_of(error) if kind is Kind.dead else None
    return Outcome(
        kind, arrival.delivery, arrival.message, reason=reason, error=error, attempts=attempts
    )


def _checked(message: str | UUID | Message) -> Message:
    """A message with a valid id. Its content_hash is compared, if it has one."""
    return valid_message(message) if isinstance(message, Message) else checked_message(message)


def _taken(new: set[tuple[str, str]], name: tuple[str, str]) -> bool:
    """Whether this is the first message with its name: the next one is a duplicate."""
    is_new = name in new
    new.discard(name)
    return is_new


def _check_refused(arrivals: Sequence[Arrival], states: str) -> None:
    """Raise if the store refused one of these messages: then it stored none of them."""
    if ClaimState.refused in states:
        raise SnapshotRisk
    for arrival, state in zip(arrivals, states, strict=True):
        if state == ClaimState.payload_mismatch:
            raise PayloadMismatch(_mismatch(arrival.message))
    if ClaimState.too_late in states:
        late = arrivals[states.index(ClaimState.too_late)].message
        raise TooLate(
            f"message {late.id!r} of {late.origin!r} was produced at {late.produced_at}. It is "
            "older than the purged messages and may be a duplicate of one: check by hand whether "
            "it was processed; nothing was stored"
        )


def _mismatch(message: Message) -> str:
    return (
        f"message {message.id!r} of {message.origin!r} was claimed before with another "
        "payload: its producer used one id for two messages; nothing was stored"
    )


def _explain(error: Exception) -> None:
    """Raise a clearer error than the driver's, if there is one."""
    if error_codes.is_missing_table(error):
        raise SchemaMissing(
            "the database of this connection has no tables of oncebox. Call inbox.migrate(), or "
            "pass a connection to the database of the inbox"
        ) from error
    if error_codes.is_forbidden(error):
        raise MissingPrivilege(str(error).splitlines()[0]) from error
    if error_codes.is_busy(error):
        raise SnapshotRisk(
            "another connection wrote to the database since this transaction began to read, or is "
            "writing now: roll back and retry the transaction"
        ) from error
