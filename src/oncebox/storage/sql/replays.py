"""Replays: run finished messages again; shared by the SQL stores."""

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
"""Messages stored in one transaction: each may lock a key."""

READY_LIMIT = 500
"""While this many messages of a replay are ready, no more are stored: new messages run between."""

UNFINISHED_LIMIT = 10_000
"""While this many messages of a replay are unfinished, no more are stored: many of them fail. Also
the most that one transaction adds to complete its keys."""

RECHECK_DELAY = 0.5
"""Seconds until a cancelled replay checks again the messages that workers are running."""


class ReplayItem(NamedTuple):
    """A message that a replay has still to store."""

    seq: int
    key: str | None
    origin: str
    message_id: str


class SqlReplays(Dialect):
    """Run finished messages again."""

    @abstractmethod
    def _stop_purging(self, connection: Connection, consumer: str) -> Steps[None]:
        """Wait for running purges, and prevent new ones until the transaction ends."""

    @abstractmethod
    def _store_again(
        self, connection: Connection, consumer: str, replay: int, items: Sequence[ReplayItem]
    ) -> Steps[int]:
        """Lock the keys of these messages and store those that are finished. Returns how many."""

    @abstractmethod
    def _remove_replayed(
        self,
        connection: Connection,
        consumer: str,
        *,
        seqs: Sequence[int],
        letters: Sequence[int],
        keys: Sequence[str],
    ) -> Steps[int]:
        """Lock keys, and delete pending messages and dead letters of a replay. Returns how many."""

    @abstractmethod
    def _release(self, connection: Connection, consumer: str, keys: Sequence[str]) -> Steps[None]:
        """Make the messages of these keys ready, up to the next one that blocks its key."""

    @abstractmethod
    def _drop_items(self, connection: Connection, replay: int) -> Steps[int]:
        """Delete the messages that a replay has still to store. Returns how many."""

    def _selection(self, consumer: str, filter: MessageFilter) -> tuple[str, dict[str, Any]]:
        """The statement that finds the messages of a filter, and its parameters."""
        params = {
            "consumer": consumer,
            "origin": filter.get("origin"),
            "type": filter.get("type"),
            "key": filter.get("key"),
            "since": self._time_param(filter.get("since")),
            "until": self._time_param(filter.get("until")),
        }
        ids = filter.get("ids")
        if ids is None:
            return self._sql["select_messages"], params
        return self._sql["select_messages_by_id"], {**params, "ids": self._list(list(ids))}

    def count_messages(
        self, connection: Connection, consumer: str, filter: MessageFilter
    ) -> Steps[tuple[int, int, int]]:
        """How many messages match: can be replayed, have no payload, are in another state."""
        sql, params = self._selection(consumer, filter)
        counting = self._sql["count_messages"].replace("SELECTED", sql)
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
        """Create a replay and list its messages. Returns None if the name was used before."""
        yield from self._stop_purging(connection, consumer)
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
        noting = self._sql["add_items"].replace("SELECTED", sql)
        wanted = {**params, "state": filter["state"], "replay": replay}
        yield from connection.execute(noting, wanted)
        yield from connection.execute(self._sql["set_total"], {"replay": replay})
        yield from self._audit(connection, consumer, replay, name, audit)
        return replay

    def _audit(
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
        """Seconds until a replay is to be continued; None if there is none. Takes no locks."""
        params = {"consumer": consumer, **self._times()}
        found = yield from connection.fetch(self._sql["next_replay"], params)
        return None if found[0][0] is None else float(found[0][0])

    def continue_replay(self, connection: Connection, consumer: str) -> Steps[bool]:
        """Store more messages of a replay, or remove some of a cancelled one.

        Returns False if no replay was due, or the one that was due has enough messages stored.
        """
        yield from self._limit_lock_wait(connection)
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
        if (yield from self._has_enough(connection, replay)):
            # Let other replays continue. This one stays due: a worker that is idle checks it again.
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

    def _has_enough(self, connection: Connection, replay: int) -> Steps[bool]:
        for name, limit in (("count_replaying", READY_LIMIT), ("count_replayed", UNFINISHED_LIMIT)):
            params = {"replay": replay, "limit": limit}
            if (yield from connection.fetch(self._sql[name], params))[0][0] >= limit:
                return True
        return False

    def _next_items(
        self, connection: Connection, replay: int, pace: float | None
    ) -> Steps[list[ReplayItem]]:
        """The messages to store next.

        Without a pace, the rest of their keys comes along, so that no new message gets between
        them.
        """
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
                "limit": UNFINISHED_LIMIT,
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
        """Change the pace of a replay. Returns False if it is not running."""
        params = {"consumer": consumer, "name": name, "pace": pace, **self._times()}
        found = yield from connection.fetch(self._sql["set_pace"], params)
        if found:
            yield from self._audit(connection, consumer, found[0][0], name, audit)
        return bool(found)

    def cancel_replay(
        self, connection: Connection, consumer: str, name: str, audit: AuditEntry
    ) -> Steps[bool]:
        """Store no more messages of a replay, and remove those that have not run."""
        params = {"consumer": consumer, "name": name, **self._times()}
        found = yield from connection.fetch(self._sql["cancel_replay"], params)
        if not found:
            return False
        replay = int(found[0][0])
        dropped = yield from self._drop_items(connection, replay)
        yield from self._move_replay(connection, replay, stored=dropped, cancelled=dropped)
        yield from self._audit(connection, consumer, replay, name, audit)
        return True

    def _cancel_some(self, connection: Connection, consumer: str, replay: int) -> Steps[None]:
        wanted = {"replay": replay, "limit": AT_ONCE}
        left = yield from connection.fetch(self._sql["replay_left"], wanted)
        if not left:
            yield from self._move_replay(connection, replay, state="cancelled")
            return
        keys = sorted({key for _, _, key in left if key is not None})
        taken = yield from self._remove_replayed(
            connection,
            consumer,
            seqs=[seq for seq, _, _ in left if seq is not None],
            letters=[letter for _, letter, _ in left if letter is not None],
            keys=keys,
        )
        yield from self._release(connection, consumer, keys)
        # Messages that a worker is running are not removed. They may fail and become pending again.
        rest = 0 if taken else RECHECK_DELAY
        yield from self._move_replay(connection, replay, cancelled=taken, rest=rest)


def _as_json(filter: MessageFilter) -> str:
    """The filter of a replay, in the form that is stored and shown."""
    given = {name: value for name, value in filter.items() if value is not None}
    if given.get("state") == "done":
        del given["state"]
    return msgspec.json.encode(given).decode()
