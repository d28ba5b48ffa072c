"""Steps and their two runners: all database code is written once, as generators of calls.

A generator yields calls and gets their results. `run` performs the calls of a sync driver; `arun`
awaits those of an async driver. This is the only difference between sync and async code.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from inspect import GEN_CLOSED, getgeneratorstate
from typing import Any, TypeAlias, TypeVar

T = TypeVar("T")

Call: TypeAlias = Callable[[], Any]
"""A call to perform: `run` calls it, `arun` calls it and awaits the result."""

Steps: TypeAlias = Generator[Call, Any, T]
"""A generator that yields calls, gets their results, and returns a T."""


def run(steps: Steps[T]) -> T:
    """Perform every call that the steps yield; throw its errors into the steps.

    An exception that a signal handler raises between two calls is thrown into the steps as well, so
    that they roll back and release their connection before it is raised to the caller.
    """
    error: BaseException | None = None
    while True:
        try:
            return _perform(steps, error)
        except BaseException as raised:
            if getgeneratorstate(steps) == GEN_CLOSED:  # the steps ended with this error
                raise
            error = raised


def _perform(steps: Steps[T], error: BaseException | None) -> T:
    result: Any = None
    while True:
        try:
            call = steps.send(result) if error is None else steps.throw(error)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        try:
            result, error = call(), None
        except BaseException as raised:
            result, error = None, _as_handler_error(raised)


async def arun(steps: Steps[T]) -> T:
    """Perform and await every call that the steps yield; throw its errors into the steps.

    A cancellation, and an exception of a signal handler, are thrown into the steps too: see run().
    """
    error: BaseException | None = None
    while True:
        try:
            return await _aperform(steps, error)
        except BaseException as raised:
            if getgeneratorstate(steps) == GEN_CLOSED:
                raise
            error = raised


async def _aperform(steps: Steps[T], error: BaseException | None) -> T:
    result: Any = None
    while True:
        try:
            call = steps.send(result) if error is None else steps.throw(error)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        try:
            result, error = await call(), None
        except BaseException as raised:
            result, error = None, _as_handler_error(raised)


_exit_is_error = False


def treat_exit_as_error() -> None:
    """From now on, let SystemExit fail the handler that raises it.

    For processes in which no signal handler raises it: elsewhere it may be meant to end the
    process.
    """
    global _exit_is_error
    _exit_is_error = True


def _as_handler_error(raised: BaseException) -> BaseException:
    """Replace an exception of a handler that would have another meaning inside the steps.

    A GeneratorExit would mean that no runner performs the steps any more. A CancelledError either
    cancels our task, or escaped from a handler; then it is an error of that handler. So is a
    SystemExit, after treat_exit_as_error().
    """
    if isinstance(raised, asyncio.CancelledError):
        task = asyncio.current_task()
        escaped = task is not None and not task.cancelling()
    else:
        escaped = isinstance(raised, GeneratorExit)
        escaped |= _exit_is_error and isinstance(raised, SystemExit)
    if not escaped:
        return raised
    failure = RuntimeError(f"{type(raised).__name__} escaped from a handler")
    failure.__cause__ = raised
    return failure


def entering(manager: Any) -> Callable[[], Any]:
    """The call that enters a sync or async context manager."""
    enter: Callable[[], Any] = getattr(manager, "__aenter__", None) or manager.__enter__
    return enter


def leaving(manager: Any, error: BaseException | None = None) -> Callable[[], Any]:
    """The call that leaves a sync or async context manager."""
    leave = getattr(manager, "__aexit__", None) or manager.__exit__
    if error is None:
        return lambda: leave(None, None, None)
    # An exception with a length of 0 is false, and a manager may test it like that.
    raised = error if error else RuntimeError(f"{type(error).__name__} was raised")
    return lambda: leave(type(raised), raised, error.__traceback__)
