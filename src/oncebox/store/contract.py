"""What a store offers, and what it needs: the contract that every database's store fulfils.

A store holds the SQL of one database and nothing else. It does no I/O: its methods are generators
of steps over a Connection, which a database adapter provides and a runner performs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

from oncebox.retention import PartSight, Sight
from oncebox.sequence import Numbers
from oncebox.store.records import (
    Advance,
    Archived,
    Arrival,
    Claims,
    Count,
    DeadLetter,
    Deed,
    Early,
    Entry,
    Gap,
    Gauge,
    Matching,
    Move,
    Past,
    Position,
    Record,
    Replay,
    Stored,
    Taken,
    Worker,
)

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

    def keep(
        self,
        connection: Connection,
        consumer: str,
        arrivals: Sequence[Arrival],
        claims: Claims,
    ) -> Steps[None]:
        """Store what a claim has found to be new as pending: what receive() does at once."""
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

    def lock_key(self, connection: Connection, consumer: str, key: str | None) -> Steps[None]:
        """Wait for the lock of a key, and have it; where all is locked, it is had."""
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
        self,
        connection: Connection,
        consumer: str,
        source: str,
        worker: Worker,
        part: str,
        *,
        ended: bool = False,
    ) -> Steps[None]:
        """The owner of a part signs off; of one that has ended nothing is to come."""
        ...

    # -- forgetting ---------------------------------------------------------------------------

    def sight(self, connection: Connection, consumer: str) -> Steps[Sight]:
        """What is known of what is still to come."""
        ...

    def parts_seen(self, connection: Connection, consumer: str) -> Steps[list[PartSight]]:
        """How the parts of sources stand."""
        ...

    def set_mark(self, connection: Connection, consumer: str, mark: datetime) -> Steps[datetime]:
        """Move the mark forward; answers where it is. What is older and new is quarantined."""
        ...

    def take_turn(self, connection: Connection, *, consumer: str, every: float) -> Steps[bool]:
        """Whether it is our turn to keep house: the first one who asks after so many seconds."""
        ...

    def count_old(self, connection: Connection, consumer: str, mark: datetime) -> Steps[int]:
        """How many messages are older than a mark."""
        ...

    def old_windows(
        self, connection: Connection, consumer: str, mark: datetime
    ) -> Steps[list[Any]]:
        """Where messages are that are older than a mark, in portions for forget()."""
        ...

    def forget(
        self, connection: Connection, consumer: str, mark: datetime, window: Any
    ) -> Steps[int]:
        """Forget what is older than the mark, and finished, with its attempts; says how many."""
        ...

    def forget_counters(self, connection: Connection, consumer: str, mark: datetime) -> Steps[None]:
        """Forget the counters of old minutes."""
        ...

    # -- archives -----------------------------------------------------------------------------

    def old_size(
        self, connection: Connection, consumer: str, mark: datetime, window: Any
    ) -> Steps[tuple[int, int]]:
        """How many messages are old within a window, and the bytes of their payloads, about."""
        ...

    def old_messages(
        self,
        connection: Connection,
        consumer: str,
        mark: datetime,
        window: Any,
        *,
        after: int,
        limit: int,
    ) -> Steps[list[Record]]:
        """What may be forgotten within a window, behind a number, with its attempts."""
        ...

    def forget_these(
        self, connection: Connection, consumer: str, messages: Sequence[Archived]
    ) -> Steps[int]:
        """Forget messages that are archived, unless they have changed since; says how many."""
        ...

    def hold_until(self, connection: Connection, consumer: str) -> Steps[datetime | None]:
        """Until when nothing is forgotten, because something was restored."""
        ...

    def begin_restore(
        self,
        connection: Connection,
        consumer: str,
        *,
        keep: float,
        last_seq: int,
        file: str,
        deed: Deed,
    ) -> Steps[None]:
        """Before a file is restored: nothing is forgotten for some seconds; numbers are free."""
        ...

    def note(self, connection: Connection, consumer: str, deed: Deed, about: str) -> Steps[None]:
        """Write down what was done to something that is no message."""
        ...

    def restore(
        self, connection: Connection, consumer: str, records: Sequence[Record]
    ) -> Steps[int]:
        """Bring messages back, with their attempts; says how many were not there."""
        ...

    def find_past(
        self, connection: Connection, consumer: str, past: Past
    ) -> Steps[list[Sequence[Any]]]:
        """Messages that match, in any state: key, origin, id, whether anything is to be erased."""
        ...

    def count_strangers(self, connection: Connection, consumer: str, past: Past) -> Steps[int]:
        """How many quarantined deliveries may be about the same, by their key or id."""
        ...

    def erase(
        self,
        connection: Connection,
        consumer: str,
        messages: Sequence[tuple[str | None, str, str]],
        deed: Deed,
    ) -> Steps[int]:
        """Erase the payloads of messages, given by key, origin and id, that are finished."""
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

    # -- replays ------------------------------------------------------------------------------

    def count_past(
        self, connection: Connection, consumer: str, past: Past
    ) -> Steps[tuple[int, int, int]]:
        """How many messages match: to be replayed, without a payload, in another state."""
        ...

    def begin_replay(
        self,
        connection: Connection,
        consumer: str,
        name: str,
        past: Past,
        pace: float | None,
        deed: Deed,
    ) -> Steps[int | None]:
        """Note what is to be replayed; None where the name was used before."""
        ...

    def replays(
        self, connection: Connection, consumer: str, *, name: str | None, limit: int
    ) -> Steps[list[Replay]]:
        """Replays, the newest first."""
        ...

    def next_replay(self, connection: Connection, consumer: str) -> Steps[float | None]:
        """In how many seconds there is something to go on with; None if never. Takes no locks."""
        ...

    def go_on_replaying(self, connection: Connection, consumer: str) -> Steps[bool]:
        """Store some more of a replay, or take some back; says whether there was any."""
        ...

    def set_pace(
        self, connection: Connection, consumer: str, name: str, pace: float | None, deed: Deed
    ) -> Steps[bool]:
        """A replay goes on at another pace; says whether it is running."""
        ...

    def begin_cancel(
        self, connection: Connection, consumer: str, name: str, deed: Deed
    ) -> Steps[bool]:
        """Nothing more of a replay is stored, and what has not run is to be taken back."""
        ...

    # -- numbers ------------------------------------------------------------------------------

    def numbers(
        self, connection: Connection, consumer: str, counts: Sequence[Count]
    ) -> Steps[dict[Count, Numbers]]:
        """What is known of these counts; nothing of those that have not begun."""
        ...

    def keep_early(
        self, connection: Connection, consumer: str, early: Sequence[Early]
    ) -> Steps[Collection[tuple[Count, int]]]:
        """Keep messages until their numbers are due; answers the numbers that were taken."""
        ...

    def move_on(self, connection: Connection, consumer: str, moves: Sequence[Move]) -> Steps[None]:
        """Note where counts are, and store what is admitted by that."""
        ...

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
        """The numbers that are waited for since so many seconds, the longest first; where so many
        are missing at most."""
        ...

    def cut_counts(self, connection: Connection, consumer: str) -> Steps[list[Count]]:
        """Counts whose next number waits already: there were too many to store at once."""
        ...

    def try_key(self, connection: Connection, consumer: str, key: str) -> Steps[bool]:
        """Lock a key, if it is free."""
        ...

    def waits_for(
        self, connection: Connection, consumer: str, gap: Gap, *, age: float
    ) -> Steps[bool]:
        """Whether it is still this number that is waited for, since so many seconds."""
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
