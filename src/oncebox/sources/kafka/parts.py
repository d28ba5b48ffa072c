"""Parts: the partitions that are ours, what was read of them, and who waits for what."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from threading import Condition
from typing import TYPE_CHECKING

from oncebox import reports
from oncebox.errors import OnceboxError
from oncebox.sources.kafka.starting import Facts, Start
from oncebox.store.records import Position

if TYPE_CHECKING:
    from confluent_kafka import Message

MESSAGES = 2_000
"""Messages that are kept ready,"""

BYTES = 16_000_000
"""as long as they are no more than so many bytes."""


class Part:
    """A partition that is ours."""

    def __init__(self, topic: str, partition: int) -> None:
        self.topic = topic
        self.partition = partition
        self.name = part_name(topic, partition)
        self.facts = Facts()
        self.is_wanted = True
        """Whether it stays ours: False once it is to be let go."""
        self.position: Position | None = None
        """Where the reader found it in the database: it is in the reader's hands then."""
        self.is_hopeless = False
        """Whether it cannot be read at present."""
        self.start: int | None = None
        """The offset that it is fetched from."""
        self.next = 0
        """The position that is committed, or will be once what was handed over is."""
        self.mark: str | None = None
        self.prefix = ""
        self.queue: deque[Message] = deque()
        self.last = -1
        """The last offset that was fetched."""
        self.end: int | None = None
        """Where nothing more was to be had."""
        self.high: int | None = None
        """The offset after its last one."""
        self.handled: int | None = None
        """The offset before which everything is handled,"""
        self.stored: int | None = None
        """what librdkafka knows of it,"""
        self.settled: int | None = None
        """and the broker."""

    def begin(self, start: Start, next_: int) -> None:
        """Fetch it from here on."""
        if start.complaint:
            reports.logger.warning("%s %s", self.name, start.complaint)
        self.mark, self.prefix, self.next = start.mark, start.prefix, next_
        if start.offset == next_:
            self.handled = next_  # whoever was here before may have died before he told Kafka
        self.last = start.offset - 1
        self.start = start.offset


