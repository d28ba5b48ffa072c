"""What a store offers, and what it needs: the contract that every database's store fulfils.

A store holds the SQL of one database and nothing else. It does no I/O: its methods are generators
of steps over a Connection, which a database adapter provides and a runner performs.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

import msgspec

from oncebox.message import Delivery, Message
from oncebox.outcome import Outcome

if TYPE_CHECKING:
    from oncebox.store.statements import Migration

T = TypeVar("T")

Call: TypeAlias = Callable[[], Any]
"""Something to be done: called by the sync runner, called and awaited by the async one."""

Steps: TypeAlias = Generator[Call, Any, T]
"""Work that yields calls, gets their answers, and returns a T."""


class Connection(Protocol):
    """A transaction on the user's database, as the store sees it. Parameters are `:name`."""

    def fetch(self, sql: str, params: Mapping[str, Any]) -> Steps[list[Sequence[Any]]]:
        """Execute and return all rows."""
        ...

    def execute(self, sql: str, params: Mapping[str, Any]) -> Steps[None]:
        """Execute; an error may surface as late as the commit."""
        ...

    def execute_many(self, sql: str, rows: Sequence[Mapping[str, Any]]) -> Steps[None]:
        """Execute once per row; an error may surface as late as the commit."""
        ...


class Arrival(msgspec.Struct, frozen=True):
    """A message to be claimed, and the delivery that brought it."""

    message: Message
    delivery: Delivery


class Answer:
    """What a claim says of one message: a letter each, as the databases answer."""

    new = "n"
    waits = "w"
    """New, and its key waits for a retry or a dead letter."""
    queued = "r"
    """New, and its key has stored messages that are ready to run."""
    duplicate = "d"
    other_bytes = "x"
    too_late = "l"
    refused = "i"
    """Nothing was claimed: the transaction's snapshot may be older than the truth."""


class Claims(msgspec.Struct, frozen=True):
    """What a claim says of a batch, in the order of its arrivals."""

    answers: str
    seqs: Sequence[int | None]
    token: Any = None
    """Names the transaction; the guard compares it."""


class Entry(msgspec.Struct, frozen=True):
    """An outcome to be written down."""

    outcome: Outcome
    seq: int | None = None
    parks: bool = False
    """A dead letter that holds its key."""
    ready: bool = False
    """Stored to run as soon as its turn comes, instead of waiting behind its key's head."""
    duration: float | None = None


class Store(Protocol):
    """The SQL of one database."""

    dialect: str
    migrations: list[Migration]
    scope: str
    """What keeps the locks of this inbox apart from those of strangers in the same database."""

    def claim(
        self,
        connection: Connection,
        consumer: str,
        arrivals: Sequence[Arrival],
        *,
        ordered: bool = True,
        keep_payload: bool = True,
        timeout: float | None = None,
        any_snapshot: bool = True,
    ) -> Steps[Claims]:
        """Write the messages that are not there yet, and say of each what it is.

        With `ordered`, the locks of all keys are taken first, and held until the transaction ends.
        """
        ...

    def unclaim(
        self,
        connection: Connection,
        consumer: str,
        arrivals: Sequence[Arrival],
        claims: Claims,
    ) -> Steps[None]:
        """Take back what this transaction claimed a moment ago."""
        ...

    def record(
        self, connection: Connection, consumer: str, worker: str, entries: Sequence[Entry]
    ) -> Steps[None]:
        """Write down pending messages, dead letters, quarantine, attempts and counters."""
        ...

    def guard(self, claims: Claims) -> tuple[str, Mapping[str, Any]]:
        """The statement that fails unless the transaction is still the one of the claim."""
        ...

    def version(self, connection: Connection) -> Steps[tuple[int, int] | None]:
        """The schema's version and the oldest code it serves; None where there are no tables."""
        ...

    def migrate(self, connection: Connection) -> Steps[list[str]]:
        """Bring the schema up to date; returns the names of the migrations that were applied."""
        ...

    def script(self) -> str:
        """All migrations as SQL for review."""
        ...
