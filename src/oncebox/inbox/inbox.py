"""Inbox: what users create for one consumer and one database. It connects the parts of oncebox."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any, Literal, Self, Unpack
from uuid import UUID

from oncebox.errors import ConfigurationError
from oncebox.inbox.registration import Registration
from oncebox.model.dead_letter import DeadLetter
from oncebox.model.identity.rules import CustomIdentity, Identity, checked_identity
from oncebox.model.inspection import Rates, Status
from oncebox.model.message import Delivery, Message
from oncebox.model.options import (
    checked_name,
    checked_payload_limit,
    checked_timeout,
    ignores_unknown_types,
)
from oncebox.model.ordering import Ordering
from oncebox.model.outcome import Kind, Outcome
from oncebox.model.retention import A_WEEK, Retention, checked_retention
from oncebox.model.retry import Retry
from oncebox.model.sequencing import A_MINUTE, Gaps, checked_gaps
from oncebox.model.suggestions import checked_options
from oncebox.operations.archive.location import with_checked_archive
from oncebox.operations.archive.restore import Archives
from oncebox.operations.dead_letter_hooks import checked_on_dead
from oncebox.operations.dead_letters import DeadLetters
from oncebox.operations.gaps import KeyGaps
from oncebox.operations.inspection import Messages, read_rates, read_status
from oncebox.operations.maintenance import Maintenance, drain_until_idle
from oncebox.operations.methods import (
    async_claim_method,
    async_method,
    sync_claim_method,
    sync_method,
)
from oncebox.operations.purge import Purge
from oncebox.operations.replays import Replays
from oncebox.operations.schema import check_schema, migrate
from oncebox.operations.worker_tasks import worker_maintenance
from oncebox.processing.caller_claims import CallerClaims, Properties
from oncebox.processing.connection import InboxDatabase, WorkerSlots
from oncebox.processing.context import Context
from oncebox.processing.drain import Drain
from oncebox.processing.engine import Engine
from oncebox.processing.handlers import Registry, checked_ordering, checked_retry
from oncebox.processing.outcome_log import OutcomeLog
from oncebox.storage.drivers.connect import target
from oncebox.storage.drivers.contract import DatabaseTarget
from oncebox.storage.sql.names import Names
from oncebox.storage.steps import Steps
from oncebox.storage.stores import store_for

OnDead = Callable[[DeadLetter], Any] | str
"""A function of a dead letter, "log", or an http(s) URL that it is posted to."""

MEGABYTE = 1_000_000


class Inbox(Registration):
    """A consumer's inbox: commits the work of each message exactly once.

    Call migrate() to create the tables. Several threads may use an inbox; create it after a fork.
    It is a sync and an async context manager.

    - `name`: the name of the consumer. Two inboxes with different names both get every message.
    - `database`: a URL (`sqlite:///file.db`, `postgresql://...`, or a SQLAlchemy URL with its
      driver), a psycopg pool, a SQLAlchemy Engine or AsyncEngine, or Django(alias).
    - `identity`: where the id, type and key of a delivery are; CloudEvents() by default.
    - `retry`: how often, and after which delay, a failed message runs again.
    - `ordering`: what a dead letter does to later messages of its key. strict: they wait until an
      operator retries or discards it; skip_dead: they run. on() can set it per type.
    - `on_dead`: called for each dead letter: a function, "log", or an http(s) URL. May be a list.
    - `unknown_type`: a message whose type has no handler becomes a dead letter ("dead") or leaves
      no row ("ignore").
    - `retention`: how long finished messages are kept; None: forever. A duplicate that arrives
      later is quarantined (too_late) if the time of its production is known; if not, it runs again.
    - `gaps`: how long messages wait for a missing sequence number of their key.
    - `transaction_timeout`: a batch that takes longer is rolled back.
    - `keep_payload`: if False, finished messages keep no payload and cannot be replayed.
    - `payload_limit`: a message whose payload has more bytes becomes a dead letter.
    - `pipeline`: if False, psycopg sends one statement at a time, for servers and poolers that
      cannot pipeline.
    - `notify`: if True, receive() wakes waiting workers at once, by PostgreSQL's NOTIFY.
    - `schema`: the schema of the tables; `prefix`: how their names begin.
    """

    @checked_options
    def __init__(
        self,
        name: str,
        database: DatabaseTarget,
        *,
        identity: Identity | Callable[[Delivery], Message] | None = None,
        retry: Retry | None = None,
        ordering: Ordering = Ordering.strict,
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
        self._arguments = {name: value for name, value in locals().items() if name != "self"}
        self.name = checked_name(name)
        self.transaction_timeout = checked_timeout(transaction_timeout)
        connected = target(database, pipeline=pipeline)
        store = store_for(connected.dialect, Names(prefix, schema))
        connection = InboxDatabase(connected, store, check_schema)
        self._context = Context(
            consumer=name,
            store=store,
            identity=checked_identity(identity),
            retention=with_checked_archive(checked_retention(retention)),
            gaps=checked_gaps(gaps),
            keep_payload=keep_payload,
            open=connection.open_for_operation,
        )
        self._retry = Retry() if retry is None else checked_retry(retry)
        self._registry = Registry(
            retry=self._retry,
            ordering=checked_ordering(ordering),
            payload_limit=checked_payload_limit(payload_limit),
            ignore_unknown=ignores_unknown_types(unknown_type),
        )
        if connected.is_async is not None:
            self._registry.set_async(connected.is_async, "the database")
        self._on_dead = checked_on_dead(on_dead)
        channel = store.channel(name) if notify else None
        if notify and channel is None:
            raise ConfigurationError("notify=True needs PostgreSQL: SQLite has no notifications")
        self._engine = Engine(
            context=self._context,
            connection=connection,
            registry=self._registry,
            observer=OutcomeLog(),
            ordering=checked_ordering(ordering),
            random=random.Random().random,
            timeout=transaction_timeout.total_seconds(),
            has_on_dead=bool(self._on_dead),
            channel=channel,
            slots=WorkerSlots(),
        )
        self._claims = CallerClaims(
            name,
            connected.dialect,
            store,
            keep_payload=keep_payload,
            has_on_dead=bool(self._on_dead),
            retry=self._retry,
        )
        self.archives = Archives(self._context)
        self.dead_letters = DeadLetters(self._context)
        self.gaps = KeyGaps(self._context)
        self.messages = Messages(self._context)
        self.purge = Purge(self._context)
        self.replays = Replays(self._context)

    @property
    def identity(self) -> Identity | CustomIdentity:
        """How the id, type and key of a message are found."""
        return self._context.identity

    @property
    def retention(self) -> Retention | None:
        """How long finished messages are kept; None: forever."""
        return self._context.retention

    @property
    def is_async(self) -> bool:
        """True if this inbox uses the async methods (`aprocess`, `adrain`, ...)."""
        return bool(self._engine.connection.target.is_async or self._registry.is_async)

    # -- the tables -------------------------------------------------------------------------------

    def _migrate(self, is_async: bool, *, claims_only: bool = False) -> Steps[list[str]]:
        """Create or update the tables. Returns the names of the migrations that were applied.

        With `claims_only`, a new schema gets only the tables of claim() and claim_many(). A later
        migrate() adds the others and keeps the claims. Several processes may call it at once.
        """
        database = self._engine.connection.make_for_migration(is_async)
        return migrate(database, self._context.store, claims_only=claims_only)

    migrate = sync_method(_migrate)
    amigrate = async_method(_migrate)

    def sql(self, *, claims_only: bool = False, grants_to: str | None = None) -> str:
        """The statements that migrate() executes, for review.

        With `grants_to`, returns the GRANT statements for that role instead; it does not own the
        tables.
        """
        if grants_to is not None:
            return self._context.store.grants(grants_to, claims_only=claims_only)
        return self._context.store.script(claims_only=claims_only)

    # -- messages ---------------------------------------------------------------------------------

    def _process(self, is_async: bool, deliveries: Iterable[Delivery]) -> Steps[list[Outcome]]:
        """Claim, handle and commit a batch in one transaction. Returns an outcome per delivery.

        When this returns, everything is committed and every delivery may be acked. When it raises,
        ack nothing: the broker delivers again, and no work happens twice.
        """
        return self._engine.process(is_async, deliveries)

    process = sync_method(_process)
    aprocess = async_method(_process)

    def _receive(self, is_async: bool, deliveries: Iterable[Delivery]) -> Steps[list[Outcome]]:
        """Claim a batch and store it for a worker. Returns an outcome per delivery.

        As process(), but no handler runs: the deliveries can be acked after one short transaction.
        """
        return self._engine.process(is_async, deliveries, receiving=True)

    receive = sync_method(_receive)
    areceive = async_method(_receive)

    def _drain(self, is_async: bool, *, batch: int = 100) -> Steps[Counter[Kind]]:
        """Run stored messages until none is due. Returns how many messages had each outcome.

        Several processes may drain at the same time. A Worker does this in a loop.
        """
        with self._engine.worker(batch) as worker:
            drain = yield from self._engine.drain(is_async, worker)
            return (yield from drain_until_idle(drain, self._maintenance(drain, once=True)))

    drain = sync_method(_drain)
    adrain = async_method(_drain)

    def _claim(
        self,
        is_async: bool,
        connection: Any,
        id: str | UUID,
        *,
        accept_retries: bool = False,
        **properties: Unpack[Properties],
    ) -> Steps[bool]:
        """Claim a message in the caller's own transaction. Returns whether it is new.

        Properties: origin, type, version, key, payload, headers, produced_at, source, coordinates.
        Pass the payload to compare it: an id claimed before with another payload raises
        PayloadMismatch. A message older than the purged ones raises TooLate. If claim() raises,
        nothing is stored. A rollback undoes the claim; a concurrent claim of the same id waits
        until this transaction ends. Above READ COMMITTED, claim() raises SnapshotRisk: pass
        accept_retries=True if you retry the transaction after a serialization error.
        """
        return self._claims.claim(
            is_async, connection, id, properties, accept_retries=accept_retries
        )

    claim = sync_claim_method(_claim)
    aclaim = async_claim_method(_claim)

    def _failed(
        self,
        is_async: bool,
        connection: Any,
        id: str | UUID,
        error: BaseException,
        **properties: Unpack[Properties],
    ) -> Steps[timedelta | None]:
        """Record that your own loop failed after claim(). Returns the delay before a new attempt.

        Call it after the rollback, in a new transaction. If it returns None, the message is now a
        dead letter: its attempts are used up, or the error is a Reject. claim() then returns False
        for it. Pass the payload to keep it in the dead letter. The properties are those of claim().
        """
        return self._claims.failed(is_async, connection, id, error, properties)

    failed = sync_claim_method(_failed)
    afailed = async_claim_method(_failed)

    def _claim_many(
        self,
        is_async: bool,
        connection: Any,
        messages: Sequence[str | UUID | Message],
        *,
        accept_retries: bool = False,
    ) -> Steps[list[bool]]:
        """Claim many messages, given by id or as Message, in one round trip; see claim().

        If a Message has a content_hash, the same id with another hash raises PayloadMismatch.
        """
        return self._claims.claim_many(
            is_async, connection, messages, accept_retries=accept_retries
        )

    claim_many = sync_claim_method(_claim_many)
    aclaim_many = async_claim_method(_claim_many)

    # -- inspection -------------------------------------------------------------------------------

    def _status(self, is_async: bool) -> Steps[Status]:
        """Counts, rates, workers and positions of this inbox."""
        return read_status(self._context, is_async)

    status = sync_method(_status)
    astatus = async_method(_status)

    def _rates(self, is_async: bool, *, since: datetime) -> Steps[Rates]:
        """The number of messages per outcome since a time, to the minute."""
        return read_rates(self._context, is_async, since)

    rates = sync_method(_rates)
    arates = async_method(_rates)

    # -- for workers ------------------------------------------------------------------------------

    def _maintenance(self, drain: Drain, *, once: bool = False) -> Maintenance:
        parts: dict[str, Any] = {"on_dead": self._on_dead, "purge": self.purge}
        return worker_maintenance(self._context, drain.database, once=once, **parts)

    # -- lifecycle --------------------------------------------------------------------------------

    def _close(self, is_async: bool) -> Steps[None]:
        """Close the connections that this inbox opened. It may be used again afterwards."""
        return self._engine.connection.close(is_async)

    close = sync_method(_close)
    aclose = async_method(_close)

    def __enter__(self) -> Self:
        if self.is_async:
            raise ConfigurationError("this inbox is async: use async with")
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
