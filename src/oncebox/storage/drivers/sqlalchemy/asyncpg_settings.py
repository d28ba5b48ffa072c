"""Settings that let asyncpg work behind a pooler without prepared statements."""

from __future__ import annotations

from functools import cache
from typing import Any

from oncebox.errors import ConfigurationError
from oncebox.storage.drivers import pooler

UNPREPARED: dict[str, Any] = {
    "statement_cache_size": 0,
    "prepared_statement_cache_size": 0,
    "prepared_statement_name_func": lambda: "",  # an unnamed statement lasts until the next one
}
"""Connection arguments with which SQLAlchemy and asyncpg keep no prepared statements."""

_ADVICE = (
    "pass the URL to the inbox instead of an engine, or create the engine with "
    "connect_args={'statement_cache_size': 0, 'prepared_statement_cache_size': 0, "
    "'prepared_statement_name_func': lambda: ''}"
)


def prepared_statements_refused() -> ConfigurationError:
    """The error for an engine of the user that prepares statements behind such a pooler."""
    return ConfigurationError(pooler.REMEDY.format(setting=_ADVICE))


@cache
def connection_class() -> type:
    """A class of asyncpg connections on which SQLAlchemy can set up JSON behind a pooler."""
    import asyncpg  # type: ignore[import-untyped]

    class Connection(asyncpg.Connection):  # type: ignore[misc]
        async def set_type_codec(self, *args: Any, **kwargs: Any) -> None:
            # It executes a statement in two steps. Only a transaction keeps both in one session.
            async with self.transaction():
                await super().set_type_codec(*args, **kwargs)

    return Connection
