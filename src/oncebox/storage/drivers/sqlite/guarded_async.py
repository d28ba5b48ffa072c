"""An aiosqlite connection that handlers cannot close."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import aiosqlite


class AsyncGuardedConnection(aiosqlite.Connection):
    """Refuses close() while a handler runs.

    aiosqlite ends the thread of the connection even if sqlite3 refuses to close it: every later
    call on the connection would then wait forever.
    """

    async def query(self, sql: str, params: Sequence[Any]) -> list[Any]:
        """Execute one of our own statements and return all rows, in one call of the thread."""
        guarded: Any = self._conn
        rows: list[Any] = await self._execute(guarded.query, sql, params)  # type: ignore[no-untyped-call]
        return rows

    async def close(self) -> None:
        if self._connection is not None:
            self._connection.check_close()  # type: ignore[attr-defined]
        await super().close()
