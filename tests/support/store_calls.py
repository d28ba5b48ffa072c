"""Which methods of a store a test calls: as its source says, and as it really did."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

from oncebox.storage.contract import Store


def contract_methods() -> set[str]:
    """The names of all methods of the store contract."""
    return {
        name
        for kind in Store.__mro__
        if kind.__module__.startswith("oncebox.storage.contract")
        for name, member in vars(kind).items()
        if inspect.isfunction(member) and not name.startswith("_")
    }


def named_methods(test: ast.AST) -> set[str]:
    """The methods that the source of a test calls on its store, by name.

    These forms count: `harness.store.claim(...)`, `harness.claim(...)`, `harness.call("claim")`.
    """
    calls = [node for node in ast.walk(test) if isinstance(node, ast.Call)]
    return {name for call in calls for name in _called(call)} & contract_methods()


def source_of(test: Callable[..., Any]) -> ast.AST:
    """The source of a test, parsed."""
    return ast.parse(textwrap.dedent(inspect.getsource(test)))


def _called(call: ast.Call) -> Iterator[str]:
    if not isinstance(call.func, ast.Attribute):
        return
    owner = ast.unparse(call.func.value)
    if owner == "harness" and call.func.attr == "call":
        name = call.args[0]
        if isinstance(name, ast.Constant):
            yield str(name.value)
    elif owner in ("harness", "harness.store"):
        yield call.func.attr


class RecordedStore:
    """A store that records which of its methods ran."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.ran: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._store, name)
        if inspect.isgeneratorfunction(value):
            return lambda *args, **options: self._steps(name, value(*args, **options))
        if inspect.ismethod(value):
            return lambda *args, **options: self._call(name, value, *args, **options)
        return value

    def _steps(self, name: str, steps: Any) -> Any:
        self.ran.add(name)
        return (yield from steps)

    def _call(self, name: str, method: Callable[..., Any], *args: Any, **options: Any) -> Any:
        self.ran.add(name)
        return method(*args, **options)
