"""Access to private attributes of an inbox, for tests that the public API cannot serve."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import msgspec
import pytest

from oncebox import Gaps, Inbox
from oncebox.storage.steps import Steps, run


def store_of(inbox: Inbox) -> Any:
    """The store; tests call or replace methods of one database, so it has no type."""
    return inbox._context.store


def database_of(inbox: Inbox) -> Any:
    """The database of a sync inbox, opened."""
    return run(inbox._engine.connection.open_for_operation(False))


def open_database(inbox: Inbox, is_async: bool) -> Steps[Any]:
    """Open the database of a sync or async inbox, as a step."""
    return (yield from inbox._engine.connection.open_for_operation(is_async))


def opened_database(inbox: Inbox) -> Any:
    """The database if it is open, else None."""
    return inbox._engine.connection.current


def signed_on_worker(inbox: Inbox, batch: int) -> AbstractContextManager[Any]:
    """A worker that is signed on within the block."""
    return inbox._engine.worker(batch)


def drain_of(inbox: Inbox, worker: Any) -> Any:
    """The drain of a sync inbox for a worker."""
    return run(inbox._engine.drain(False, worker))


def gaps_of(inbox: Inbox) -> Gaps:
    """The policy for gaps."""
    return inbox._context.gaps


def make_database(inbox: Inbox, *, is_async: bool) -> Any:
    """A database as the inbox would make it, not opened."""
    return inbox._engine.connection.target.make(is_async)


def replace_database(monkeypatch: pytest.MonkeyPatch, inbox: Inbox, database: Any) -> None:
    """Let the inbox use this database instead of making one."""
    target = msgspec.structs.replace(inbox._engine.connection.target, make=lambda _: database)
    monkeypatch.setattr(inbox._engine.connection, "target", target)
