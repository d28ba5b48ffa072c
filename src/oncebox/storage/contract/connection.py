"""Connection: what a store needs from a database driver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from oncebox.storage.steps import Steps


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
