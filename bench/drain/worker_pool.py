"""Worker processes that open a contender once, and drain on request."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from multiprocessing.connection import Connection
from statistics import mean
from types import TracebackType
from typing import Any, Self

import msgspec

Drain = Callable[[], int]
"""Runs a batch of ready messages and returns how many it had; 0 if none was ready."""
Open = Callable[[str, int], AbstractContextManager[Drain]]
"""Opens a drain on the database of a URL, with batches of a size. It is pickled: no closures."""
Refill = Callable[[str], AbstractContextManager[Callable[[int], None]]]
"""Opens what a worker does after a batch of N messages. That time does not count."""

SOONEST = 0.01
LATEST = 1.0
"""Seconds that a worker pauses if nothing is ready: at first, and at most after doubling.
The same for all contenders, and what oncebox's own worker does."""
PATIENCE = 300.0

_processes = multiprocessing.get_context("spawn")


class Task(msgspec.Struct, frozen=True):
    """Drain from a moment on, until this number of messages is done or the deadline has passed."""

    messages: int
    start: float
    deadline: float


class Run(msgspec.Struct, frozen=True):
    """What the workers did together."""

    done: int
    seconds: float
    gap: float
    """The longest time that a worker took from one batch to the next, refilling included."""

    @property
    def rate(self) -> float:
        """Messages per second."""
        return self.done / self.seconds


class _Share(msgspec.Struct, frozen=True):
    """What one worker did: messages, when it was through with the last of them, when it ended."""

    done: int
    last: float
    ended: float
    gap: float
    aside: float
    """Seconds that do not count."""


class WorkerPool:
    """Processes that stay, so that connections are open and statements prepared in every round."""

    def __init__(
        self, open: Open, url: str, *, batch: int, workers: int, refill: Refill | None = None
    ) -> None:
        self._counter = _processes.Value("q", 0)
        self._enough = _processes.Event()
        self._pipes: list[Connection] = []
        self._workers = []
        for _ in range(workers):
            ours, theirs = _processes.Pipe()
            self._pipes.append(ours)
            arguments = (theirs, self._counter, self._enough, open, url, batch, refill)
            self._workers.append(_processes.Process(target=_serve, args=arguments, daemon=True))
        for worker in self._workers:
            worker.start()
        for pipe in self._pipes:
            _answer(pipe)

    def drain(self, messages: int, *, limit: float = PATIENCE) -> Run:
        """Let all workers drain at the same time."""
        start = self.begin(messages, limit=limit)
        return self.finish(messages, start)

    def begin(self, messages: int, *, limit: float = PATIENCE) -> float:
        """Start the workers; returns the moment at which they begin."""
        self._counter.value = 0
        self._enough.clear()
        start = time.monotonic() + 0.02
        for pipe in self._pipes:
            pipe.send(Task(messages, start, start + limit))
        return start

    def finish(self, messages: int, start: float) -> Run:
        """Wait until the workers have finished."""
        shares: list[_Share] = [_answer(pipe) for pipe in self._pipes]
        done = sum(share.done for share in shares)
        end = max(share.last if done >= messages else share.ended for share in shares)
        aside = mean(share.aside for share in shares)
        return Run(done, end - start - aside, max(share.gap for share in shares))

    @property
    def done(self) -> int:
        """How many messages are done so far."""
        return int(self._counter.value)

    def close(self) -> None:
        for pipe in self._pipes:
            pipe.send(None)
        for worker in self._workers:
            worker.join(10)
            if worker.is_alive():
                worker.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class WorkerCrashed(Exception):
    """A worker process ended unexpectedly; its traceback is on stderr."""


def _answer(pipe: Connection) -> Any:
    if not pipe.poll(PATIENCE * 2):
        raise TimeoutError("a worker does not answer")
    try:
        return pipe.recv()
    except EOFError:
        raise WorkerCrashed(WorkerCrashed.__doc__) from None


def _serve(
    pipe: Connection,
    counter: Any,
    enough: Any,
    open: Open,
    url: str,
    batch: int,
    refill: Refill | None,
) -> None:
    """The main function of a worker process."""
    with open(url, batch) as drain, refill(url) if refill else nullcontext() as after:
        drain()
        pipe.send(None)
        while (task := pipe.recv()) is not None:
            time.sleep(max(task.start - time.monotonic(), 0))
            pipe.send(_work(drain, task, counter, enough, after))


def _work(
    drain: Drain, task: Task, counter: Any, enough: Any, after: Callable[[int], None] | None
) -> _Share:
    total, last, gap, pause, aside, refilled = 0, task.start, 0.0, SOONEST, 0.0, 0.0
    while not enough.is_set() and (left := task.deadline - time.monotonic()) > 0:
        if done := drain():
            now = time.monotonic()
            total, last, gap, pause = total + done, now, max(gap, now - last), SOONEST
            aside += refilled  # between two batches
            with counter.get_lock():
                counter.value += done
                if counter.value >= task.messages:
                    enough.set()
            if after is not None:
                after(done)
                refilled = time.monotonic() - now
        else:
            enough.wait(min(pause, left))
            pause = min(pause * 2, LATEST)
    return _Share(total, last, time.monotonic(), gap, aside)
