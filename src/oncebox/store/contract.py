"""What a store offers, and what it needs: the contract that every database's store fulfils.

A store holds the SQL of one database and nothing else. It does no I/O: its methods are generators
of steps over a Connection, which a database adapter provides and a runner performs.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

import msgspec

from oncebox.message import Delivery, HeaderMap, Message
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


class Arrival(msgspec.Struct, frozen=True, gc=False):
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


class Stored(msgspec.Struct, frozen=True, gc=False):
    """A pending message as it was read, and what is known of its runs."""

    message: Message
    delivery: Delivery
    lane: int
    seq: int
    attempts: int = 0
    alone: bool = False
    deaths: int = 0
    replay: int = 0
    last_error: str | None = None

    @property
    def is_special(self) -> bool:
        """Runs by itself: it failed before, or may kill its process. Its key may wait for it."""
        return self.alone or self.attempts > 0


class Taken(msgspec.Struct, frozen=True):
    """What a worker got to drain: rows of lanes that are locked until the transaction ends."""

    rows: Sequence[Stored] = ()
    token: Any = None
    """Names the transaction; the guard compares it."""
    crashed: bool = False
    """Somebody died over these lanes: the first of their messages are marked to run alone."""
    again: bool = False
    """Nothing was taken, but something is ready now: commit, and take again."""


class Position(msgspec.Struct, frozen=True):
    """How far a part of a source has been read, and by whom."""

    part: str
    next: int
    mark: str | None = None
    """What tells this file from another one of the same name."""
    owner: str | None = None
    """The incarnation of the worker that reads it."""
    owner_name: str | None = None
    batch: int = 0
    suspects: int = 0
    """How many of the next messages were in the hands of an owner that vanished."""
    is_overdue: bool = False
    """Whether its owner should have been heard of."""
    moved_at: datetime | None = None


class Gauge(msgspec.Struct, frozen=True):
    """What a source knows of a part beside its position, in the same unit."""

    lag: int | None = None
    """How much is there that was not read yet."""
    settled: int | None = None
    """The position that the broker was told."""


class Advance(msgspec.Struct, frozen=True):
    """A step of a position, made with the work on the messages that it passes."""

    source: str
    part: str
    owner: str
    old: int
    new: int
    patience: float
    """Seconds within which the owner is heard of again."""
    mark: str | None = None
    suspects: int = 0


class DeadLetter(msgspec.Struct, frozen=True):
    """A message that cannot be run, or whose identity is not to be trusted."""

    id: int
    state: str
    """dead or quarantined"""
    reason: str
    seq: int | None
    origin: str | None
    message_id: str | None
    type: str | None
    version: int | None
    key: str | None
    parks: bool
    """Whether the later messages of its key wait for it."""
    payload: bytes
    content_hash: bytes | None
    headers: HeaderMap
    source: str
    coordinates: str | None
    occurred_at: datetime | None
    attempts: int
    deaths: int
    replay: int
    error: str | None
    fingerprint: str | None
    """What it has in common with letters that died of the same error."""
    died_at: datetime


class Matching(msgspec.Struct, frozen=True):
    """Which dead letters are meant: those that match everything that is given."""

    ids: Sequence[int] | None = None
    keys: Sequence[str] | None = None
    state: str | None = None
    reason: str | None = None
    type: str | None = None
    key: str | None = None
    origin: str | None = None
    message_id: str | None = None
    fingerprint: str | None = None


class Deed(msgspec.Struct, frozen=True):
    """What an operator does, for the audit."""

    act: str
    by: str
    why: str


class Worker(msgspec.Struct, frozen=True):
    """Who drains: a name that is its own for the time being, and what it takes at a time."""

    name: str
    incarnation: str
    batch: int
    timeout: float
    """Seconds after which the database ends a transaction that was left behind."""
    patience: float
    """Seconds within which it says again that it is alive."""


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
    alone: bool = False
    """Stored to be run by itself."""
    kept: bool = False
    """Its pending row is written already."""
    ran: bool = False
    """Its handler ran, and the run is worth a row: it failed, or its message had been stored."""
    duration: float | None = None
    stored: Stored | None = None
    """What the message was before, if it had been stored."""


class Store(Protocol):
    """The SQL of one database."""

    dialect: str
    migrations: list[Migration]
    is_exclusive: bool
    """Whether a transaction keeps all others from writing: look before taking one, and be brief."""
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

    def receive(
        self,
        connection: Connection,
        consumer: str,
        arrivals: Sequence[Arrival],
        *,
        keep_payload: bool = True,
        timeout: float | None = None,
    ) -> Steps[Claims]:
        """As claim, ordered; and what is new is stored as pending, behind its key if that waits."""
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
        self,
        connection: Connection,
        consumer: str,
        worker: str,
        entries: Sequence[Entry],
        *,
        tell: bool = False,
        notify: bool = False,
    ) -> Steps[None]:
        """Write down pending messages, dead letters, quarantine, attempts and counters.

        For messages that had been stored, the locks of their keys come first where a key begins or
        ceases to wait; then followers are parked, or released. `tell`: dead letters are to be told;
        `notify`: those who listen for messages that are ready get a hint.
        """
        ...

    def guard(self, token: Any) -> tuple[str, Mapping[str, Any]]:
        """The statement that fails unless the transaction is still the one of the claim."""
        ...

    # -- draining -----------------------------------------------------------------------------

    def channel(self, consumer: str) -> str | None:
        """Where one can listen for what is stored; None where one cannot."""
        ...

    def sign_on(self, connection: Connection, consumer: str, worker: Worker) -> Steps[None]:
        """Note that a worker is there, and alive."""
        ...

    def sign_off(self, connection: Connection, consumer: str, worker: Worker) -> Steps[None]:
        """A worker stops cleanly."""
        ...

    def is_work(self, connection: Connection, consumer: str) -> Steps[bool]:
        """Whether anything is ready or due; takes no locks."""
        ...

    def others(self, connection: Connection, consumer: str, worker: Worker) -> Steps[int]:
        """How many other workers are alive, as far as can be told."""
        ...

    def take(
        self, connection: Connection, consumer: str, worker: Worker, *, wake: bool = True
    ) -> Steps[Taken]:
        """Wake what is due, lock lanes that have ready messages, and read these in order.

        Where something was woken that others would have to wait for, nothing is taken yet.
        """
        ...

    def forgive(
        self, connection: Connection, consumer: str, rows: Sequence[Stored], token: Any
    ) -> Steps[None]:
        """This worker rolled back the transaction that took these rows: nobody died."""
        ...

    def remove(self, connection: Connection, rows: Sequence[Stored]) -> Steps[None]:
        """Take messages out of the lanes that are locked: the claim of what was stored."""
        ...

    def put_off(
        self,
        connection: Connection,
        consumer: str,
        row: Stored,
        *,
        delay: float,
        died: bool = False,
        error: str | None = None,
    ) -> Steps[int]:
        """Let a message, and what follows it in its key, wait for `delay` seconds.

        With `died` it is recorded in advance that it killed its process. Answers its token.
        """
        ...

    def take_alone(
        self, connection: Connection, row: Stored, token: int, timeout: float
    ) -> Steps[Taken | None]:
        """Take out the message that runs alone; None where somebody overtook us."""
        ...

    def absolve(
        self,
        connection: Connection,
        row: Stored,
        token: int,
        *,
        counted: bool,
        delay: float,
        error: str | None,
    ) -> Steps[None]:
        """The process did not die; a run that had begun counts as an attempt."""
        ...

    def suspect(self, connection: Connection, rows: Sequence[Stored]) -> Steps[None]:
        """Mark messages to run alone."""
        ...

    def vanished(
        self, connection: Connection, consumer: str, rows: Sequence[Stored], *, within: float
    ) -> Steps[list[Stored]]:
        """Those of these messages that are there no more, and that nobody ran within so many
        seconds."""
        ...

    def count_deaths(self, connection: Connection, consumer: str) -> Steps[int]:
        """How many messages run alone, or have killed their process lately."""
        ...

    def end_overdue(self, connection: Connection) -> Steps[None]:
        """End transactions that were left behind, where the server cannot do so itself."""
        ...

    # -- positions ----------------------------------------------------------------------------

    def positions(
        self, connection: Connection, consumer: str, source: str
    ) -> Steps[dict[str, Position]]:
        """The positions of a source by part."""
        ...

    def take_over(
        self,
        connection: Connection,
        consumer: str,
        source: str,
        worker: Worker,
        position: Position,
        *,
        any_owner: bool,
    ) -> Steps[Position | None]:
        """Become the owner of a part; None if somebody else was faster.

        `position` is where a part that was never read begins, and its owner the one who may be
        replaced; with `any_owner`, whoever it is. One that did not sign off leaves suspects.
        """
        ...

    def advance(self, connection: Connection, consumer: str, step: Advance) -> Steps[None]:
        """Move a position on; fails if it has another owner, or moved, by now."""
        ...

    def hold_on(
        self,
        connection: Connection,
        consumer: str,
        source: str,
        worker: Worker,
        gauges: Mapping[str, Gauge],
    ) -> Steps[None]:
        """The owner of these parts is alive, and sees them so."""
        ...

    def let_go(
        self, connection: Connection, consumer: str, source: str, worker: Worker, part: str
    ) -> Steps[None]:
        """The owner of a part signs off."""
        ...

    # -- dead letters -------------------------------------------------------------------------

    def newest_dead(self, connection: Connection, consumer: str) -> Steps[int]:
        """The number of the newest dead letter."""
        ...

    def find_dead(
        self,
        connection: Connection,
        consumer: str,
        matching: Matching,
        *,
        limit: int,
        after: int = 0,
        up_to: int | None = None,
    ) -> Steps[list[DeadLetter]]:
        """Dead letters and quarantine that match, in the order of their numbers."""
        ...

    def lock_dead(
        self, connection: Connection, consumer: str, letters: Sequence[DeadLetter]
    ) -> Steps[list[DeadLetter]]:
        """Lock the keys of these letters; answers those that are there and may be acted on.

        A key one of whose messages runs alone at this moment is left alone.
        """
        ...

    def revive(
        self, connection: Connection, consumer: str, letters: Sequence[DeadLetter], deed: Deed
    ) -> Steps[None]:
        """Put letters back to be run, with their old numbers: at the head of their keys."""
        ...

    def put_away(
        self, connection: Connection, consumer: str, letters: Sequence[DeadLetter], deed: Deed
    ) -> Steps[None]:
        """Delete letters; what waited for them is released."""
        ...

    def has_untold(self, connection: Connection, consumer: str) -> Steps[bool]:
        """Whether somebody is to be told of a letter, now."""
        ...

    def lease_untold(
        self, connection: Connection, consumer: str, *, limit: int, lease: float
    ) -> Steps[list[DeadLetter]]:
        """Letters that somebody is to be told of, now; nobody else is for `lease` seconds."""
        ...

    def told(self, connection: Connection, letters: Sequence[DeadLetter]) -> Steps[None]:
        """Somebody was told."""
        ...

    # -- the schema ---------------------------------------------------------------------------

    def version(self, connection: Connection) -> Steps[tuple[int, int] | None]:
        """The schema's version and the oldest code it serves; None where there are no tables."""
        ...

    def migrate(self, connection: Connection) -> Steps[list[str]]:
        """Bring the schema up to date; returns the names of the migrations that were applied."""
        ...

    def script(self) -> str:
        """All migrations as SQL for review."""
        ...
