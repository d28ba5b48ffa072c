"""Register handlers, upcasters and ignored types with an inbox."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, Literal, TypeVar, overload

from oncebox.errors import HandlerError
from oncebox.model.ordering import Ordering
from oncebox.model.retry import Retry
from oncebox.model.suggestions import checked_options
from oncebox.processing.handlers import Registry
from oncebox.storage.drivers.transaction import AsyncTransaction, Transaction

# For type checkers: a sync handler takes a Transaction, an async one an AsyncTransaction, and a
# batch handler a list. Callers need not name these types.
_Awaited = Coroutine[Any, Any, object]
_Tx = Transaction[Any, Any]
_AsyncTx = AsyncTransaction[Any, Any]
_Handler = (
    Callable[[Any], None]
    | Callable[[Any, _Tx], None]
    | Callable[[Any], _Awaited]
    | Callable[[Any, _AsyncTx], _Awaited]
)
_BatchHandler = (
    Callable[[list[Any]], None]
    | Callable[[list[Any], _Tx], None]
    | Callable[[list[Any]], _Awaited]
    | Callable[[list[Any], _AsyncTx], _Awaited]
)
H = TypeVar("H", bound=_Handler)
B = TypeVar("B", bound=_BatchHandler)
F = TypeVar("F", bound=Callable[..., Any])
G = TypeVar(
    "G",
    bound=Callable[[Transaction[Any, Any]], Iterator[None]]
    | Callable[[AsyncTransaction[Any, Any]], AsyncIterator[None]],
)
U = TypeVar("U", bound=Callable[[Any], Any])


class Registration:
    """The decorators of an inbox: which function handles which messages."""

    _registry: Registry

    @overload
    def on(
        self,
        type: str,
        *,
        version: int = 1,
        batch: Literal[False] = False,
        retry: Retry | None = None,
        ordering: Ordering | None = None,
    ) -> Callable[[H], H]: ...

    @overload
    def on(
        self,
        type: str,
        *,
        version: int = 1,
        batch: Literal[True],
        retry: Retry | None = None,
        ordering: Ordering | None = None,
    ) -> Callable[[B], B]: ...

    @overload
    def on(
        self,
        type: str,
        *,
        version: int = 1,
        batch: bool,
        retry: Retry | None = None,
        ordering: Ordering | None = None,
    ) -> Callable[[F], F]: ...

    @checked_options
    def on(
        self,
        type: str,
        *,
        version: int = 1,
        batch: bool = False,
        retry: Retry | None = None,
        ordering: Ordering | None = None,
    ) -> Callable[[F], F]:
        """Register a handler for messages of a type and version; "*" takes all other types.

        The handler takes `(payload)` or `(payload, tx)` and returns nothing; the annotation of its
        payload says what it is decoded into. With `batch`, it takes a list of payloads.
        """
        if callable(type):
            name = getattr(type, "__name__", repr(type))
            raise HandlerError(f'on() needs a message type: write @inbox.on("...") above {name}')

        def register(function: F) -> F:
            self._registry.add(function, type, version, batch=batch, retry=retry, ordering=ordering)
            return function

        return register

    def around(self, function: G) -> G:
        """Register a hook around each handler: a generator function of (tx) that yields once.

        The handler runs at the `yield`; its error is raised there. A hook may replace the error,
        but not suppress it. What a hook writes is committed or rolled back together with the work
        of the message. The hook that is registered first is the outermost. On PostgreSQL, the error
        of a pipelined statement may be raised after the hook has ended, and the hook does not see
        it.
        """
        self._registry.add_around(function)
        return function

    def upcast(self, type: str, *, from_version: int) -> Callable[[U], U]:
        """Register a function that converts decoded JSON from one version of a type to the next."""

        def register(function: U) -> U:
            self._registry.add_upcaster(function, type, from_version)
            return function

        return register

    def ignore(self, *types: str) -> None:
        """Ignore messages of these types: they are acked and counted, and leave no row."""
        self._registry.ignore(*types)
