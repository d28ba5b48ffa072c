"""What a database adapter offers: transactions on the user's database, in either colour."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from oncebox.store.contract import Call, Connection, Steps


class Work(Connection, Protocol):
    """One transaction on one connection."""

    connection: Any
    """The driver's connection, for handlers that want it."""

    def begin(self) -> Steps[None]:
        """Open the transaction."""
        ...

    def enter_savepoint(self) -> Steps[None]:
        """From here on the work can be undone. What runs inside is a handler's."""
        ...

    def release_savepoint(self) -> Steps[None]:
        """Keep the work since the savepoint; errors that are still under way surface here.

        Raises TransactionLost if the transaction is gone, SwallowedError if it is aborted.
        """
        ...

    def rollback_to_savepoint(self, error: BaseException) -> Steps[bool]:
        """Undo the work since the savepoint; the claim and its locks stay.

        Returns whether the error can only come from what was called last.
        """
        ...

    def after_handler(self) -> Steps[None]:
        """Surface what can be known at once about the work of a handler that has returned."""
        ...

    def commit(self, guard: str, params: Mapping[str, Any]) -> Steps[None]:
        """Execute the guard and COMMIT, in one round trip where the driver can."""
        ...

    def rollback(self) -> Steps[None]:
        """Give up the transaction; a connection in doubt is closed."""
        ...

    def is_lost(self, error: BaseException) -> bool:
        """Whether the connection is gone, and with it the transaction."""
        ...

    # -- for handlers -------------------------------------------------------------------------

    def submit(self, sql: str, params: Mapping[str, Any]) -> Call:
        """The call that executes a handler's statement; its answer is a handle for the result."""
        ...

    def submit_many(self, sql: str, rows: Sequence[Mapping[str, Any]]) -> Call:
        """The call that executes a handler's statement once per row."""
        ...

    def rows(self, handle: Any) -> Steps[list[Any]]:
        """The rows of a result."""
        ...

    def rowcount(self, handle: Any) -> Steps[int]:
        """How many rows a statement touched."""
        ...

    def hold(self, result: object) -> None:
        """Note who holds the latest result; while it lives, its handle is not used again."""
        ...

    @property
    def session(self) -> Any:
        """The ORM's session joined to this transaction."""
        ...


class Listener(Protocol):
    """Hears when something was stored."""

    def wait(self, seconds: float) -> Steps[bool]:
        """Until somebody stores something, or the time is over; says whether it is worth a look."""
        ...

    def close(self) -> Steps[None]:
        """Give up what listening needs."""
        ...


class Database(Protocol):
    """Where units of work get their transactions."""

    dialect: str
    is_async: bool
    sleep: Callable[[float], Any]

    def open(self) -> Steps[None]:
        """Prepare for use; called once, before the first acquire."""
        ...

    def close(self) -> Steps[None]:
        """Close what open() opened. What the user brought stays open."""
        ...

    def acquire(self) -> Steps[Work]:
        """A connection of one's own, until it is released."""
        ...

    def release(self, work: Any) -> Steps[None]:
        """Give the connection back; one that is broken is thrown away."""
        ...

    def recover(self) -> Steps[None]:
        """After a lost connection: throw away others that are lost as well."""
        ...

    def listen(self, channel: str) -> Listener | None:
        """Who hears of what is stored; None where the driver cannot."""
        ...
