"""Inbox: the application object. One consumer, one database, its handlers and policies."""

from __future__ import annotations

import heapq
import os
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from types import TracebackType
from typing import Any, Literal, Self, TypeVar, Unpack

from oncebox.archives import Archives
from oncebox.claims import Claimer, Properties
from oncebox.database import target
from oncebox.database.contract import Database
from oncebox.database.steps import arun, run
from oncebox.database.transaction import AsyncTransaction, Transaction
from oncebox.dead import DeadLetters
from oncebox.drain import Drain
from oncebox.errors import ConfigurationError, ForkedInbox, HandlerError
from oncebox.folder import folder_of
from oncebox.gaps import KeyGaps
from oncebox.handlers import Registry, checked_order, checked_retry
from oncebox.hooks import checked_hooks
from oncebox.housekeeping import Housekeeping
from oncebox.identity import CloudEvents, Identity
from oncebox.liveness import incarnation, worker_name
from oncebox.look import Look
from oncebox.message import Delivery, Message, checked_deliveries
from oncebox.options import checked_options
from oncebox.ordering import Order
from oncebox.outcome import Kind, Outcome
from oncebox.plan import read
from oncebox.process import Process
from oncebox.replays import Replays
from oncebox.retention import A_WEEK, Retention, checked_retention
from oncebox.retry import Retry
from oncebox.schema import check_schema, migrate
from oncebox.sequence import A_MINUTE, Gaps, checked_gaps
from oncebox.store import Names, store_for
from oncebox.store.contract import Steps
from oncebox.store.records import Advance, DeadLetter, Worker
from oncebox.unit import Unit

F = TypeVar("F", bound=Callable[..., Any])

OnDead = Callable[[DeadLetter], Any] | str
"""A function of a dead letter, "log", or an http(s) URL that it is posted to."""

MEGABYTE = 1_000_000


