"""Hooks around handlers: what @inbox.around registers, and how a handler runs inside its hooks."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from functools import partial
from typing import Any

from oncebox.errors import HandlerError
from oncebox.processing.signatures import Function, name_of, plain_function
from oncebox.storage.drivers.transaction import AsyncTransaction, Transaction
from oncebox.storage.steps import Call

Hook = Callable[[Any], Any]
"""Makes the context manager, sync or async, in which a handler runs, from its transaction."""

SUPPRESSED = (
    "a hook of @inbox.around suppressed the error of its handler, which would mark the message as "
    "done: raise the error again, or raise Reject"
)


def hook_of(function: Function) -> tuple[Hook, bool]:
    """The hook that a generator function is, and whether it is async. Raises HandlerError."""
    plain = plain_function(function)
    is_async = inspect.isasyncgenfunction(plain)
    if not is_async and not inspect.isgeneratorfunction(plain):
        raise HandlerError(
            f"{name_of(function)} must be a generator function: write `yield` where the handler "
            "runs"
        )
    try:
        inspect.signature(function).bind(None)
    except TypeError as error:
        raise HandlerError(f"{name_of(function)} must take one argument, (tx)") from error
    return (asynccontextmanager if is_async else contextmanager)(function), is_async


def surround(hooks: Sequence[Hook], tx: Transaction | AsyncTransaction, call: Call) -> Call:
    """The call of a handler inside its hooks; the first hook is the outermost."""
    if isinstance(tx, AsyncTransaction):
        return partial(_acall, hooks, tx, call)
    return partial(_call, hooks, tx, call)


def _call(hooks: Sequence[Hook], tx: Transaction, call: Call) -> Any:
    interrupt: BaseException | None = None
    with ExitStack() as stack:
        for hook in hooks:
            stack.enter_context(hook(tx))
        try:
            return call()
        except BaseException as error:
            interrupt = None if isinstance(error, Exception) else error
            raise
    raise interrupt or HandlerError(SUPPRESSED)


async def _acall(hooks: Sequence[Hook], tx: AsyncTransaction, call: Call) -> Any:
    interrupt: BaseException | None = None
    async with AsyncExitStack() as stack:
        for hook in hooks:
            await stack.enter_async_context(hook(tx))
        try:
            return await call()
        except BaseException as error:
            interrupt = None if isinstance(error, Exception) else error
            raise
    raise interrupt or HandlerError(SUPPRESSED)
