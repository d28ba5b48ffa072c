"""Replays: run finished messages again, under a name, in their old order."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from math import inf
from typing import Any, Unpack

import msgspec

from oncebox.errors import ConfigurationError, NotFound
from oncebox.model.filters import MessageFilter, checked_message_filter, selects_everything
from oncebox.model.replay import Replay
from oncebox.operations.audit import audit_entry
from oncebox.operations.methods import async_method, sync_method
from oncebox.processing.context import Context
from oncebox.storage.contract import Store
from oncebox.storage.drivers.contract import Database
from oncebox.storage.drivers.transactions import RetryTransaction, read, run_transaction_once
from oncebox.storage.records import AuditEntry
from oncebox.storage.steps import Steps

SLOWEST = 0.001
"""The slowest pace, in messages per second: databases cannot store times that are further away."""

CHECK_INTERVAL = 1.0
"""Seconds between two checks for replays while none is running."""


class Preview(msgspec.Struct, frozen=True):
    """How many messages a replay would run."""

    count: int
    without_payload: int
    """Messages that match, but whose payload was not stored or was erased."""
    in_other_states: int
    """Messages that match, but are unfinished or were discarded."""


class Replays:
    """Runs finished messages again: `inbox.replays`.

    Workers store the messages of a replay again as pending, a few at a time, so a replay continues
    after any crash. Messages are selected by `ids`, `origin`, `type`, `key`, the time they were
    received (`since`, `until`), and `state`: done or discarded.
    """

    def __init__(self, context: Context) -> None:
        self._context = context

    def _preview(self, is_async: bool, **filter: Unpack[MessageFilter]) -> Steps[Preview]:
        """Count the messages that a replay would run."""
        count = self._context.store.count_messages
        counted = yield from self._context.read(is_async, count, checked_message_filter(filter))
        return Preview(*counted)

    preview = sync_method(_preview)
    apreview = async_method(_preview)

    def _start(
        self,
        is_async: bool,
        name: str,
        *,
        why: str,
        by: str | None = None,
        pace: float | None = None,
        **filter: Unpack[MessageFilter],
    ) -> Steps[Replay]:
        """Start a replay: workers run each of these messages once more.

        They run in their old order, after the pending messages of their keys. `pace` is the largest
        number of messages per second; without it, workers take as many as they can.
        """
        audit = audit_entry("replay", by, why)
        checked = checked_message_filter(filter)
        if selects_everything(checked):
            raise ConfigurationError(
                "a replay without a filter would run every finished message again: pass type=..., "
                "since=..., ..."
            )
        started = yield from self._context.write(
            is_async,
            self._context.store.begin_replay,
            name=_checked_name(name),
            filter=checked,
            pace=_checked_pace(pace),
            audit=audit,
        )
        if started is None:
            raise ConfigurationError(f"a replay named {name!r} exists already: use another name")
        return (yield from self._get(is_async, name))

    start = sync_method(_start)
    astart = async_method(_start)

    def _find(self, is_async: bool, *, limit: int = 50) -> Steps[list[Replay]]:
        """Find replays, newest first."""
        return self._context.read(is_async, self._context.store.replays, name=None, limit=limit)

    find = sync_method(_find)
    afind = async_method(_find)

    def _get(self, is_async: bool, name: str) -> Steps[Replay]:
        """The progress of a replay."""
        replays = self._context.store.replays
        found = yield from self._context.read(is_async, replays, name=name, limit=1)
        if not found:
            raise NotFound(f"there is no replay {name!r} in this inbox")
        return found[0]

    get = sync_method(_get)
    aget = async_method(_get)

    def _set_pace(
        self,
        is_async: bool,
        name: str,
        pace: float | None,
        *,
        why: str,
        by: str | None = None,
    ) -> Steps[Replay]:
        """Change the pace of a running replay."""
        audit = audit_entry("pace", by, why)
        change = partial(self._context.store.set_pace, pace=_checked_pace(pace))
        return (yield from self._change(is_async, name, change, audit))

    set_pace = sync_method(_set_pace)
    aset_pace = async_method(_set_pace)

    def _cancel(
        self, is_async: bool, name: str, *, why: str, by: str | None = None
    ) -> Steps[Replay]:
        """Remove the messages that a replay has not run yet, and its dead letters.

        A message in flight may still finish; if it fails, a worker removes it.
        """
        audit = audit_entry("cancel", by, why)
        yield from self._change(is_async, name, self._context.store.cancel_replay, audit)
        database = yield from self._context.open(is_async)
        feeder = ReplayFeeder(database, self._context.store, self._context.consumer)
        while True:
            went_on = yield from feeder.step()
            replay = yield from self._get(is_async, name)
            if replay.is_over or not went_on:
                return replay

    cancel = sync_method(_cancel)
    acancel = async_method(_cancel)

    def _change(
        self, is_async: bool, name: str, change: Callable[..., Steps[bool]], audit: AuditEntry
    ) -> Steps[Replay]:
        replay = yield from self._get(is_async, name)
        if replay.is_over and not replay.dead:
            raise ConfigurationError(f"replay {name!r} has ended and cannot be changed")
        if not (yield from self._context.write(is_async, change, name=name, audit=audit)):
            raise ConfigurationError(f"replay {name!r} is {replay.state} and cannot be changed")
        return (yield from self._get(is_async, name))


class ReplayFeeder:
    """Continues the replays of a consumer, one transaction at a time."""

    def __init__(self, database: Database, store: Store, consumer: str) -> None:
        self._database = database
        self._store = store
        self._consumer = consumer
        self._next_check_at = 0.0

    def step(self) -> Steps[bool]:
        """Store more messages of a replay, or remove some. Returns False if nothing was due."""
        if time.monotonic() < self._next_check_at:
            return False
        check = partial(self._store.next_replay, consumer=self._consumer)
        wait = yield from read(self._database, check)
        if wait is not None and wait <= 0:
            try:
                proceed = partial(self._store.continue_replay, consumer=self._consumer)
                return (yield from run_transaction_once(self._database, proceed))
            except RetryTransaction:  # another transaction holds the lock of a key: try again later
                wait = CHECK_INTERVAL
        self._next_check_at = time.monotonic() + min(CHECK_INTERVAL, wait or CHECK_INTERVAL)
        return False


def _checked_name(name: Any) -> str:
    if not isinstance(name, str) or not 0 < len(name) <= 100 or not name.isprintable():
        raise ConfigurationError(
            f"the name of a replay must have 1 to 100 printable characters, got {name!r}"
        )
    return name


def _checked_pace(pace: Any) -> float | None:
    number = isinstance(pace, int | float) and not isinstance(pace, bool)
    if pace is not None and not (number and SLOWEST <= pace < inf):
        raise ConfigurationError(
            f"pace must be a number of messages per second from {SLOWEST}, got {pace!r}"
        )
    return None if pace is None else float(pace)
