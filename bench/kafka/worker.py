"""A process that opens a contender once, and consumes a topic on request."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from contextlib import AbstractContextManager
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Self

import msgspec

from bench.kafka.watch import Run, Watch


class Order(msgspec.Struct, frozen=True):
    """Read this number of messages of a topic, as a group."""

    servers: str
    topic: str
    group: str
    messages: int


Consume = Callable[[Order, Watch], None]
"""Consumes until the watch says that it was the last."""
Open = Callable[[str, int], AbstractContextManager[Consume]]
"""Opens a contender on a database, with batches of a size. It is pickled: no closures."""

PATIENCE = 300.0

_processes = multiprocessing.get_context("spawn")


class Worker:
    """A process that stays, so that connections are open and statements prepared in every round."""

    def __init__(self, open: Open, url: str, batch: int) -> None:
        self._pipe, theirs = _processes.Pipe()
        arguments = (theirs, open, url, batch)
        self._process = _processes.Process(target=_serve, args=arguments, daemon=True)
        self._process.start()
        theirs.close()

    def consume(self, order: Order) -> Run:
        """Let it read a topic."""
        self._pipe.send(order)
        if not self._pipe.poll(PATIENCE):
            raise TimeoutError("a worker does not answer")
        run: Run = self._pipe.recv()  # EOFError: it crashed; the traceback is on stderr
        return run

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._pipe.close()
        self._process.join(10)
        if self._process.is_alive():
            self._process.kill()


def _serve(pipe: Connection, open: Open, url: str, batch: int) -> None:
    """The main function of the process; it ends when the pipe is closed."""
    with open(url, batch) as consume:
        while True:
            try:
                order = pipe.recv()
            except EOFError:
                return
            watch = Watch(order.messages)
            consume(order, watch)
            pipe.send(watch.run)
