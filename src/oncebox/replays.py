"""Replays: old messages are run once more, under a name, in their old order, by the drain."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from math import inf
from typing import Any, TypeVar, Unpack

import msgspec

from oncebox.audit import checked_deed
from oncebox.database import Again, committed, once, seen
from oncebox.database.contract import Database, Work
from oncebox.database.steps import arun, run
from oncebox.errors import ConfigurationError, NotFound
from oncebox.home import Home
from oncebox.past import Which, checked_past
from oncebox.store.contract import Steps, Store
from oncebox.store.records import Past, Replay

T = TypeVar("T")

SLOWEST = 0.001
"""Messages per second: the time of the next one must be one that a database can keep."""

LOOK_EVERY = 1.0
"""Seconds between two looks for replays while there are none."""


class Preview(msgspec.Struct, frozen=True):
    """What a replay would run."""

    count: int
    without_payload: int
    """Match too, but their payload was not kept, or was erased."""
    in_other_states: int
    """Match too, but are unfinished, or were discarded."""


class Replays:
    """Runs messages of the past once more: `inbox.replays`.

    Whoever drains the inbox also stores the messages of replays anew, bit by bit: so a replay goes
    on whatever dies. Messages are chosen by `ids`, `origin`, `type`, `key`, by the time they were
    received (`since`, `until`), and by `state`: done, or discarded.
    """

    def __init__(self, home: Home) -> None:
        self._home = home

    def preview(self, **which: Unpack[Which]) -> Preview:
        """How many messages a replay would run."""
        return run(self._preview(which, is_async=False))

    async def apreview(self, **which: Unpack[Which]) -> Preview:
        """See preview()."""
        return await arun(self._preview(which, is_async=True))

    def start(
        self,
        name: str,
        *,
        why: str,
        by: str | None = None,
        pace: float | None = None,
        **which: Unpack[Which],
    ) -> Replay:
        """Begin a replay: from now on the drain runs each of these messages once more.

        They run in their old order, behind what their keys have to do already. `pace` is how many
        are stored per second at most; without it, as many as the drain takes.
        """
        return run(self._start(name, why, by, pace, which, is_async=False))

    async def astart(
        self,
        name: str,
        *,
        why: str,
        by: str | None = None,
        pace: float | None = None,
        **which: Unpack[Which],
    ) -> Replay:
        """See start()."""
        return await arun(self._start(name, why, by, pace, which, is_async=True))

    def find(self, *, limit: int = 50) -> list[Replay]:
        """Replays, the newest first."""
        return run(self._find(None, limit, is_async=False))

    async def afind(self, *, limit: int = 50) -> list[Replay]:
        """See find()."""
        return await arun(self._find(None, limit, is_async=True))

    def get(self, name: str) -> Replay:
        """How far a replay is."""
        return run(self._get(name, is_async=False))

    async def aget(self, name: str) -> Replay:
        """See get()."""
        return await arun(self._get(name, is_async=True))

    def set_pace(self, name: str, pace: float | None, *, why: str, by: str | None = None) -> Replay:
        """Let a replay go on at another pace."""
        return run(self._set_pace(name, pace, why, by, is_async=False))

    async def aset_pace(
        self, name: str, pace: float | None, *, why: str, by: str | None = None
    ) -> Replay:
        """See set_pace()."""
        return await arun(self._set_pace(name, pace, why, by, is_async=True))

    def cancel(self, name: str, *, why: str, by: str | None = None) -> Replay:
        """Take back what a replay has not run, its dead letters included.

        What runs at this moment may still come to its end; the drain takes back what does not.
        """
        return run(self._cancel(name, why, by, is_async=False))

    async def acancel(self, name: str, *, why: str, by: str | None = None) -> Replay:
        """See cancel()."""
        return await arun(self._cancel(name, why, by, is_async=True))

    # -- the steps --------------------------------------------------------------------------------

    def _preview(self, which: Which, *, is_async: bool) -> Steps[Preview]:
        past = checked_past(which)
        database = yield from self._home._database_for(is_async)
        count = partial(self._home._store.count_past, consumer=self._home.name, past=past)
        return Preview(*(yield from seen(database, count)))

    def _start(
        self,
        name: str,
        why: str,
        by: str | None,
        pace: float | None,
        which: Which,
        *,
        is_async: bool,
    ) -> Steps[Replay]:
        deed = checked_deed("replay", by, why)
        past = checked_past(which)
        if past == Past():
            raise ConfigurationError("say which messages are to be replayed: type, since, ...")
        begin = partial(
            self._home._store.begin_replay,
            consumer=self._home.name,
            name=_checked_name(name),
            past=past,
            pace=_checked_pace(pace),
            deed=deed,
        )
        database = yield from self._home._database_for(is_async)
        if (yield from committed(database, begin)) is None:
            raise ConfigurationError(f"there is a replay {name!r} already: give another name")
        return (yield from self._get(name, is_async=is_async))

    def _find(self, name: str | None, limit: int, *, is_async: bool) -> Steps[list[Replay]]:
        database = yield from self._home._database_for(is_async)
        look = partial(self._home._store.replays, consumer=self._home.name, name=name, limit=limit)
        return (yield from seen(database, look))

    def _get(self, name: str, *, is_async: bool) -> Steps[Replay]:
        found = yield from self._find(name, 1, is_async=is_async)
        if not found:
            raise NotFound(f"there is no replay {name!r} in this inbox")
        return found[0]

    def _set_pace(
        self, name: str, pace: float | None, why: str, by: str | None, *, is_async: bool
    ) -> Steps[Replay]:
        deed = checked_deed("pace", by, why)
        change = partial(
            self._home._store.set_pace,
            consumer=self._home.name,
            name=name,
            pace=_checked_pace(pace),
            deed=deed,
        )
        return (yield from self._change(name, change, is_async=is_async))

    def _cancel(self, name: str, why: str, by: str | None, *, is_async: bool) -> Steps[Replay]:
        deed = checked_deed("cancel", by, why)
        cancel = partial(
            self._home._store.begin_cancel, consumer=self._home.name, name=name, deed=deed
        )
        yield from self._change(name, cancel, is_async=is_async)
        database = yield from self._home._database_for(is_async)
        feeder = Feeder(database, self._home._store, self._home.name)
        while True:
            went_on = yield from feeder.step()
            replay = yield from self._get(name, is_async=is_async)
            if replay.is_over or not went_on:
                return replay

    def _change(
        self, name: str, change: Callable[[Work], Steps[bool]], *, is_async: bool
    ) -> Steps[Replay]:
        replay = yield from self._get(name, is_async=is_async)
        if replay.is_over and not replay.dead:
            raise ConfigurationError(f"replay {name!r} is over")
        database = yield from self._home._database_for(is_async)
        if not (yield from committed(database, change)):
            raise ConfigurationError(f"replay {name!r} is {replay.state}, it cannot be changed")
        return (yield from self._get(name, is_async=is_async))


class Feeder:
    """Goes on with the replays of a consumer, one transaction at a time."""

    def __init__(self, database: Database, store: Store, consumer: str) -> None:
        self._database = database
        self._store = store
        self._consumer = consumer
        self._look_at = 0.0

    def step(self) -> Steps[bool]:
        """Store some more messages, or take some back; says whether there was anything to do."""
        if time.monotonic() < self._look_at:
            return False
        look = partial(self._store.next_replay, consumer=self._consumer)
        wait = yield from seen(self._database, look)
        if wait is not None and wait <= 0:
            try:
                go_on = partial(self._store.go_on_replaying, consumer=self._consumer)
                return (yield from once(self._database, go_on))
            except Again:  # somebody holds the lock of a key for long: it is not worth a wait
                wait = LOOK_EVERY
        self._look_at = time.monotonic() + min(LOOK_EVERY, wait or LOOK_EVERY)
        return False


def _checked_name(name: Any) -> str:
    if not isinstance(name, str) or not 0 < len(name) <= 100 or not name.isprintable():
        raise ConfigurationError("the name of a replay has 1 to 100 printable characters")
    return name


def _checked_pace(pace: Any) -> float | None:
    number = isinstance(pace, int | float) and not isinstance(pace, bool)
    if pace is not None and not (number and SLOWEST <= pace < inf):
        raise ConfigurationError(
            f"pace is a number of messages per second from {SLOWEST}, not {pace!r}"
        )
    return None if pace is None else float(pace)
