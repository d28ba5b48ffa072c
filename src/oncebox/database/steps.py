"""Steps: the two runners. All database work is written once, as generators that yield calls.

A sync driver's call does the work and returns its answer; an async driver's call returns an
awaitable of it. That is the whole difference between the colours, and it lives here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from oncebox.store.contract import Steps

T = TypeVar("T")


def run(steps: Steps[T]) -> T:
    """Perform every call that the steps yield; errors go back into them."""
    answer: Any = None
    error: BaseException | None = None
    while True:
        try:
            call = steps.send(answer) if error is None else steps.throw(error)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        try:
            answer, error = call(), None
        except BaseException as raised:
            answer, error = None, _contained(raised)


async def arun(steps: Steps[T]) -> T:
    """Perform and await every call that the steps yield; errors go back into them.

    A cancellation goes into the steps as well, so that they can roll back before it goes on.
    """
    answer: Any = None
    error: BaseException | None = None
    while True:
        try:
            call = steps.send(answer) if error is None else steps.throw(error)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        try:
            answer, error = await call(), None
        except BaseException as raised:
            answer, error = None, _contained(raised)


def _contained(raised: BaseException) -> BaseException:
    """What would mean something else inside of the steps than where it was raised.

    A GeneratorExit would say that nobody performs the steps any more. A CancelledError is our
    task's own, or one that a handler let escape, and then it is the handler's failure.
    """
    if isinstance(raised, asyncio.CancelledError):
        task = asyncio.current_task()
        escaped = task is not None and not task.cancelling()
    else:
        escaped = isinstance(raised, GeneratorExit)
    if not escaped:
        return raised
    failure = RuntimeError(f"{type(raised).__name__} escaped from a handler")
    failure.__cause__ = raised
    return failure


def entering(manager: Any) -> Callable[[], Any]:
    """The call that enters a context manager of either colour."""
    enter: Callable[[], Any] = getattr(manager, "__aenter__", None) or manager.__enter__
    return enter


def leaving(manager: Any, error: BaseException | None = None) -> Callable[[], Any]:
    """The call that leaves a context manager of either colour."""
    leave = getattr(manager, "__aexit__", None) or manager.__exit__
    traceback = error.__traceback__ if error else None
    return lambda: leave(type(error) if error else None, error, traceback)
