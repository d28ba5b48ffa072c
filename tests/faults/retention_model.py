"""Years under torture: what is old is purged and archived, and replayed before that; producers
number some keys, and their numbers come in any order, late, or never.

To those of the drain's torture come two who purge, one who replays, an echo that delivers what was
settled long ago, and a clock that lets a day pass after each generation of messages. However that
goes, a message takes effect once because it arrived, whenever it is delivered again, and once for
each replay, all in the order of its key; and what is purged is archived.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from faults.retention_model_source import Ages, Dated, Plan
from faults.retention_model_verdict import Verdict
from faults.retention_model_witness import call_witnesses
from faults.retention_model_worker import TOO_LATE, make_inbox
from faults.torture import DRAINERS, Model, Size
from oncebox import Inbox, Kind, Reason
from support.worlds import World

STAFF = (*DRAINERS[:3], "echo", "operator", "purger", "purger", "replayer", "clock")
"""All roles except the consumers."""


class Span(Size, frozen=True):
    """The size of a run: consumers, generations, replays, and shares of irregular messages."""

    consumers: Sequence[str] = ("consumer", "receiver")
    generations: int = 4
    """How often older messages may be purged."""
    replays: int = 4
    filters: Sequence[str] = ("origin", "type", "key", "ids", "since", "until", "state")
    cancelled: float = 0.3
    missing: float = 0.04
    """How many of the numbers of keys that are counted never come."""
    late: float = 0.06
    """How many come a day or two after those behind them."""
    stale: float = 0.05
    """How many run when they arrive, but often not when they are replayed."""
    heartbeat_timeout: float = 0.5
    """Seconds that a number is waited for."""
    archive: bool = True


class RetentionModel(Model):
    """One run, decided by its seed as far as the timing of processes allows."""

    worker = "faults.retention_model_worker"
    read = Ages
    size: Span
    entries: list[Dated]  # type: ignore[assignment]

    def __init__(
        self, world: World, folder: Path, seed: int, size: Span, *, without: str = ""
    ) -> None:
        now = datetime.now(UTC)
        self.plan = Plan(
            began=now - timedelta(microseconds=now.microsecond),
            generations=size.generations,
            replays=size.replays,
            filters=size.filters,
            cancelled=size.cancelled,
            heartbeat_timeout=size.heartbeat_timeout,
            archive=str(folder / "archive") if size.archive else None,
        )
        super().__init__(world, folder, seed, size, without=without)
        self.everybody = (*size.consumers, *STAFF)
        self._places = {entry.id: entry.spot for entry in self.entries}
        self.caught: Counter[str] = Counter()
        """What became of what was delivered again in the end."""
        self._remembered: list[str] = []

    # -- the source -------------------------------------------------------------------------------

    def _entries(self) -> Iterator[Dated]:
        """Everything that is produced, generation by generation."""
        generations: list[list[Dated]] = [[] for _ in range(self.size.generations)]
        for entry in self._lives():
            generations[entry.generation].append(entry)
        for generation in generations:
            yield from self._mixed(generation)

    def _lives(self) -> Iterator[Dated]:
        """The messages of all keys, each with its day."""
        size = self.size
        for key in range(size.keys + size.free):
            length = size.hot if key < 2 else self.chance.randint(1, size.longest)
            if key >= size.keys:
                length = 1
            days = sorted(self.chance.randrange(size.generations) for _ in range(length))
            for number, day in enumerate(days):
                counted = key % 2 == 1 and key < size.keys
                fate = self.chance.random() if counted else 1
                if fate >= size.missing:
                    late = self.chance.randint(1, 2) if fate < size.missing + size.late else 0
                    yield self._entry(key, number, min(day + late, size.generations - 1), counted)

    def _entry(self, key: int, number: int, generation: int, counted: bool) -> Dated:
        return Dated(
            key,
            number,
            self._fate(),
            free=key >= self.size.keys,
            generation=generation,
            produced=int(self.plan.time(generation).timestamp() * 1000),
            type=self.chance.choice(("step", "leap")),
            counted=counted,
        )

    def _fate(self) -> str:
        fate = super()._fate()
        return "stale" if fate == "good" and self.chance.random() < self.size.stale else fate

    def _mixed(self, entries: list[Dated]) -> Iterator[Dated]:
        """In any order, except for keys without sequence numbers."""
        keys: dict[int, list[Dated]] = {}
        for entry in entries:
            keys.setdefault(entry.key, []).append(entry)
        for line in keys.values():
            if line[0].counted:
                self.chance.shuffle(line)
        turns = [entry.key for entry in entries]
        self.chance.shuffle(turns)
        lines = {key: iter(line) for key, line in keys.items()}
        for key in turns:
            yield next(lines[key])

    def _write_source(self) -> None:
        self.plan.write(self.folder)
        super()._write_source()

    def _make_tables(self) -> None:
        super()._make_tables()
        for column in ("replay integer", "seq bigint", "message_id text"):
            self.world.execute(f"ALTER TABLE ledger ADD COLUMN {column}")
        self.world.execute("CREATE INDEX ledger_message ON ledger (message_id, replay)")
        self.world.execute("CREATE INDEX ledger_key ON ledger (key, replay, seq)")
        call_witnesses(self.world)

    # -- the run ----------------------------------------------------------------------------------

    def _open(self) -> Inbox:
        return make_inbox(self.world.url, self.plan)

    def _look_back(self) -> None:
        """All old messages are purged, and all messages are delivered once more."""
        with self._open() as inbox:
            inbox.on("*")(lambda payload: None)
            inbox.dead_letters.discard(reason=TOO_LATE, why="the end")
            self._purge(inbox)
            for first in range(0, len(self.entries), 100):
                some = [entry.delivery() for entry in self.entries[first : first + 100]]
                self.caught.update(o.reason or o.kind for o in inbox.process(some))

    def _purge(self, inbox: Inbox) -> None:
        """Everything but the last generation."""
        mark = self.plan.time(self.size.generations - 1)
        kept: Any = mark if self.world.is_postgres else int(mark.timestamp() * 1_000_000)
        old = "WHERE produced_at < %s"
        self.world.execute(f"UPDATE oncebox_inbox SET received_at = produced_at {old}", kept)
        inbox.purge.run()
        left = self.world.query(f"SELECT message_id FROM oncebox_inbox {old}", kept)
        runs = self.world.query(
            "SELECT message_id FROM oncebox_attempt a WHERE NOT EXISTS "
            "(SELECT 1 FROM oncebox_inbox i WHERE i.message_id = a.message_id)"
        )
        self._remembered = [
            *[f"{self._places[id]} is old, and not purged" for (id,) in left],
            *[f"a run of {self._places[id]} is not purged" for (id,) in runs],
        ]

    def _has_done(self, enough: float) -> bool:
        """Replays have a share that is not known in advance."""
        return super()._has_done(enough * (1 + self.size.replays / 5)) or self._is_settled()

    def _is_settled(self) -> bool:
        begun = len(self._look("SELECT 1 FROM oncebox_replay"))
        return super()._is_settled() and begun == self.size.replays

    def _is_found(self) -> bool:
        return super()._is_found() or self._has_any("purged WHERE NOT is_finished")

    def _is_drained(self) -> bool:
        going = "oncebox_replay WHERE state IN ('running', 'cancelling')"
        left = ("oncebox_awaiting_sequence", "oncebox_replay_item", going)
        return super()._is_drained() and not self._has_any(*left)

    # -- the truth --------------------------------------------------------------------------------

    def _findings(self) -> list[str]:
        return [
            *self._complaints(),
            *self._seen_stuck,
            *self._remembered,
            *self._uncaught(),
            *self._verdict().findings(),
        ]

    def _bad_ends(self) -> list[str]:
        return [*self._verdict().wronged(), *self._bad_exits()]

    def _verdict(self) -> Verdict:
        return Verdict(self.world, self.plan, self.entries)

    def _uncaught(self) -> list[str]:
        """What was delivered once more in the end was known, or too old to be known."""
        known = {Kind.duplicate, Reason.too_late}
        return [
            f"{n} of what came again: {kind}"
            for kind, n in self.caught.items()
            if kind not in known
        ]
