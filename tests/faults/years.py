"""Years under torture: what is old is forgotten and archived, and replayed before that; producers
number some keys, and their numbers come in any order, late, or never.

To those of the drain's torture come two who purge, one who replays, an echo that delivers what was
settled long ago, and a clock that lets a day pass after each generation of messages. However that
goes, a message takes effect once because it arrived, whenever it is delivered again, and once for
each replay, all in the order of its key; and what is forgotten is archived.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from faults.torture import DRAINERS, Model, Place, Size
from faults.years_source import Ages, Dated, Plan
from faults.years_worker import LATE_NUMBER, TOO_LATE, make_inbox, skipped_numbers
from oncebox import Inbox, Kind, Reason
from oncebox.archive import records
from oncebox.folder import folder_of
from oncebox.store.records import Record, Replay
from worlds import World

STAFF = (*DRAINERS[:3], "echo", "operator", "purger", "purger", "replayer", "clock")
"""Everybody but those who consume."""

WITNESSES = {
    "wanted": ("INSERT", "replay_item", "replay, seq, message_id"),
    "forgotten": ("DELETE", "inbox", "message_id, seq"),
    "forgotten_run": ("DELETE", "attempt", "message_id, replay, number, outcome"),
}
"""What is written down of what is inserted or deleted, whoever does that."""

IS_OVER = (
    "EXISTS (SELECT 1 FROM ledger l WHERE l.message_id = {id} AND l.replay = 0) "
    "OR EXISTS (SELECT 1 FROM oncebox_action a WHERE a.message_id = {id} "
    "AND a.act = 'discard' AND a.replay = 0)"
)

Run = tuple[str, int, int, str]
"""An attempt: of which message, in which replay, its number and outcome."""


class Span(Size, frozen=True):
    """How much there is to do in some years, and by whom."""

    consumers: Sequence[str] = ("consumer", "receiver")
    generations: int = 4
    """How often what is older may be forgotten."""
    replays: int = 4
    filters: Sequence[str] = ("origin", "type", "key", "ids", "since", "until", "state")
    cancelled: float = 0.3
    missing: float = 0.04
    """How many of the numbers of keys that are counted never come."""
    late: float = 0.06
    """How many come a day or two after those behind them."""
    stale: float = 0.05
    """How many run when they arrive, but often not when they are replayed."""
    patience: float = 0.5
    """Seconds that a number is waited for."""
    archive: bool = True


class Years(Model):
    """One run through some years, decided by its seed as far as chance lets it be."""

    worker = "faults.years_worker"
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
            patience=size.patience,
            archive=str(folder / "archive") if size.archive else None,
        )
        super().__init__(world, folder, seed, size, without=without)
        self.everybody = (*size.consumers, *STAFF)
        self._by_id = {entry.id: entry for entry in self.entries}
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
            minted=int(self.plan.time(generation).timestamp() * 1000),
            type=self.chance.choice(("step", "leap")),
            counted=counted,
        )

    def _fate(self) -> str:
        fate = super()._fate()
        return "stale" if fate == "good" and self.chance.random() < self.size.stale else fate

    def _mixed(self, entries: list[Dated]) -> Iterator[Dated]:
        """In any order, but that of keys that nobody counts."""
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
        execute = self.world.execute
        for column in ("replay integer", "seq bigint", "message_id text"):
            execute(f"ALTER TABLE ledger ADD COLUMN {column}")
        execute("CREATE INDEX ledger_message ON ledger (message_id, replay)")
        execute("CREATE INDEX ledger_key ON ledger (key, replay, seq)")
        for table, (deed, on, columns) in WITNESSES.items():
            self._witness(table, deed, on, columns.split(", "))
        execute("CREATE INDEX wanted_message ON wanted (message_id, replay)")
        if self.world.is_postgres:
            # A stable function sees what the statement sees that it is called by.
            note = "PERFORM set_config('years.snapshot', pg_current_snapshot()::text, true);"
            when = "BEFORE DELETE ON oncebox_inbox FOR EACH STATEMENT"
            self._trigger("snapshot", when, "STABLE", note)

    def _witness(self, table: str, deed: str, on: str, columns: Sequence[str]) -> None:
        """What is done is written down in the same transaction, and whether it was over by then."""
        row = "NEW" if deed == "INSERT" else "OLD"
        is_over = IS_OVER.format(id=f"{row}.message_id")
        values = [f"{row}.{column}" for column in columns] + [is_over]
        types = {"seq": "bigint", "replay": "integer", "number": "integer"}
        made = [f"{column} {types.get(column, 'text')}" for column in columns]
        made += ["is_over boolean"]
        if self.world.is_postgres:
            values += ["pg_current_xact_id()", "current_setting('years.snapshot', true)"]
            made += ["xid xid8", "snapshot text"]
        self.world.execute(f"CREATE TABLE {table} ({', '.join(made)})")
        note = f"INSERT INTO {table} SELECT {', '.join(values)};"
        when = f"AFTER {deed} ON oncebox_{on} FOR EACH ROW"
        if self.world.is_postgres:
            self._trigger(table, when, "VOLATILE", note)
        else:
            self.world.execute(f"CREATE TRIGGER {table} {when} BEGIN {note} END")

    def _trigger(self, name: str, when: str, how: str, body: str) -> None:
        """On PostgreSQL."""
        self.world.execute(
            f"CREATE FUNCTION note_{name}() RETURNS trigger LANGUAGE plpgsql {how} AS "
            f"$$ BEGIN {body} RETURN NULL; END $$"
        )
        call = f"EXECUTE FUNCTION note_{name}()"
        self.world.execute(f"CREATE TRIGGER note_{name} {when} {call}")

    # -- the run ----------------------------------------------------------------------------------

    def run(self) -> None:
        """Torture everybody; then everything old is forgotten, and comes once more."""
        super().run()
        self._look_back()

    def finds_violations(self) -> bool:
        if super().finds_violations():
            return True
        self._look_back()
        return bool(self._findings())

    def _open(self) -> Inbox:
        return make_inbox(self.world.url, self.plan)

    def _look_back(self) -> None:
        with self._open() as inbox:
            inbox.on("*")(lambda payload: None)
            inbox.dead.discard(reason=TOO_LATE, why="the end")
            self._forget(inbox)
            for first in range(0, len(self.entries), 100):
                some = [entry.delivery() for entry in self.entries[first : first + 100]]
                self.caught.update(o.reason or o.kind for o in inbox.process(some))

    def _forget(self, inbox: Inbox) -> None:
        """Everything but the last generation."""
        mark = self.plan.time(self.size.generations - 1)
        kept: Any = mark if self.world.is_postgres else int(mark.timestamp() * 1_000_000)
        old = "WHERE minted_at < %s"
        self.world.execute(f"UPDATE oncebox_inbox SET received_at = minted_at {old}", kept)
        inbox.housekeeping.purge()
        left = self.world.query(f"SELECT message_id FROM oncebox_inbox {old}", kept)
        runs = self.world.query(
            "SELECT message_id FROM oncebox_attempt a WHERE NOT EXISTS "
            "(SELECT 1 FROM oncebox_inbox i WHERE i.message_id = a.message_id)"
        )
        self._remembered = [
            *[f"{self._place(id)} is old, and not forgotten" for (id,) in left],
            *[f"a run of {self._place(id)} is not forgotten" for (id,) in runs],
        ]

    def _has_done(self, enough: float) -> bool:
        """Replays have their share; how large it is, nobody knows."""
        return super()._has_done(enough * (1 + self.size.replays / 5)) or self._is_settled()

    def _is_settled(self) -> bool:
        begun = len(self._look("SELECT 1 FROM oncebox_replay"))
        return super()._is_settled() and begun == self.size.replays

    def _is_found(self) -> bool:
        return super()._is_found() or self._has_any("forgotten WHERE NOT is_over")

    def _is_drained(self) -> bool:
        going = "oncebox_replay WHERE state IN ('running', 'cancelling')"
        left = ("oncebox_early", "oncebox_replay_item", going)
        return super()._is_drained() and not self._has_any(*left)

    # -- the truth --------------------------------------------------------------------------------

    def violations(self) -> list[str]:
        return [*self._findings(), *self._bad_ends()]

    def _findings(self) -> list[str]:
        return [
            *self._complaints(),
            *self._seen_stuck,
            *self._disorder(),
            *self._losses(),
            *self._false_forgetting(),
            *self._false_replays(),
            *self._gaps_in_the_archive(),
            *self._uncaught(),
        ]

    def _effects(self) -> list[tuple[int, int, int, str]]:
        """What took effect, in order: key, number, replay, message."""
        found = self.world.query("SELECT key, number, replay, message_id FROM ledger ORDER BY id")
        return [(key, number, replay, id) for key, number, replay, id in found]

    def ledger(self) -> list[Place]:
        """What took effect because it arrived, in order."""
        return [(key, number) for key, number, replay, _ in self._effects() if not replay]

    def _acts(self, act: str) -> list[tuple[str, str, int]]:
        """What operators did: message, reason, replay."""
        found = self.world.query(
            "SELECT message_id, reason, replay FROM oncebox_action WHERE act = %s", act
        )
        return [(id, reason, replay) for id, reason, replay in found]

    def _put_back(self) -> set[Place]:
        """Numbers that had come too late, and were let in all the same."""
        found = self._acts("retry")
        return {self._place(id) for id, reason, _ in found if reason == LATE_NUMBER}

    def _place(self, id: str) -> Place:
        return self._by_id[id].key, self._by_id[id].number

    def _disorder(self) -> list[str]:
        """Keys whose messages took effect out of order, because they arrived or in a replay."""
        lines: dict[tuple[int, int], list[int]] = {}
        late = self._put_back()
        anew = self._replays_of_the_discarded()
        for key, number, replay, _ in self._effects():
            if (key, number) not in late and replay not in anew:
                lines.setdefault((key, replay), []).append(number)
        twice = Counter((id, replay) for _, _, replay, id in self._effects())
        return [
            *[f"key {k}, replay {r}: {n}" for (k, r), n in lines.items() if n != sorted(set(n))],
            *[f"{name} took effect {times} times" for name, times in twice.items() if times > 1],
        ]

    def _losses(self) -> list[str]:
        """What was produced was done or discarded; numbers that came late are quarantined."""
        done = set(self.ledger())
        discarded = [(id, reason) for id, reason, replay in self._acts("discard") if not replay]
        ended = {self._place(id) for id, reason in discarded if reason != TOO_LATE}
        produced = {(entry.key, entry.number) for entry in self.entries}
        late = {self._by_id[id] for id, reason in discarded if reason == LATE_NUMBER}
        return [
            *[f"{place} is lost" for place in produced - done - ended],
            *[f"{place} was done and discarded" for place in done & ended],
            *[f"{place} was never produced" for place in done - produced],
            *[f"{e} was not late" for e in late if e.number not in self._skipped(e)],
        ]

    def _skipped(self, entry: Dated) -> set[int]:
        query = "SELECT reason FROM oncebox_action WHERE act = 'skip' AND reason LIKE %s"
        found = self.world.query(query, f"key '{entry.name}':%")
        return skipped_numbers([reason for (reason,) in found])

    def _false_forgetting(self) -> list[str]:
        """Nothing was forgotten before it was over, and everything old in the end."""
        early = self.world.query("SELECT message_id FROM forgotten WHERE NOT is_over")
        return [
            *[f"{self._place(id)} was forgotten, and not over" for (id,) in early],
            *self._remembered,
        ]

    # -- replays ----------------------------------------------------------------------------------

    def _replays(self) -> list[Replay]:
        with self._open() as inbox:
            return inbox.replays.find(limit=1000)

    def _replays_of_the_discarded(self) -> set[int]:
        """Their messages may have been claimed anew: they have another order."""
        return {replay.id for replay in self._replays() if '"discarded"' in replay.wanted}

    def _false_replays(self) -> list[str]:
        """What was wanted ran, or was discarded, cancelled or skipped; so the counters say."""
        wanted: dict[int, set[str]] = {}
        for replay, id in self.world.query("SELECT replay, message_id FROM wanted"):
            wanted.setdefault(replay, set()).add(id)
        ran: dict[int, set[str]] = {}
        for _, _, replay, id in self._effects():
            ran.setdefault(replay, set()).add(id)
        discarded: dict[int, set[str]] = {}
        for id, _, replay in self._acts("discard"):
            discarded.setdefault(replay, set()).add(id)
        return [
            complaint
            for replay in self._replays()
            for complaint in self._false_replay(
                replay, *(ids.get(replay.id, set()) for ids in (wanted, ran, discarded))
            )
        ]

    def _false_replay(
        self, replay: Replay, wanted: set[str], ran: set[str], discarded: set[str]
    ) -> Iterator[str]:
        told = f"of {len(wanted)} {len(ran)} ran, {len(discarded)} were discarded: {replay}"
        left = wanted - ran - discarded
        if not replay.is_over or replay.waiting or replay.dead:
            yield f"not over: {told}"
        if (replay.done, replay.discarded) != (len(ran), len(discarded)) or ran & discarded:
            yield f"not what ran: {told}"
        if (replay.total, replay.stored) != (len(wanted), len(wanted) - replay.skipped):
            yield f"not what was wanted: {told}"
        if replay.cancelled + replay.skipped != len(left):
            yield f"not what is left: {told}"
        if replay.state == "stored" and (replay.cancelled or not left <= self._slipped(replay)):
            yield f"not run, and nobody knows why: {told}"

    def _slipped(self, replay: Replay) -> set[str]:
        """What was forgotten while the replay began: who forgot it could not see that it was
        wanted. On SQLite one thing happens after another."""
        if not self.world.is_postgres:
            return set()
        query = (
            "SELECT message_id FROM wanted w JOIN forgotten f USING (message_id, seq) "
            "WHERE replay = %s AND NOT pg_visible_in_snapshot(w.xid, f.snapshot::pg_snapshot)"
        )
        return {id for (id,) in self.world.query(query, replay.id)}

    # -- the archive ------------------------------------------------------------------------------

    def _gaps_in_the_archive(self) -> list[str]:
        """What was forgotten is archived, with every run."""
        if self.plan.archive is None:
            return []
        with self._open() as inbox:
            checked = inbox.archives.check()
            manifests = inbox.archives.find()
        folder = folder_of(self.plan.archive)
        found = [r for m in manifests for some in records(folder, m, at_once=100) for r in some]
        archived = {record.id for record in found}
        gone = {id for (id,) in self.world.query("SELECT message_id FROM forgotten")}
        return [
            *checked.damaged,
            *[f"{self._place(id)} was forgotten, and is not archived" for id in gone - archived],
            *[f"{record} is not what it was" for record in found if not self._is_true(record)],
            *[f"{run} was forgotten, and is not archived" for run in self._lost_runs(found)],
        ]

    def _is_true(self, record: Record) -> bool:
        entry = self._by_id[record.id]
        return record.key == entry.name and record.payload is not None

    def _lost_runs(self, archived: Sequence[Record]) -> list[Run]:
        gone: Counter[Run] = Counter()
        query = "SELECT message_id, replay, number, outcome FROM forgotten_run"
        gone.update((id, replay, n, outcome) for id, replay, n, outcome in self.world.query(query))
        gone.subtract(
            (r.id, run.replay, run.number, run.outcome) for r in archived for run in r.runs
        )
        return [run for run, count in gone.items() if count > 0]

    # -- the end ----------------------------------------------------------------------------------

    def _uncaught(self) -> list[str]:
        """What was delivered once more in the end was known, or too old to be known."""
        known = {Kind.duplicate, Reason.too_late}
        return [
            f"{n} of what came again: {kind}"
            for kind, n in self.caught.items()
            if kind not in known
        ]

    def _bad_ends(self) -> list[str]:
        """No innocent became a dead letter, and who was not killed stopped cleanly."""
        good = {entry.id for entry in self.entries if entry.fate == "good"}
        acted = {*self._acts("retry"), *self._acts("discard")}
        blamed = [(id, r) for id, r, _ in acted if id in good and r not in (TOO_LATE, LATE_NUMBER)]
        return [
            *[f"{self._place(id)} is innocent, and was a dead letter: {r}" for id, r in blamed],
            *self._bad_exits(),
        ]
