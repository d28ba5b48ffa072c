"""The source of the retention model: messages of several days, some with sequence numbers."""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Sequence
from datetime import datetime, timedelta
from hashlib import blake2b
from pathlib import Path

import msgspec

from faults.drain_worker import Entry, Source
from oncebox import CloudEvents, Delivery, Message
from support.events import cloud_event

A_DAY = timedelta(days=1)


class Plan(msgspec.Struct, frozen=True):
    """The settings of a run that all its processes share."""

    began: datetime
    """The time of the last generation."""
    generations: int
    replays: int
    """How many there are to be."""
    filters: Sequence[str]
    """By what their messages are chosen."""
    cancelled: float
    """How many of them are cancelled."""
    heartbeat_timeout: float
    """Seconds that a number is waited for."""
    archive: str | None

    def time(self, generation: int) -> datetime:
        """When the messages of a generation were produced: a day after those before."""
        return self.began - (self.generations - 1 - generation) * A_DAY

    def write(self, folder: Path) -> None:
        (folder / "plan").write_bytes(msgspec.json.encode(self))

    @classmethod
    def read(cls, folder: Path) -> Plan:
        return msgspec.json.decode((folder / "plan").read_bytes(), type=cls)


class Dated(Entry, frozen=True):
    """A message with a production time, and possibly a sequence number."""

    generation: int = 0
    produced: int = 0
    """In milliseconds."""
    type: str = "step"
    """step; leap: many are handled at once."""
    counted: bool = False

    @property
    def id(self) -> str:
        """A UUIDv7."""
        time = f"{self.produced:012x}"
        rest = blake2b(f"{self.key} {self.number}".encode(), digest_size=9).hexdigest()
        return f"{time[:8]}-{time[8:]}-7{rest[:3]}-8{rest[3:6]}-{rest[6:18]}"

    @property
    def spot(self) -> tuple[int, int]:
        return self.key, self.number

    @property
    def name(self) -> str | None:
        """The key, as the inbox knows it."""
        return None if self.free else f"{'count' if self.counted else 'key'} {self.key}"

    def delivery(self, *, redelivered: bool = False) -> Delivery:
        number = {"sequence": str(self.number + 1)} if self.counted else {}
        data = msgspec.structs.asdict(self)
        found = cloud_event(self.type, data, id=self.id, key=self.name, **number)
        return msgspec.structs.replace(found, redelivered=redelivered)


class Counting(CloudEvents):
    """Some keys are counted by their producers, others are not."""

    _plain = CloudEvents()

    def __init__(self) -> None:
        super().__init__(sequence="sequence")

    def __call__(self, delivery: Delivery) -> Message:
        is_counted = str(delivery.key).startswith("count ")
        return super().__call__(delivery) if is_counted else self._plain(delivery)


class Ages(Source):
    """No worker reads of a generation before all of the one before is acked: nothing that is still
    to come is as old as what the inbox may purge."""

    entry = Dated
    _partitions: list[list[Dated]]  # type: ignore[assignment]

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.plan = Plan.read(folder)
        self.entries = [entry for part in self._partitions for entry in part]
        self.ids = {(entry.key, entry.number): entry.id for entry in self.entries}

    def _ends(self) -> dict[int, int]:
        heads = {}
        for number, part in enumerate(self._partitions):
            for entry in part[self._settled(number) :][:1]:
                heads[number] = entry.generation
        now = min(heads.values(), default=0)
        return {n: self._end(n, now) for n, generation in heads.items() if generation == now}

    def _end(self, number: int, generation: int) -> int:
        part = self._partitions[number]
        return bisect_right(part, generation, key=lambda entry: entry.generation)

    def old(self, chance: random.Random, most: int) -> list[Dated]:
        """Some of the messages that were acked before."""
        parts = enumerate(self._partitions)
        settled = [entry for n, part in parts for entry in part[: self._settled(n)]]
        return chance.sample(settled, min(most, len(settled)))

    @property
    def progress(self) -> float:
        """The share of messages that are acked."""
        settled = sum(self._settled(n) for n in range(len(self._partitions)))
        return settled / len(self.entries)
