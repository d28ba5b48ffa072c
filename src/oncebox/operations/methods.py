"""Sync and async methods made from one generator, so that an operation is written once."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, TypeVar

from oncebox.storage.drivers.contract import AsyncConnection, SyncConnection
from oncebox.storage.steps import Steps, arun, run

S = TypeVar("S")
P = ParamSpec("P")
T = TypeVar("T")


def sync_method(
    steps: Callable[Concatenate[S, bool, P], Steps[T]],
) -> Callable[Concatenate[S, P], T]:
    """Make the sync method of a generator method whose first parameter is `is_async`."""

    def method(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return run(steps(self, False, *args, **kwargs))

    _describe(method, steps, prefix="")
    return method


def async_method(
    steps: Callable[Concatenate[S, bool, P], Steps[T]],
) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
    """Make the async method of a generator method whose first parameter is `is_async`."""

    async def method(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await arun(steps(self, True, *args, **kwargs))

    _describe(method, steps, prefix="a")
    return method


def sync_claim_method(
    steps: Callable[Concatenate[S, bool, Any, P], Steps[T]],
) -> Callable[Concatenate[S, SyncConnection, P], T]:
    """As sync_method(), for a method whose first argument is the caller's connection."""
    return sync_method(steps)


def async_claim_method(
    steps: Callable[Concatenate[S, bool, Any, P], Steps[T]],
) -> Callable[Concatenate[S, AsyncConnection, P], Coroutine[Any, Any, T]]:
    """As async_method(), for a method whose first argument is the caller's connection."""
    return async_method(steps)


def _describe(method: Any, steps: Callable[..., Any], *, prefix: str) -> None:
    """Set the name, docstring and signature that users see."""
    name = steps.__name__.lstrip("_")
    method.__name__ = f"{prefix}{name}"
    method.__qualname__ = f"{steps.__qualname__.rpartition('.')[0]}.{prefix}{name}"
    method.__module__ = steps.__module__
    method.__doc__ = steps.__doc__ if not prefix else f"Async version of {name}()."
    signature = inspect.signature(steps)
    shown = [p for p in signature.parameters.values() if p.name != "is_async"]
    returned = str(signature.return_annotation).removeprefix("Steps[").removesuffix("]")
    method.__signature__ = signature.replace(parameters=shown, return_annotation=returned)
