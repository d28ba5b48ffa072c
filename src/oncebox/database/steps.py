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
            answer, error = None, raised


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
        except asyncio.CancelledError as raised:
            answer, error = None, _told_apart(raised)
        except BaseException as raised:
            answer, error = None, raised


def _told_apart(raised: asyncio.CancelledError) -> BaseException:
    """Our task's cancellation, or one that a handler let escape, which is the handler's failure."""
    task = asyncio.current_task()
    if task is None or task.cancelling():
        return raised
    failure = RuntimeError("a cancellation escaped from the handler")
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
