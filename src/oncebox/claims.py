"""Claims: the smallest way in, for people who own their loop and their transaction."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, TypedDict

from oncebox.database import borrow, faults
from oncebox.errors import ClaimError, ContentMismatch, SchemaMissing, SnapshotRisk, TooLate
from oncebox.identity import checked_message
from oncebox.message import NO_HEADERS, Delivery, HeaderMap, Message
from oncebox.store import Names, Store, store_for
from oncebox.store.contract import Steps
from oncebox.store.records import Answer, Arrival, Claims


class Properties(TypedDict, total=False):
    """What a claim may say of a message besides its id."""

    origin: str
    type: str
    version: int
    key: str | None
    payload: bytes | None
    headers: HeaderMap
    minted_at: datetime | None
    source: str
    coordinates: str | None
    accept_retries: bool


class Claimer:
    """Claims on the caller's connection, whichever it is."""

    def __init__(self, consumer: str, names: Names, *, keep_payload: bool, is_async: bool) -> None:
        self._is_async = is_async
        self._consumer = consumer
        self._names = names
        self._keep_payload = keep_payload
        self._stores: dict[str, Store] = {}

    def claim(
        self,
        connection: Any,
        id: str,
        *,
        origin: str = "default",
        type: str = "",
        version: int = 1,
        key: str | None = None,
        payload: bytes | None = None,
        headers: HeaderMap = NO_HEADERS,
        minted_at: datetime | None = None,
        source: str = "default",
        coordinates: str | None = None,
        accept_retries: bool = False,
    ) -> Steps[bool]:
        """Claim one message."""
        message = checked_message(
            id,
            origin=origin,
            type=type,
            version=version,
            key=key,
            payload=payload,
            headers=headers,
            minted_at=minted_at,
        )
        delivery = Delivery(message.payload, source=source, coordinates=coordinates)
        arrivals = [Arrival(message, delivery)]
        return (yield from self._claim(connection, arrivals, accept_retries))[0]

    def claim_many(
        self, connection: Any, messages: Sequence[str | Message], *, accept_retries: bool
    ) -> Steps[list[bool]]:
        """Claim many messages; the second of two equal ids is a duplicate of the first."""
        if isinstance(messages, str):
            raise ClaimError("claim_many() takes a list of ids: claim() takes one")
        wanted = [_checked(message) for message in messages]
        first: dict[tuple[str, str], Message] = {}
        for message in wanted:
            known = first.setdefault((message.origin, message.id), message)
            hashes = {known.content_hash, message.content_hash}
            if len(hashes) > 1 and None not in hashes:
                raise ContentMismatch(_mismatch(message))
        if not first:
            return []
        arrivals = [Arrival(message, Delivery(message.payload)) for message in first.values()]
        answers = yield from self._claim(connection, arrivals, accept_retries)
        new = {name for name, is_new in zip(first, answers, strict=True) if is_new}
        return [_taken(new, (message.origin, message.id)) for message in wanted]

    def _claim(
        self, connection: Any, arrivals: Sequence[Arrival], accept_retries: bool
    ) -> Steps[list[bool]]:
        dialect, work = yield from borrow(connection, is_async=self._is_async)
        store = self._store(dialect)
        try:
            claims = yield from store.claim(
                work,
                self._consumer,
                arrivals,
                ordered=False,
                keep_payload=self._keep_payload,
                any_snapshot=accept_retries,
            )
        except Exception as error:
            _explain(error)
            raise
        if Answer.refused in claims.answers:
            raise SnapshotRisk
        if Answer.other_bytes in claims.answers or Answer.too_late in claims.answers:
            yield from store.unclaim(work, self._consumer, arrivals, claims)
            raise _refusal(arrivals, claims)
        return [answer == Answer.new for answer in claims.answers]

    def _store(self, dialect: str) -> Store:
        if dialect not in self._stores:
            self._stores[dialect] = store_for(dialect, self._names)
        return self._stores[dialect]


def _checked(message: str | Message) -> Message:
    """A message whose names are valid; what is compared is its content_hash, if it has one."""
    if isinstance(message, Message):
        checked_message(message.id, origin=message.origin, key=message.key)
        return message
    return checked_message(message)


def _taken(new: set[tuple[str, str]], name: tuple[str, str]) -> bool:
    """Whether this is the first of its name: the next one is a duplicate."""
    is_new = name in new
    new.discard(name)
    return is_new


def _refusal(arrivals: Sequence[Arrival], claims: Claims) -> Exception:
    for arrival, answer in zip(arrivals, claims.answers, strict=True):
        if answer == Answer.other_bytes:
            return ContentMismatch(_mismatch(arrival.message))
    late = arrivals[claims.answers.index(Answer.too_late)].message
    return TooLate(
        f"message {late.id!r} of {late.origin!r} was minted at {late.minted_at}, before the "
        "records that would tell whether it is a duplicate; nothing was stored"
    )


def _mismatch(message: Message) -> str:
    return (
        f"message {message.id!r} of {message.origin!r} was claimed before with other bytes; "
        "nothing was stored"
    )


def _explain(error: Exception) -> None:
    """Raise what says more than the driver's error, if there is something to say."""
    if faults.is_missing_table(error):
        raise SchemaMissing("the tables of oncebox are missing: call inbox.migrate()") from error
    if faults.is_busy(error):
        raise SnapshotRisk(
            "another connection wrote to the database since this transaction began to read, or is "
            "writing now: roll back and run the transaction again"
        ) from error