class Inbox:
    """A consumer's inbox: every message takes effect once.

    `database` is a URL (`sqlite:///file.db`, `postgresql://...`, or a SQLAlchemy URL with its
    driver), a psycopg pool, a SQLAlchemy Engine or AsyncEngine, or Django(alias). Tables are made
    by migrate(), never on first use. An inbox may be used by several threads, but not on both sides
    of a fork; it is a context manager of both colours.
    """

    @checked_options
    def __init__(
        self,
        name: str,
        database: Any,
        *,
        identity: Identity | None = None,
        retry: Retry | None = None,
        order: Order = Order.park,
        pipeline: bool = True,
        notify: bool = False,
        unknown_type: Literal["dead", "ignore"] = "dead",
        on_dead: OnDead | Iterable[OnDead] | None = None,
        keep_payload: bool = True,
        payload_limit: int = 16 * MEGABYTE,
        transaction_timeout: timedelta = timedelta(minutes=5),
        retention: Retention | None = A_WEEK,
        gaps: Gaps = A_MINUTE,
        prefix: str = "oncebox_",
        schema: str | None = None,
    ) -> None:
        _check_options(name, identity, unknown_type, transaction_timeout)
        self.name = name
        self.identity = identity or CloudEvents()
        self._target = target(database, pipeline=pipeline)
        self._names = Names(prefix, schema)
        self._store = store_for(self._target.dialect, self._names)
        self._order = checked_order(order)
        self._registry = Registry(
            retry=Retry() if retry is None else checked_retry(retry),
            order=self._order,
            payload_limit=payload_limit,
            ignore_unknown=unknown_type == "ignore",
        )
        if self._target.is_async is not None:
            self._registry.set_colour(self._target.is_async, "the database")
        self._claimer = Claimer(name, self._names, keep_payload=keep_payload, is_async=False)
        self._aclaimer = Claimer(name, self._names, keep_payload=keep_payload, is_async=True)
        self._hooks = checked_hooks(on_dead)
        self._channel = self._store.channel(name) if notify else None
        if notify and self._channel is None:
            raise ConfigurationError("notify=True needs PostgreSQL: SQLite has no notifications")
        self._keep_payload = keep_payload
        self._timeout = transaction_timeout.total_seconds()
        self._database: Database | None = None
        self._opened_by = 0
        self._ready = False
        self._lock = threading.Lock()
        self._slots = [0]
        self.retention = checked_retention(retention)
        if self.retention is not None and self.retention.archive is not None:
            folder_of(self.retention.archive)  # raises now what would be raised at night
        self._gaps = checked_gaps(gaps)
        self.dead = DeadLetters(self)
        self.gaps = KeyGaps(self)
        self.housekeeping = Housekeeping(self)
        self.archives = Archives(self)
        self.look = Look(self)
        self.replays = Replays(self)
        self._chance = random.Random()

    @property
    def is_async(self) -> bool:
        """Whether its methods are those that begin with an a."""
        return bool(self._target.is_async or self._registry.is_async)

    @property
    def transaction_timeout(self) -> timedelta:
        """When the database gives up a transaction that was left behind."""
        return timedelta(seconds=self._timeout)

    # -- registration -----------------------------------------------------------------------------

    def on(
        self,
        type: str,
        *,
        version: int = 1,
        batch: bool = False,
        retry: Retry | None = None,
        order: Order | None = None,
    ) -> Callable[[F], F]:
        """Register a handler for messages of a type and version; "*" takes all other types.

        The handler takes `(payload)` or `(payload, tx)`; its annotation says what the payload is
        decoded into. With `batch`, it takes a list of payloads.
        """
        if callable(type):
            raise HandlerError(f'name the type: @inbox.on("..."), above {type!r}')

        def register(function: F) -> F:
            self._registry.add(function, type, version, batch=batch, retry=retry, order=order)
            return function

        return register

    def upcast(self, type: str, *, from_version: int) -> Callable[[F], F]:
        """Register a function that lifts plain values from one version of a type to the next."""

        def register(function: F) -> F:
            self._registry.add_upcaster(function, type, from_version)
            return function

        return register

    def ignore(self, *types: str) -> None:
        """Name types that this consumer does not want: settled without a row, and counted."""
        self._registry.ignore(*types)

    # -- the tables -------------------------------------------------------------------------------

    def migrate(self) -> list[str]:
        """Make or update the tables; harmless when done twice, or by two processes at once.

        Returns the names of the migrations that were applied.
        """
        if self._target.is_async:
            raise ConfigurationError("this inbox is async: await inbox.amigrate()")
        return run(migrate(self._target.make(False), self._store))

    async def amigrate(self) -> list[str]:
        """See migrate()."""
        if self._target.is_async is False:
            raise ConfigurationError("this inbox is sync: inbox.migrate()")
        return await arun(migrate(self._target.make(True), self._store))

    def sql(self) -> str:
        """The statements that migrate() executes, for review."""
        return self._store.script()

    # -- messages ---------------------------------------------------------------------------------

    def process(self, deliveries: Iterable[Delivery]) -> list[Outcome]:
        """Claim, handle and commit a batch in one transaction; one outcome per delivery, in order.

        When this returns, everything is committed and every delivery may be settled. When it
        raises, nothing may be settled: the broker delivers again, and nothing happens twice.
        """
        return run(self._process(deliveries, is_async=False))

    async def aprocess(self, deliveries: Iterable[Delivery]) -> list[Outcome]:
        """See process()."""
        return await arun(self._process(deliveries, is_async=True))

    def receive(self, deliveries: Iterable[Delivery]) -> list[Outcome]:
        """Claim a batch and store it, to be run by drain(); one outcome per delivery, in order.

        As process(), but no handler runs: the broker has its answer after one short transaction.
        """
        return run(self._process(deliveries, is_async=False, receiving=True))

    async def areceive(self, deliveries: Iterable[Delivery]) -> list[Outcome]:
        """See receive()."""
        return await arun(self._process(deliveries, is_async=True, receiving=True))

    def drain(self, *, batch: int = 100) -> Counter[Kind]:
        """Run what was stored and is due, until nothing is; says how many had which outcome.

        Any number of processes may drain at the same time. A loop that goes on is Drainer's.
        """
        return run(self._drain_once(batch, is_async=False))

    async def adrain(self, *, batch: int = 100) -> Counter[Kind]:
        """See drain()."""
        return await arun(self._drain_once(batch, is_async=True))

    def claim(self, connection: Any, id: str, **properties: Unpack[Properties]) -> bool:
        """Claim a message in the caller's own transaction: True if it is new, False if not.

        Properties: origin, type, version, key, payload, headers, minted_at, source, coordinates,
        and accept_retries. With a payload, the same id with other bytes raises ContentMismatch. A
        message older than the purged records raises TooLate. Nothing is stored then. Rolling back
        takes the claim back; a concurrent claim of the same id waits for this transaction's end.
        """
        return run(self._claimer.claim(connection, id, **properties))

    async def aclaim(self, connection: Any, id: str, **properties: Unpack[Properties]) -> bool:
        """See claim()."""
        return await arun(self._aclaimer.claim(connection, id, **properties))

    def claim_many(
        self, connection: Any, messages: Sequence[str | Message], *, accept_retries: bool = False
    ) -> list[bool]:
        """Claim many messages, given by id or as Message, in one round trip; see claim().

        Messages are compared by their content_hash, where they have one.
        """
        return run(self._claimer.claim_many(connection, messages, accept_retries=accept_retries))

    async def aclaim_many(
        self, connection: Any, messages: Sequence[str | Message], *, accept_retries: bool = False
    ) -> list[bool]:
        """See claim_many()."""
        steps = self._aclaimer.claim_many(connection, messages, accept_retries=accept_retries)
        return await arun(steps)

    def _process(
        self,
        deliveries: Iterable[Delivery],
        *,
        is_async: bool,
        receiving: bool = False,
        advance: Advance | None = None,
    ) -> Steps[list[Outcome]]:
        verb = "receive" if receiving else "process"
        self._check_use(f"{'a' if is_async else ''}{verb}()", is_async)
        batch = checked_deliveries(deliveries)
        if not batch:
            return []
        database = yield from self._open(is_async)
        items = read(batch, self.identity, self._registry, decode=not receiving)
        slot = self._take_slot()
        try:
            process = Process(
                database=database,
                unit=self._unit(is_async),
                order=self._order,
                worker=worker_name(slot),
                chance=self._chance,
                receiving=receiving,
                advance=advance,
            )
            return (yield from process.batch(items))
        finally:
            self._give_back_slot(slot)

    def _check_use(self, verb: str, is_async: bool) -> None:
        """Raise unless there are handlers, of this colour."""
        self._registry.set_colour(is_async, verb)
        if not len(self._registry):
            raise ConfigurationError(f"inbox {self.name!r} has no handlers: register one with on()")

    def _database_for(self, is_async: bool) -> Steps[Database]:
        """The database, for work without handlers."""
        if self._target.is_async is not None and self._target.is_async is not is_async:
            raise ConfigurationError(
                f"this inbox is {'async' if self._target.is_async else 'sync'}: its methods "
                f"{'begin' if self._target.is_async else 'do not begin'} with an a, as in aretry()"
            )
        return (yield from self._open(is_async))

    def _drain_once(self, batch: int, *, is_async: bool) -> Steps[Counter[Kind]]:
        with self._working(batch) as worker:
            drain = yield from self._drain(worker, is_async)
            return (yield from drain.all())

    def _drain(self, worker: Worker, is_async: bool) -> Steps[Drain]:
        self._check_use("adrain()" if is_async else "drain()", is_async)
        return Drain(
            database=(yield from self._open(is_async)),
            unit=self._unit(is_async),
            registry=self._registry,
            order=self._order,
            worker=worker,
            chance=self._chance,
            hooks=self._hooks,
            sequenced=getattr(self.identity, "is_sequenced", True),
        )

    @contextmanager
    def _working(self, batch: int) -> Iterator[Worker]:
        """A worker of this inbox, with a slot of its own."""
        if isinstance(batch, bool) or not isinstance(batch, int) or batch < 1:
            raise ConfigurationError(f"batch is a number of messages from 1, not {batch!r}")
        slot = self._take_slot()
        try:
            yield Worker(
                name=worker_name(slot),
                incarnation=incarnation(),
                batch=batch,
                timeout=self._timeout,
                patience=self._timeout + min(20.0, self._timeout / 2),
            )
        finally:
            self._give_back_slot(slot)

    def _unit(self, is_async: bool) -> Unit:
        return Unit(
            consumer=self.name,
            store=self._store,
            transaction=AsyncTransaction if is_async else Transaction,
            keep_payload=self._keep_payload,
            timeout=self._timeout,
            gaps=self._gaps,
            tell=bool(self._hooks),
            notify=self._channel is not None,
        )

    # Units that run at the same time count in different rows, so that none waits for another.

    def _take_slot(self) -> int:
        with self._lock:
            slot = heapq.heappop(self._slots)
            if not self._slots:
                self._slots.append(slot + 1)
            return slot

    def _give_back_slot(self, slot: int) -> None:
        with self._lock:
            heapq.heappush(self._slots, slot)

    # -- lifecycle --------------------------------------------------------------------------------

    def _open(self, is_async: bool) -> Steps[Database]:
        with self._lock:
            if self._database is None:
                self._database = self._target.make(is_async)
                self._opened_by = os.getpid()
            elif self._opened_by != os.getpid():
                raise ForkedInbox
            database = self._database
        if not self._ready:
            yield from database.open()
            yield from check_schema(database, self._store)
            with self._lock:
                self._ready = self._database is database
        return database

    def _close(self) -> Steps[None]:
        with self._lock:
            database, self._database, self._ready = self._database, None, False
        if database is not None and self._opened_by == os.getpid():
            yield from database.close()

    def close(self) -> None:
        """Close the connections that this inbox opened. It may be used again afterwards."""
        run(self._close())

    async def aclose(self) -> None:
        """See close()."""
        await arun(self._close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()


_SECOND = timedelta(seconds=1)


def _check_options(name: Any, identity: Any, unknown_type: Any, transaction_timeout: Any) -> None:
    if not isinstance(name, str) or not 1 <= len(name.encode()) <= 255 or "\0" in name:
        raise ConfigurationError("the name of an inbox has 1 to 255 bytes")
    if unknown_type not in ("dead", "ignore"):
        raise ConfigurationError(f"unknown_type is 'dead' or 'ignore', not {unknown_type!r}")
    if not isinstance(transaction_timeout, timedelta) or transaction_timeout < _SECOND:
        raise ConfigurationError("transaction_timeout is a timedelta of at least a second")
    if identity is not None and (isinstance(identity, type) or not callable(identity)):
        raise ConfigurationError(f"identity is a rule such as CloudEvents(), not {identity!r}")
