"""Replaying: what a store does to run old messages once more. The same on every database, but for
locks and numbers."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from oncebox.model.filters import MessageFilter
from oncebox.model.replay import Replay
from oncebox.storage.contract import Connection
from oncebox.storage.records import AuditEntry
from oncebox.storage.sql.dialect import Dialect
from oncebox.storage.steps import Steps

AT_ONCE = 500
"""Messages that are stored in one transaction: each may lock a key."""

AMPLE = 500
"""No more are stored while so many of the same replay are ready to run: others have their turn."""

MOST = 10_000
"""No more are stored while so many of the same replay are unfinished: something is wrong. Nor are
more of whole keys stored at once."""

SOON = 0.5
"""Seconds until what somebody runs at the moment is looked at again."""


class ReplayItem(NamedTuple):
    """A message that a replay has still to store."""

    seq: int
    key: str | None
    origin: str
    message_id: str


class Replaying(Dialect):
    """A store, as far as it replays."""

    @abstractmethod
    def _stop_forgetting(self, connection: Connection, consumer: str) -> Steps[None]:
        """Wait until nobody forgets messages, and let nobody, until the end of the transaction."""

    @abstractmethod
    def _store_again(
        self, connection: Connection, consumer: str, replay: int, items: Sequence[ReplayItem]
    ) -> Steps[int]:
        """Lock the keys of these messages and store them; says how many were finished."""

    @abstractmethod
    def _take_back(
        self,
        connection: Connection,
        consumer: str,
        *,
        seqs: Sequence[int],
        letters: Sequence[int],
        keys: Sequence[str],
    ) -> Steps[int]:
        """Lock keys, and delete pending messages and dead letters of a replay."""

    @abstractmethod
    def _release(self, connection: Connection, consumer: str, keys: Sequence[str]) -> Steps[None]:
        """What waits for these keys may run, as far as nothing holds them."""

    @abstractmethod
    def _drop_items(self, connection: Connection, replay: int) -> Steps[int]:
        """Nothing more is stored; says how much would have been."""

    def _selection(self, consumer: str, filter: MessageFilter) -> tuple[str, dict[str, Any]]:
        """The statement that finds selected messages, and its parameters."""
        params = {
            "consumer": consumer,
            "origin": filter.get("origin"),
            "type": filter.get("type"),
            "key": filter.get("key"),
            "since": self._kept(filter.get("since")),
            "until": self._kept(filter.get("until")),
        }
        ids = filter.get("ids")
        if ids is None:
            return self._sql["replay_wanted"], params
        return self._sql["replay_named"], {**params, "ids": self._list(list(ids))}

    def count_messages(
        self, connection: Connection, consumer: str, filter: MessageFilter
    ) -> Steps[tuple[int, int, int]]:
        """How many messages match: to be replayed, without a payload, in another state."""
        sql, params = self._selection(consumer, filter)
        counting = self._sql["count_messages"].replace("PAST", sql)
        found = yield from connection.fetch(counting, {**params, "state": filter["state"]})
        able, bare, other = found[0]
        return int(able), int(bare), int(other)

    def begin_replay(
        self,
        connection: Connection,
        consumer: str,
        name: str,
        filter: MessageFilter,
        pace: float | None,
        audit: AuditEntry,
    ) -> Steps[int | None]:
        """Note what is to be replayed; None where the name was used before."""
        yield from self._stop_forgetting(connection, consumer)
        made = yield from connection.fetch(
            self._sql["make_replay"],
            {
                "consumer": consumer,
                "name": name,
                "by": audit.by,
                "why": audit.why,
                "wanted": _as_json(filter),
                "pace": pace,
                **self._times(),
            },
        )
        if not made:
            return None
        replay = int(made[0][0])
        sql, params = self._selection(consumer, filter)
        noting = self._sql["note_items"].replace("PAST", sql)
        wanted = {**params, "state": filter["state"], "replay": replay}
        yield from connection.execute(noting, wanted)
        yield from connection.execute(self._sql["set_total"], {"replay": replay})
        yield from self._act_on(connection, consumer, replay, name, audit)
        return replay

    def _act_on(
        self, connection: Connection, consumer: str, replay: int, name: str, audit: AuditEntry
    ) -> Steps[None]:
        acted = {
            **msgspec.structs.asdict(audit),
            "consumer": consumer,
            "replay": replay,
            "name": name,
            **self._times(),
        }
        yield from connection.execute(self._sql["audit_replay"], acted)

    def replays(
        self, connection: Connection, consumer: str, *, name: str | None, limit: int
    ) -> Steps[list[Replay]]:
        """Replays, the newest first."""
        params = {"consumer": consumer, "name": name, "limit": limit}
        found = yield from connection.fetch(self._sql["replays"], params)
        return [self._replay(row) for row in found]

    def _replay(self, row: Sequence[Any]) -> Replay:
        values = dict(zip(Replay.__struct_fields__, row, strict=True))
        for name in ("began_at", "ended_at"):
            values[name] = self._moment(values[name])
        return Replay(**values)

    def next_replay(self, connection: Connection, consumer: str) -> Steps[float | None]:
        """In how many seconds there is something to go on with; None if never. Takes no locks."""
        params = {"consumer": consumer, **self._times()}
        found = yield from connection.fetch(self._sql["next_replay"], params)
        return None if found[0][0] is None else float(found[0][0])

    def continue_replay(self, connection: Connection, consumer: str) -> Steps[bool]:
        """Store some more of a replay, or take some back; says whether there was any."""
        yield from self._be_polite(connection)
        due = {"consumer": consumer, **self._times()}
        found = yield from connection.fetch(self._sql["lock_replay"], due)
        if not found:
            return False
        replay, state, pace = found[0]
        if state == "cancelling":
            yield from self._cancel_some(connection, consumer, replay)
            return True
        return (yield from self._store_some(connection, consumer, replay, pace))

    def _store_some(
        self, connection: Connection, consumer: str, replay: int, pace: float | None
    ) -> Steps[bool]:
        if (yield from self._has_ample(connection, replay)):
            # Another one may go on. This one stays due: who drains it looks again when it is idle.
            yield from self._move_replay(connection, replay)
            return False
        items = yield from self._next_items(connection, replay, pace)
        stored = 0
        if items:
            stored = yield from self._store_again(connection, consumer, replay, items)
            keys = sorted({item.key for item in items if item.key is not None})
            yield from self._release(connection, consumer, keys)
            done = {"replay": replay, "seqs": self._list([item.seq for item in items])}
            yield from connection.execute(self._sql["drop_replayed_items"], done)
        yield from self._move_replay(
            connection,
            replay,
            stored=stored,
            skipped=len(items) - stored,
            rest=len(items) / pace if pace else 0,
            state=None if items else "stored",
        )
        return True

    def _has_ample(self, connection: Connection, replay: int) -> Steps[bool]:
        for name, limit in (("count_replaying", AMPLE), ("count_replayed", MOST)):
            params = {"replay": replay, "limit": limit}
            if (yield from connection.fetch(self._sql[name], params))[0][0] >= limit:
                return True
        return False

    def _next_items(
        self, connection: Connection, replay: int, pace: float | None
    ) -> Steps[list[ReplayItem]]:
        """What to store next: whole keys, so that nothing new comes between, unless a pace is to be
        kept."""
        limit = AT_ONCE if pace is None else max(1, min(AT_ONCE, int(pace)))
        wanted = {"replay": replay, "limit": limit}
        found = yield from connection.fetch(self._sql["next_items"], wanted)
        items = [ReplayItem(*row) for row in found]
        keys = sorted({item.key for item in items if item.key is not None})
        if pace is None and keys:
            rest = {
                "replay": replay,
                "keys": self._list(keys),
                "after": items[-1].seq,
                "limit": MOST,
            }
            found = yield from connection.fetch(self._sql["items_of_keys"], rest)
            items += [ReplayItem(*row) for row in found]
        return items

    def _move_replay(
        self,
        connection: Connection,
        replay: int,
        *,
        stored: int = 0,
        skipped: int = 0,
        cancelled: int = 0,
        rest: float = 0,
        state: str | None = None,
    ) -> Steps[None]:
        moved = {
            "replay": replay,
            "stored": stored,
            "skipped": skipped,
            "cancelled": cancelled,
            "state": state,
            **self._times(rest),
        }
        yield from connection.execute(self._sql["move_replay"], moved)

    def set_pace(
        self,
        connection: Connection,
        consumer: str,
        name: str,
        pace: float | None,
        audit: AuditEntry,
    ) -> Steps[bool]:
        """A replay goes on at another pace; says whether it is running."""
        params = {"consumer": consumer, "name": name, "pace": pace, **self._times()}
        found = yield from connection.fetch(self._sql["set_pace"], params)
        if found:
            yield from self._act_on(connection, consumer, found[0][0], name, audit)
        return bool(found)

    def cancel_replay(
        self, connection: Connection, consumer: str, name: str, audit: AuditEntry
    ) -> Steps[bool]:
        """Nothing more of a replay is stored, and what has not run is to be taken back."""
        params = {"consumer": consumer, "name": name, **self._times()}
        found = yield from connection.fetch(self._sql["cancel_replay"], params)
        if not found:
            return False
        replay = int(found[0][0])
        dropped = yield from self._drop_items(connection, replay)
        yield from self._move_replay(connection, replay, stored=dropped, cancelled=dropped)
        yield from self._act_on(connection, consumer, replay, name, audit)
        return True

    def _cancel_some(self, connection: Connection, consumer: str, replay: int) -> Steps[None]:
        wanted = {"replay": replay, "limit": AT_ONCE}
        left = yield from connection.fetch(self._sql["replay_left"], wanted)
        if not left:
            yield from self._move_replay(connection, replay, state="cancelled")
            return
        keys = sorted({key for _, _, key in left if key is not None})
        taken = yield from self._take_back(
            connection,
            consumer,
            seqs=[seq for seq, _, _ in left if seq is not None],
            letters=[letter for _, letter, _ in left if letter is not None],
            keys=keys,
        )
        yield from self._release(connection, consumer, keys)
        # What somebody runs at the moment is left to him: it may come back.
        rest = 0 if taken else SOON
        yield from self._move_replay(connection, replay, cancelled=taken, rest=rest)


def _as_json(filter: MessageFilter) -> str:
    """The filter of a replay, as it is stored and shown."""
    given = {name: value for name, value in filter.items() if value is not None}
    if given.get("state") == "done":
        del given["state"]
    return msgspec.json.encode(given).decode()
