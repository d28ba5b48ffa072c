"""Signatures: what a handler takes, from its parameters and their annotations."""

from __future__ import annotations

import contextlib
import functools
import inspect
import types
import typing
from collections.abc import Callable
from typing import Any

from oncebox.errors import HandlerError
from oncebox.storage.drivers.transaction import AsyncTransaction, Transaction

Function = Callable[..., Any]


def read_signature(function: Function, *, batch: bool) -> tuple[Any, bool]:
    """The annotation of the payload, and whether the function takes the transaction.

    Raises HandlerError if the function could never run as a handler.
    """
    name = name_of(function)
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError) as error:
        raise HandlerError(f"{function!r} is not a function") from error
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    required = [p for p in positional if p.default is p.empty]
    demands = [p for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is p.empty]
    misplaced = any(p.name == "tx" for p in [*positional[2:], *positional[:1]])
    if not 1 <= len(required) <= 2 or demands or misplaced:
        raise HandlerError(
            f"handler {name} must take (payload) or (payload, tx), "
            f"but it takes ({', '.join(p.name for p in parameters)})"
        )
    takes_tx = len(required) == 2 or (len(positional) > 1 and positional[1].name == "tx")
    if takes_tx:
        _check_transaction(function, positional[1])
    return _payload_annotation(function, positional[0], batch=batch), takes_tx


def _payload_annotation(function: Function, parameter: inspect.Parameter, *, batch: bool) -> Any:
    """The type of one payload. Raises HandlerError if `batch` and the annotation disagree."""
    if parameter.annotation is parameter.empty:
        return Any
    name = name_of(function)
    annotation: Any = parameter.annotation
    if isinstance(annotation, str):
        annotation = _resolve(function, annotation)
    is_list = annotation is list or typing.get_origin(annotation) is list
    if batch is not is_list or (batch and not typing.get_args(annotation)):
        raise HandlerError(_batch_and_list(name, annotation, batch=batch))
    return typing.get_args(annotation)[0] if batch else annotation


def _batch_and_list(name: str, annotation: Any, *, batch: bool) -> str:
    if batch:
        return f"batch handler {name} must take list[...], not {annotation!r}"
    return (
        f"handler {name} takes {annotation!r}, but it gets one payload at a time: add batch=True "
        "to on(), or write Sequence[...] if each payload is a JSON array"
    )


def _check_transaction(function: Function, parameter: inspect.Parameter) -> None:
    """Raise HandlerError if the second parameter is annotated as something else."""
    annotation: Any = parameter.annotation
    if isinstance(annotation, str):
        try:
            annotation = _evaluate(function, annotation)
        except Exception:  # imported for type checkers only
            return
    is_async = inspect.iscoroutinefunction(plain_function(function))
    wanted = AsyncTransaction if is_async else Transaction
    if any(_is_kind_of(kind, wanted) for kind in _alternatives(annotation)):
        return
    raise HandlerError(
        f"handler {name_of(function)} is {'async' if is_async else 'sync'} and gets the "
        f"transaction as its second argument: annotate {parameter.name} as {wanted.__name__}, not "
        f"{getattr(annotation, '__qualname__', annotation)} (tx.connection and tx.session are the "
        "driver's objects)"
    )


def _alternatives(annotation: Any) -> tuple[Any, ...]:
    if typing.get_origin(annotation) is typing.Annotated:
        annotation = annotation.__origin__
    is_union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
    return typing.get_args(annotation) if is_union else (annotation,)


def _is_kind_of(annotation: Any, wanted: type) -> bool:
    """Whether an argument of the class `wanted` fits; in doubt, yes."""
    kind = typing.get_origin(annotation) or annotation
    if kind in (Any, inspect.Parameter.empty) or not isinstance(kind, type):
        return True
    return getattr(kind, "_is_protocol", False) or issubclass(wanted, kind)


def _resolve(function: Function, annotation: str) -> Any:
    """The type that a postponed annotation names. Raises HandlerError."""
    try:
        return _evaluate(function, annotation)
    except Exception as error:
        raise HandlerError(
            f"handler {name_of(function)}: the annotation {annotation!r} cannot be resolved "
            f"({error}); define the type at module level"
        ) from error


def _evaluate(function: Function, annotation: str) -> Any:
    """Evaluate a postponed annotation where the function was defined, closure included."""
    called = inspect.unwrap(plain_function(function))
    scope = dict(getattr(called, "__globals__", {}))
    names = called.__code__.co_freevars if inspect.isfunction(called) else ()
    for name, cell in zip(names, called.__closure__ or () if names else (), strict=True):
        with contextlib.suppress(ValueError):  # empty: the name is being defined right now
            scope[name] = cell.cell_contents
    return eval(annotation, scope)  # what typing.get_type_hints does, for one parameter


def plain_function(function: Function) -> Any:
    """The plain function behind a partial, a method or a callable object."""
    while isinstance(function, functools.partial):
        function = function.func
    if not inspect.isroutine(function) and not inspect.isclass(function):
        function = type(function).__call__
    return getattr(function, "__func__", function)


def name_of(function: Function) -> str:
    """The name of a function, for errors."""
    return getattr(function, "__qualname__", repr(function))
