"""Checks a run of the retention model against the ledger, the witnesses and the archive."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from faults.retention_model_source import Dated, Plan
from faults.retention_model_worker import LATE_NUMBER, TOO_LATE, make_inbox, skipped_numbers
from faults.torture import Place
from oncebox.model.replay import Replay
from oncebox.operations.archive.format import records
from oncebox.operations.archive.location import folder_of
from oncebox.storage.records import ArchivedMessage
from support.worlds import World

Run = tuple[str, int, int, str]
"""An attempt: of which message, in which replay, its number and outcome."""


class Verdict:
    """What is not as it must be."""

    def __init__(self, world: World, plan: Plan, entries: Sequence[Dated]) -> None:
        self.world = world
        self.plan = plan
        self.entries = entries
        self._by_id = {entry.id: entry for entry in entries}
        with make_inbox(world.url, plan) as inbox:
            self._replays = inbox.replays.find(limit=1000)
        self._effects = self._read_effects()

    def findings(self) -> list[str]:
        return [
            *self._disorder(),
            *self._losses(),
            *self._false_purges(),
            *self._false_replays(),
            *self._gaps_in_the_archive(),
        ]

    def _read_effects(self) -> list[tuple[int, int, int, str]]:
        """What took effect, in order: key, number, replay, message."""
        found = self.world.query("SELECT key, number, replay, message_id FROM ledger ORDER BY id")
        return [(key, number, replay, id) for key, number, replay, id in found]

    def _acts(self, act: str) -> list[tuple[str, str, int]]:
        """What operators did: message, reason, replay."""
        found = self.world.query(
            "SELECT message_id, reason, replay FROM oncebox_audit WHERE action = %s", act
        )
        return [(id, reason, replay) for id, reason, replay in found]

    def _place(self, id: str) -> Place:
        return self._by_id[id].spot

    # -- order ------------------------------------------------------------------------------------

    def _disorder(self) -> list[str]:
        """Keys whose messages took effect out of order, because they arrived or in a replay."""
        lines: dict[tuple[int, int], list[int]] = defaultdict(list)
        put_back = self._put_back()
        again = {replay.id for replay in self._replays if '"discarded"' in replay.wanted}
        for key, number, replay, _ in self._effects:
            # A discarded message may have been claimed again: its order is another one.
            if (key, number) not in put_back and replay not in again:
                lines[key, replay].append(number)
        times = Counter((id, replay) for _, _, replay, id in self._effects)
        return [
            *[f"key {k}, replay {r}: {n}" for (k, r), n in lines.items() if n != sorted(set(n))],
            *[f"{name} took effect {n} times" for name, n in times.items() if n > 1],
        ]

    def _put_back(self) -> set[Place]:
        """Numbers that had come too late, and were let in all the same."""
        found = self._acts("retry")
        return {self._place(id) for id, reason, _ in found if reason == LATE_NUMBER}

    def _losses(self) -> list[str]:
        """What was produced was done or discarded; numbers that came late are quarantined."""
        done = {(key, number) for key, number, replay, _ in self._effects if not replay}
        discarded = [(id, reason) for id, reason, replay in self._acts("discard") if not replay]
        ended = {self._place(id) for id, reason in discarded if reason != TOO_LATE}
        late = {self._by_id[id] for id, reason in discarded if reason == LATE_NUMBER}
        produced = {entry.spot for entry in self.entries}
        return [
            *[f"{place} is lost" for place in produced - done - ended],
            *[f"{place} was done and discarded" for place in done & ended],
            *[f"{place} was never produced" for place in done - produced],
            *[f"{e.spot} was not late" for e in late if e.number not in self._skipped(e)],
        ]

    def _skipped(self, entry: Dated) -> set[int]:
        query = "SELECT reason FROM oncebox_audit WHERE action = 'skip' AND reason LIKE %s"
        found = self.world.query(query, f"key '{entry.name}':%")
        return skipped_numbers([reason for (reason,) in found])

    # -- purges -----------------------------------------------------------------------------------

    def _false_purges(self) -> list[str]:
        """No message was purged before it was finished."""
        early = self.world.query("SELECT message_id FROM purged WHERE NOT is_finished")
        return [f"{self._place(id)} was purged, and is not finished" for (id,) in early]

    def _gaps_in_the_archive(self) -> list[str]:
        """Every purged message is archived, with all its attempts."""
        if self.plan.archive is None:
            return []
        with make_inbox(self.world.url, self.plan) as inbox:
            checked = inbox.archives.check()
            manifests = inbox.archives.find()
        folder = folder_of(self.plan.archive)
        found = [r for m in manifests for some in records(folder, m, at_once=100) for r in some]
        archived = {record.id for record in found}
        gone = {id for (id,) in self.world.query("SELECT message_id FROM purged")}
        return [
            *checked.damaged,
            *[f"{self._place(id)} was purged, and is not archived" for id in gone - archived],
            *[f"{record} is not what it was" for record in found if not self._is_true(record)],
            *[f"{run} was purged, and is not archived" for run in self._lost_runs(found)],
        ]

    def _is_true(self, record: ArchivedMessage) -> bool:
        entry = self._by_id[record.id]
        return record.key == entry.name and record.payload is not None

    def _lost_runs(self, archived: Sequence[ArchivedMessage]) -> list[Run]:
        gone: Counter[Run] = Counter()
        query = "SELECT message_id, replay, number, outcome FROM purged_run"
        gone.update((id, replay, n, outcome) for id, replay, n, outcome in self.world.query(query))
        gone.subtract(
            (r.id, run.replay, run.number, run.outcome) for r in archived for run in r.runs
        )
        return [run for run, count in gone.items() if count > 0]

    # -- replays ----------------------------------------------------------------------------------

    def _false_replays(self) -> list[str]:
        """What was wanted ran, or was discarded or cancelled, and so the counters say. Nothing of
        it is purged before that, so nothing is skipped."""
        wanted = _grouped(self.world.query("SELECT replay, message_id FROM wanted"))
        ran = _grouped([(replay, id) for _, _, replay, id in self._effects])
        discarded = _grouped([(replay, id) for id, _, replay in self._acts("discard")])
        return [
            complaint
            for replay in self._replays
            for complaint in self._false_replay(
                replay, wanted[replay.id], ran[replay.id], discarded[replay.id]
            )
        ]

    def _false_replay(
        self, replay: Replay, wanted: set[str], ran: set[str], discarded: set[str]
    ) -> Iterator[str]:
        told = f"of {len(wanted)} {len(ran)} ran, {len(discarded)} were discarded: {replay}"
        if not replay.is_over or replay.waiting or replay.dead:
            yield f"not over: {told}"
        if (replay.done, replay.discarded) != (len(ran), len(discarded)) or ran & discarded:
            yield f"not what ran: {told}"
        if not ran | discarded <= wanted or (replay.total, replay.stored) != (len(wanted),) * 2:
            yield f"not what was wanted: {told}"
        if len(ran) + len(discarded) + replay.cancelled != len(wanted):
            yield f"not everything: {told}"
        if replay.skipped or (replay.cancelled and replay.state != "cancelled"):
            yield f"not run, for no known reason: {told}"

    # -- innocents --------------------------------------------------------------------------------

    def wronged(self) -> list[str]:
        """Messages that became dead letters without a fault of their own."""
        good = {entry.id for entry in self.entries if entry.fate == "good"}
        acted = {(id, reason) for act in ("retry", "discard") for id, reason, _ in self._acts(act)}
        blamed = [(id, r) for id, r in acted if id in good and r not in (TOO_LATE, LATE_NUMBER)]
        return [f"{self._place(id)} is innocent, and was a dead letter: {r}" for id, r in blamed]


def _grouped(pairs: Sequence[Sequence[Any]]) -> Mapping[int, set[str]]:
    groups: dict[int, set[str]] = defaultdict(set)
    for replay, id in pairs:
        groups[replay].add(id)
    return groups
