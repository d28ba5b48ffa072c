"""Cursors of `tx.connection` that refuse to end the transaction of the claim."""

from __future__ import annotations

from functools import cache
from typing import Any

import psycopg

from oncebox.storage.drivers.parameters import check_driver_statement


@cache
def guarded(factory: type) -> type:
    """A subclass of a cursor class that refuses statements which end the transaction."""

    class Guarded(factory):  # type: ignore[misc]
        def execute(self, query: Any, *args: Any, **kwargs: Any) -> Any:
            _check(query, self)
            return super().execute(query, *args, **kwargs)

        def executemany(self, query: Any, *args: Any, **kwargs: Any) -> Any:
            _check(query, self)
            return super().executemany(query, *args, **kwargs)

        def stream(self, query: Any, *args: Any, **kwargs: Any) -> Any:
            _check(query, self)
            return super().stream(query, *args, **kwargs)

        def copy(self, statement: Any, *args: Any, **kwargs: Any) -> Any:
            _check(statement, self)
            return super().copy(statement, *args, **kwargs)

    return Guarded


def refuse_server_cursor(*_: Any, **__: Any) -> Any:
    """Takes the place of the class of server-side cursors in a pipeline."""
    raise psycopg.NotSupportedError(
        "server-side cursors do not work in a pipeline: they would read the results of other "
        "statements. Create the inbox with pipeline=False"
    )


def _check(query: Any, cursor: Any) -> None:
    if isinstance(query, bytes):
        query = query.decode("utf-8", "replace")
    elif not isinstance(query, str):  # psycopg.sql.Composed, or a template
        query = psycopg.sql.as_string(query, cursor)
    check_driver_statement(query)
