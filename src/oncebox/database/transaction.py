"""Transaction: what a handler gets to work with."""

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
from typing import Any, Generic, TypeVar

from oncebox.database.contract import Work
from oncebox.database.steps import arun, run
from oncebox.errors import OnceboxError
from oncebox.message import Message

T = TypeVar("T")


class _Transaction:
    """What both colours have in common."""

    __slots__ = ("_message", "_work")

    def __init__(self, work: Work, message: Message | None) -> None:
        self._work = work
        self._message = message

    def _end(self) -> None:
        """The handler has returned: what it started on the side must not write any more."""
        self._work = _ENDED

    @property
    def message(self) -> Message:
        """The message that is being handled."""
        if self._message is None:
            raise OnceboxError("a batch handler has no single message: take list[Message]")
        return self._message

    @property
    def connection(self) -> Any:
        """The driver's connection. Its transaction is not yours to end."""
        return self._work.connection

    @property
    def session(self) -> Any:
        """With SQLAlchemy: a Session (or AsyncSession) joined to this transaction."""
        return self._work.session


class _Ended:
    """this transaction has ended: its handler returned"""

    def __getattr__(self, name: str) -> Any:
        raise OnceboxError(self.__doc__)


_ENDED: Any = _Ended()


class Result:
    """The result of a statement; nothing is waited for until it is read."""

    __slots__ = ("__weakref__", "_handle", "_work")

    def __init__(self, work: Work, handle: Any) -> None:
        self._work = work
        self._handle = handle

    def rows(self) -> list[Any]:
        """All rows."""
        return run(self._work.rows(self._handle))

    def one(self) -> Any:
        """The only row. Raises if there is none or more than one."""
        return _only(self.rows())

    @property
    def rowcount(self) -> int:
        """How many rows the statement touched."""
        return run(self._work.rowcount(self._handle))


class Transaction(_Transaction):
    """The transaction of the claim: what a handler writes here happens once, or not at all.

    A handler touches nothing but this. It may run several times before one commit.
    """

    __slots__ = ()

    def execute(self, sql: str, /, *args: Any, **params: Any) -> Result:
        """Execute a statement with `:name` parameters.

        On PostgreSQL statements are pipelined: an error may surface at a later statement, at the
        end of the handler, or where a result is read; use savepoint() to catch one.
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
        """A block whose errors can be caught: on one, its work is undone and the rest goes on."""
        run(self._work.enter_savepoint())
        try:
            yield
            run(self._work.release_savepoint())
        except BaseException as error:
            run(self._work.rollback_to_savepoint(error))
            raise


class AsyncResult:
    """The result of a statement; nothing is waited for until it is read."""

    __slots__ = ("__weakref__", "_handle", "_work")

    def __init__(self, work: Work, handle: Any) -> None:
        self._work = work
        self._handle = handle

    async def rows(self) -> list[Any]:
        """All rows."""
        return await arun(self._work.rows(self._handle))

    async def one(self) -> Any:
        """The only row. Raises if there is none or more than one."""
        return _only(await self.rows())

    @property
    async def rowcount(self) -> int:
        """How many rows the statement touched: `await result.rowcount`."""
        return await arun(self._work.rowcount(self._handle))


class _Expected(Generic[T]):
    """An answer that has to be awaited; one that was forgotten fails the handler."""

    __slots__ = ("_coroutine", "_tx")

    def __init__(self, tx: AsyncTransaction, coroutine: Coroutine[Any, Any, T]) -> None:
        if tx._work is _ENDED:
            coroutine.close()
            raise OnceboxError(_Ended.__doc__)
        self._tx = tx
        self._coroutine = coroutine
        tx._expected.add(self)

    def __await__(self) -> Generator[Any, Any, T]:
        self._tx._expected.discard(self)
        return self._coroutine.__await__()

    def close(self) -> None:
        self._coroutine.close()


class AsyncTransaction(_Transaction):
    """The transaction of the claim, for async handlers; see Transaction."""

    __slots__ = ("_expected",)

    def __init__(self, work: Work, message: Message | None) -> None:
        super().__init__(work, message)
        self._expected: set[_Expected[Any]] = set()

    def execute(self, sql: str, /, *args: Any, **params: Any) -> Awaitable[AsyncResult]:
        """Execute a statement with `:name` parameters; see Transaction.execute."""
        _check_is_named(args)
        return _Expected(self, self._execute(sql, params))

    async def _execute(self, sql: str, params: Mapping[str, Any]) -> AsyncResult:
        result = AsyncResult(self._work, await self._work.submit(sql, params)())
        self._work.hold(result)
        return result

    def execute_many(self, sql: str, rows: Sequence[Mapping[str, Any]], /) -> Awaitable[None]:
        """Execute a statement once per row of parameters."""
        return _Expected(self, self._execute_many(sql, rows))

    async def _execute_many(self, sql: str, rows: Sequence[Mapping[str, Any]]) -> None:
        await self._work.submit_many(sql, rows)()

    def _end(self) -> None:
        super()._end()
        for forgotten in self._expected:
            forgotten.close()
        if self._expected:
            raise OnceboxError("the handler forgot to await tx.execute(): nothing was executed")

    @asynccontextmanager
    async def savepoint(self) -> AsyncIterator[None]:
        """A block whose errors can be caught: on one, its work is undone and the rest goes on."""
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
            'parameters are given by name: tx.execute("... where id = :id", id=7), or **values'
        )


def _only(rows: list[Any]) -> Any:
    if len(rows) != 1:
        raise OnceboxError(f"one row was expected, {len(rows)} came back")
    return rows[0]