class Parts:
    """All partitions that are ours. Two threads use it: one fills, one reads."""

    def __init__(self) -> None:
        self._changed = Condition()
        self._parts: dict[str, Part] = {}
        self._messages = self._bytes = 0
        self._moved = False
        self._gone: set[str] = set()
        self._handed: tuple[str, float] | None = None
        self._failure: BaseException | None = None
        self.is_closing = False

    # -- for both ---------------------------------------------------------------------------------

    def get(self, name: str) -> Part | None:
        with self._changed:
            return self._parts.get(name)

    def all(self) -> list[Part]:
        with self._changed:
            return list(self._parts.values())

    def close(self) -> None:
        with self._changed:
            self.is_closing = True
            self._changed.notify_all()

    def wait(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Wait until a condition holds, or it is over; says whether it holds."""
        with self._changed:
            self._changed.wait_for(lambda: condition() or self.is_closing, seconds)
            return condition()

    # -- for the one that fills -------------------------------------------------------------------

    def offer(self, parts: list[Part]) -> None:
        """These are ours now, and wait to be opened."""
        with self._changed:
            self._parts |= {part.name: part for part in parts}
            self._moved = True
            self._changed.notify_all()

    def recall(self, names: list[str]) -> list[Part]:
        """These are to be let go; what was read of them and not handed over is forgotten."""
        with self._changed:
            recalled = [self._parts[name] for name in names if name in self._parts]
            for part in recalled:
                part.is_wanted = False
                self._empty(part)
            self._gone.update(names)
            self._moved = True
            self._changed.notify_all()
            return recalled

    def remove(self, parts: list[Part]) -> None:
        with self._changed:
            for part in parts:
                if self._parts.get(part.name) is part:
                    del self._parts[part.name]

    def fill(self, messages: list[Message]) -> None:
        """Keep what was fetched, and is to be read, in order."""
        with self._changed:
            for message in messages:
                part = self._parts.get(part_name(message.topic() or "", message.partition() or 0))
                offset = message.offset() or 0
                if part is None or part.start is None or not part.is_wanted or offset <= part.last:
                    continue
                part.last, part.end = offset, None
                part.queue.append(message)
                self._messages += 1
                self._bytes += len(message)
            self._changed.notify_all()

    def room(self, seconds: float) -> int:
        """How many messages more there is room for; waits a while for any."""
        if not self.wait(lambda: not self._is_full(), seconds):
            return 0
        with self._changed:
            size = self._bytes // self._messages if self._messages else 1
            by_size = max(1, (BYTES - self._bytes) // max(1, size))
            return max(1, min(MESSAGES - self._messages, by_size))

    def ended(self, part: Part, offset: int) -> None:
        """Nothing is before this offset that was not fetched."""
        with self._changed:
            part.end = offset

    def to_store(self) -> list[tuple[Part, int]]:
        """What librdkafka is to be told: the offsets before which everything is handled."""
        with self._changed:
            found = []
            for part in self._parts.values():
                offset = part.handled
                # Behind the last message may be the marks of transactions: they are handled too.
                if offset is not None and part.end is not None and self._is_done(part):
                    offset = max(offset, part.end)
                if offset is not None and offset != part.stored:
                    part.stored = offset
                    found.append((part, offset))
            return found

    def handed(self) -> tuple[str, float] | None:
        """The part whose messages are in the reader's hands, and since when."""
        with self._changed:
            return self._handed

    def fail(self, error: BaseException) -> None:
        """The one that fills cannot go on."""
        with self._changed:
            self._failure = error
            self._changed.notify_all()

    # -- for the one that reads -------------------------------------------------------------------

    def is_moved(self) -> bool:
        with self._changed:
            self._raise()
            return self._moved

    def wanted(self) -> list[str]:
        """The parts that are ours. One that went and came again is not, the first time."""
        with self._changed:
            self._raise()
            gone, self._gone = self._gone, set()
            wanted = {part.name for part in self._parts.values() if part.is_wanted}
            self._moved = bool(gone & wanted)
            return sorted(wanted - gone)

    def open(self, position: Position) -> None:
        """A part is to be fetched from its position on."""
        with self._changed:
            part = self._parts.get(position.part)
            if part is not None and part.is_wanted:
                part.position = position
            self._changed.notify_all()

    def despair(self, part: Part) -> None:
        """A part cannot be opened at present."""
        with self._changed:
            part.is_hopeless = True
            self._changed.notify_all()

    def take(self, limit: int, seconds: float) -> tuple[Part, list[Message]] | None:
        """Messages of the part whose turn it is; None if there are none, or parts moved."""
        with self._changed:
            self._handed = None
            self._changed.wait_for(self._has_news, seconds)
            self._raise()
            part = None if self._moved else self._next()
            if part is None:
                return None
            # Whoever had his turn goes to the end of the line.
            self._parts[part.name] = self._parts.pop(part.name)
            count = min(limit, len(part.queue))
            messages = [part.queue.popleft() for _ in range(count)]
            self._messages -= count
            self._bytes -= sum(map(len, messages))
            self._handed = (part.name, time.monotonic())
            self._changed.notify_all()
            return part, messages

    def settle(self, name: str, offset: int) -> None:
        """Everything before an offset is handled."""
        with self._changed:
            self._handed = None
            part = self._parts.get(name)
            if part is not None and part.start is not None and part.position is not None:
                part.handled = offset

    def release(self, name: str) -> bool:
        """A part is read no more; says whether it was still ours."""
        with self._changed:
            part = self._parts.get(name)
            if part is None or part.position is None:
                return False
            was_ours = part.is_wanted
            part.is_wanted = False
            part.position = None
            self._empty(part)
            self._changed.notify_all()
            return was_ours

    # -- under the lock ---------------------------------------------------------------------------

    def _has_news(self) -> bool:
        return bool(self._moved or self._failure or self._messages or self.is_closing)

    def _next(self) -> Part | None:
        return next((part for part in self._parts.values() if part.queue), None)

    def _is_full(self) -> bool:
        return self._messages >= MESSAGES or self._bytes >= BYTES

    def _is_done(self, part: Part) -> bool:
        """Whether everything that was fetched is handled. Something must have been: the news of an
        end may be left over from an earlier time."""
        was_fetched = part.start is not None and part.last >= part.start
        return was_fetched and part.handled == part.next == part.last + 1

    def _empty(self, part: Part) -> None:
        self._messages -= len(part.queue)
        self._bytes -= sum(map(len, part.queue))
        part.queue.clear()

    def _raise(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self.is_closing:
            raise OnceboxError("the source is closed: make another one")


def part_name(topic: str, partition: int) -> str:
    return f"{topic}/{partition}"
