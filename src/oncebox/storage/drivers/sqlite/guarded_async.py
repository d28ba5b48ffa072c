"""An aiosqlite connection that handlers cannot close."""

from __future__ import annotations

import aiosqlite


class AsyncGuardedConnection(aiosqlite.Connection):
    """Refuses close() while a handler runs.

    aiosqlite ends the thread of the connection even if sqlite3 refuses to close it: every later
    call on the connection would then wait forever.
    """

    async def close(self) -> None:
        if self._connection is not None:
            self._connection.check_close()  # type: ignore[attr-defined]
        await super().close()
