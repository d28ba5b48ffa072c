"""Connection: what a store needs from a database driver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeAlias

from oncebox.storage.steps import Steps

Guard: TypeAlias = tuple[str, Mapping[str, Any]]
"""A statement, and its parameters, that fails unless this is still the expected transaction."""


class Connection(Protocol):
    """A transaction on the user's database, as the store sees it. Parameters are `:name`."""

    def fetch(self, sql: str, params: Mapping[str, Any]) -> Steps[list[Sequence[Any]]]:
        """Execute and return all rows."""
        ...

    def execute(self, sql: str, params: Mapping[str, Any]) -> Steps[None]:
        """Execute. An error may be raised as late as the commit."""
        ...

    def execute_many(self, sql: str, rows: Sequence[Mapping[str, Any]]) -> Steps[None]:
        """Execute once per row. An error may be raised as late as the commit."""
        ...


class Guarded(Connection, Protocol):
    """A transaction that executes a guard before its COMMIT."""

    guard: Guard | None
