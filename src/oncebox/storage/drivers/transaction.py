"""Transaction and AsyncTransaction: the `tx` of a handler."""

from __future__ import annotations

from collections.abc import (
    AsyncIterator,
    Awaitable,
    Coroutine,
    Generator,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager, contextmanager
from types import GenericAlias
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

from oncebox.errors import OnceboxError
from oncebox.model.message import Message
from oncebox.storage.drivers.contract import Work
from oncebox.storage.steps import arun, run

T = TypeVar("T")
if TYPE_CHECKING:
    from typing_extensions import TypeVar as TypeVarWithDefault

    ConnectionT = TypeVarWithDefault("ConnectionT", default=Any)
    SessionT = TypeVarWithDefault("SessionT", default=Any)
else:
    ConnectionT, SessionT = TypeVar("ConnectionT"), TypeVar("SessionT")


_NO_END = "oncebox commits after the handler returns; to roll back, raise an exception"
_NO_FETCH = "use .rows() or .one()"
_NO_CURSOR = "use .rows() or .one() of the result of tx.execute()"
_OF_DRIVERS = {
    "commit": _NO_END,
    "rollback": _NO_END,
    "fetchone": _NO_CURSOR,
    "fetchall": _NO_CURSOR,
}
"""What to use instead of a method that connections and cursors of drivers have."""


class _Transaction(Generic[ConnectionT, SessionT]):
    """The common part of Transaction and AsyncTransaction."""

    __slots__ = ("_is_batch", "_messages", "_work")

    if not TYPE_CHECKING:  # typing allows one of two parameters only since Python 3.13
        __class_getitem__ = classmethod(GenericAlias)

        def __getattr__(self, name: str) -> Any:
            if name in _OF_DRIVERS:
                raise AttributeError(f"tx has no {name}(): {_OF_DRIVERS[name]}")
            return object.__getattribute__(self, name)  # raises its AttributeError again

    def __init__(self, work: Work, messages: Sequence[Message], *, is_batch: bool = False) -> None:
        self._work = work
        self._messages = messages
        self._is_batch = is_batch

    def _end(self) -> None:
        """Refuse further use: threads and tasks that the handler started must not write any
        more."""
        self._work = _ENDED

    @property
    def message(self) -> Message:
        """The message whose payload the handler got. Raises OnceboxError in a batch handler."""
        if self._is_batch:
            raise OnceboxError("tx.message does not exist in a batch handler: use tx.messages")
        return self._messages[0]

    @property
    def messages(self) -> Sequence[Message]:
        """The messages whose payloads the handler got: several in a batch handler."""
        return self._messages

    @property
    def connection(self) -> ConnectionT:
        """The driver's connection. Do not commit or roll back on it."""
        self._work.is_exposed = True
        connection: ConnectionT = self._work.connection
        return connection

    @property
    def session(self) -> SessionT:
        """With SQLAlchemy: a Session (or AsyncSession) joined to this transaction."""
        session: SessionT = self._work.session
        return session


class _Ended:
    """this transaction has ended, because its handler has returned"""

    def __getattr__(self, name: str) -> Any:
        raise OnceboxError(self.__doc__)


_ENDED: Any = _Ended()


class _Result:
    """The common part of Result and AsyncResult."""

    __slots__ = ("__weakref__", "_handle", "_work")

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name in ("fetchone", "fetchall"):
                raise AttributeError(f"a result has no {name}(): {_NO_FETCH}")
            return object.__getattribute__(self, name)  # raises its AttributeError again

        def __iter__(self) -> NoReturn:
            raise OnceboxError(f"a result is not iterable: {_NO_FETCH}")

        __aiter__ = __iter__

    def __init__(self, work: Work, handle: Any) -> None:
        self._work = work
        self._handle = handle


class Result(_Result):
    """The result of a statement. Reading it waits for the database."""

    __slots__ = ()

    def rows(self) -> list[Any]:
        """All rows."""
        return run(self._work.rows(self._handle))

    def one(self) -> Any:
        """The only row. Raises OnceboxError if there are none or several."""
        return _only(self.rows())

    @property
    def rowcount(self) -> int:
        """The number of rows that the statement changed or returned."""
        return run(self._work.rowcount(self._handle))


class Transaction(_Transaction[ConnectionT, SessionT]):
    """The transaction of the claim: it commits a handler's writes once, or not at all.

    Write only through this transaction. A handler may run several times before it commits.

    For type checkers, `Transaction[psycopg.Connection]` names the type of tx.connection, and
    `Transaction[sqlalchemy.Connection, sqlalchemy.orm.Session]` that of tx.session too.
    """

    __slots__ = ()

    def execute(self, sql: str, /, *args: Any, **params: Any) -> Result:
        """Execute a statement with `:name` parameters.

        On PostgreSQL statements are pipelined: an error may be raised by a later statement, at the
        end of the handler, or when a result is read. Use savepoint() to catch an error.
        """
        _check_is_named(args)
        result = Result(self._work, self._work.submit(sql, params)())
        self._work.hold(result)
        return result

    def execute_many(self, sql: str, rows: Sequence[Mapping[str, Any]], /) -> None:
        """Execute a statement once per row of parameters."""
        self._work.submit_many(sql, rows)()

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """A block whose errors can be caught: an error undoes only the work of the block."""
        run(self._work.enter_savepoint())
        try:
            yield
            run(self._work.release_savepoint())
        except BaseException as error:
            run(self._work.rollback_to_savepoint(error))
            raise


class AsyncResult(_Result):
    """The result of a statement. Reading it waits for the database."""

    __slots__ = ()

    async def rows(self) -> list[Any]:
        """All rows."""
        return await arun(self._work.rows(self._handle))

    async def one(self) -> Any:
        """The only row. Raises OnceboxError if there are none or several."""
        return _only(await self.rows())

    @property
    async def rowcount(self) -> int:
        """The number of rows that the statement changed or returned: `await result.rowcount`."""
        return await arun(self._work.rowcount(self._handle))


class _MustAwait(Generic[T]):
    """An awaitable that fails the handler if it is never awaited."""

    __slots__ = ("_coroutine", "_tx")

    def __init__(self, tx: AsyncTransaction, coroutine: Coroutine[Any, Any, T]) -> None:
        if tx._work is _ENDED:
            coroutine.close()
            raise OnceboxError(_Ended.__doc__)
        self._tx = tx
        self._coroutine = coroutine
        tx._not_awaited.add(self)

    def __await__(self) -> Generator[Any, Any, T]:
        self._tx._not_awaited.discard(self)
        return self._coroutine.__await__()

    def close(self) -> None:
        self._coroutine.close()


class AsyncTransaction(_Transaction[ConnectionT, SessionT]):
    """The transaction of the claim, for async handlers; see Transaction."""

    __slots__ = ("_not_awaited",)

    def __init__(self, work: Work, messages: Sequence[Message], *, is_batch: bool = False) -> None:
        super().__init__(work, messages, is_batch=is_batch)
        self._not_awaited: set[_MustAwait[Any]] = set()

    def execute(self, sql: str, /, *args: Any, **params: Any) -> Awaitable[AsyncResult]:
        """Execute a statement with `:name` parameters; see Transaction.execute."""
        _check_is_named(args)
        return _MustAwait(self, self._execute(sql, params))

    async def _execute(self, sql: str, params: Mapping[str, Any]) -> AsyncResult:
        result = AsyncResult(self._work, await self._work.submit(sql, params)())
        self._work.hold(result)
        return result

    def execute_many(self, sql: str, rows: Sequence[Mapping[str, Any]], /) -> Awaitable[None]:
        """Execute a statement once per row of parameters."""
        return _MustAwait(self, self._execute_many(sql, rows))

    async def _execute_many(self, sql: str, rows: Sequence[Mapping[str, Any]]) -> None:
        await self._work.submit_many(sql, rows)()

    def _end(self) -> None:
        super()._end()
        for statement in self._not_awaited:
            statement.close()
        if self._not_awaited:
            raise OnceboxError(
                "the handler did not await tx.execute(), so the statement did not run: write "
                "`await tx.execute(...)`"
            )

    @asynccontextmanager
    async def savepoint(self) -> AsyncIterator[None]:
        """A block whose errors can be caught: an error undoes only the work of the block."""
        await arun(self._work.enter_savepoint())
        try:
            yield
            await arun(self._work.release_savepoint())
        except BaseException as error:
            await arun(self._work.rollback_to_savepoint(error))
            raise


def _check_is_named(args: tuple[Any, ...]) -> None:
    if args:
        raise OnceboxError(
            'pass parameters by name: tx.execute("... where id = :id", id=7), or **values'
        )


def _only(rows: list[Any]) -> Any:
    if len(rows) != 1:
        raise OnceboxError(f"one() expects one row, the statement returned {len(rows)}")
    return rows[0]
