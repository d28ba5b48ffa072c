"""A stopwatch from the assignment of partitions to the last commit."""

from __future__ import annotations

import threading
import time

import msgspec

from bench.memory import resident

SOURCE = "oncebox-kafka"
"""The name of the thread in which oncebox asks Kafka."""


class Run(msgspec.Struct, frozen=True):
    """What a consumer did, in seconds: of the clock, of CPU, and of the CPU of some threads."""

    messages: int
    seconds: float
    cpu: float
    main: float
    source: float
    native: float
    """Threads that are not Python's: librdkafka's own."""
    resident: float
    """Megabytes."""

    @property
    def rate(self) -> float:
        """Messages per second."""
        return self.messages / self.seconds


class Watch:
    """A stopwatch. The first assignment of partitions starts it."""

    def __init__(self, messages: int) -> None:
        self._messages = self._left = messages
        self._start: Moment | None = None
        self.run: Run | None = None

    def start(self) -> None:
        """The group has let us in. Called again for further partitions, it changes nothing."""
        self._start = self._start or Moment()

    def committed(self, count: int) -> bool:
        """Count messages that are committed; returns True after the last one."""
        self._left -= count
        if self._left <= 0 and self.run is None:
            assert self._start is not None
            self.run = self._start.until(Moment(), self._messages)
        return self._left <= 0


class Moment:
    """The clock, and the CPU time of the process and of its Python threads."""

    def __init__(self) -> None:
        self.clock = time.perf_counter()
        self.cpu = time.process_time()
        self.threads = {thread.name: _cpu(thread) for thread in threading.enumerate()}

    def until(self, end: Moment, messages: int) -> Run:
        """What passed between the two."""
        spent = {name: cpu - self.threads.get(name, 0) for name, cpu in end.threads.items()}
        cpu = end.cpu - self.cpu
        return Run(
            messages=messages,
            seconds=end.clock - self.clock,
            cpu=cpu,
            main=spent["MainThread"],
            source=spent.get(SOURCE, 0),
            native=cpu - sum(spent.values()),
            resident=resident(),
        )


def _cpu(thread: threading.Thread) -> float:
    assert thread.ident is not None
    return time.clock_gettime(time.pthread_getcpuclockid(thread.ident))
