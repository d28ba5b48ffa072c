"""Find out whether a driver may prepare statements on the server.

A pooler in transaction mode, such as pgbouncer, gives each transaction another session of the
server. Since version 1.21, pgbouncer tracks which statements a client has prepared. Before that,
two clients that use the same name for different statements get errors, or execute each other's
statements with their own values. So the drivers check this before they prepare a statement.
"""

from __future__ import annotations

import re
from typing import Any
from uuid import uuid4

from oncebox.storage.drivers import error_codes
from oncebox.storage.steps import Steps

PROBE_TIMEOUT = 10.0
"""Seconds that the test may take."""

SESSION = "SELECT pg_backend_pid()"

OWN_NAME = """
SELECT name FROM pg_prepared_statements WHERE position('oncebox {nonce}' in statement) > 0
"""
"""Executed as a prepared statement, this returns its own name on the server."""

DRIVERS_NAMES = re.compile("_pg3_|__asyncpg_stmt_")
"""The prefixes of the names that drivers choose: they are the same in every process."""

REMEDY = (
    "the pooler in front of the server does not support prepared statements. Upgrade pgbouncer to "
    "1.21 or later and set max_prepared_statements, or {setting}"
)


def may_prepare(work: Any, driver: Any, *, try_it: bool = True) -> Steps[bool | None]:
    """True if statements may be prepared on this connection; None if the connection is lost.

    `work` is a transaction that has not begun; it ends here. With `try_it`, a pooler is tested with
    a prepared statement. If the result is then False, the caller must close the connection, because
    the prepared statement is left on it.
    """
    if not _prepares(driver):
        return True
    try:
        yield from work.begin(PROBE_TIMEOUT)
        found = yield from work.fetch(SESSION, {})
        result = found[0][0] == _session(driver) or (
            try_it and (yield from _is_renamed(work, driver))
        )
        yield from work.commit()
    except GeneratorExit:  # no runner performs our calls any more
        raise
    except BaseException as error:
        yield from work.rollback()
        if error_codes.is_prepared_statement_error(error):
            return False
        if work.is_lost(error) and not error_codes.is_statement_pooling(error):
            return None
        raise
    finally:
        work.unwatch()
    return result


def stop_preparing(driver: Any) -> None:
    """Let a psycopg connection send every statement with its full text from now on."""
    driver.prepare_threshold = None


def _prepares(driver: Any) -> bool:
    """True if the driver is psycopg with prepared statements, or asyncpg."""
    return getattr(driver, "prepare_threshold", None) is not None or hasattr(
        driver, "get_server_pid"
    )


def _session(driver: Any) -> int:
    """The PID of the server process, as reported on connect. A pooler reports an invented one."""
    if hasattr(driver, "get_server_pid"):
        return int(driver.get_server_pid())
    return int(driver.info.backend_pid)


def _is_renamed(work: Any, driver: Any) -> Steps[bool]:
    """True if the pooler renames prepared statements, which shows that it tracks them."""
    usual = getattr(driver, "prepare_threshold", None)
    if usual is not None:
        driver.prepare_threshold = 0
    try:
        rows = yield from work.fetch(OWN_NAME.format(nonce=uuid4().hex), {})
    finally:
        if usual is not None:
            driver.prepare_threshold = usual
    names = [row[0] for row in rows if DRIVERS_NAMES.match(row[0])]
    for name in names:
        yield from work.execute(f'DEALLOCATE "{name}"', {})
    return not names
