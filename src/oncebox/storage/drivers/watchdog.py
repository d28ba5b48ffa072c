"""A watchdog thread that closes the connection of a transaction that takes too long.

The server ends such a transaction too, but a client on a half-open connection does not notice: the
network drops its packets, or the server process is suspended. TCP keepalives detect only the first
case. One thread per process serves all connections. It ends when it has nothing to watch.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import threading
import time
import weakref
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import Any

logger = logging.getLogger("oncebox")

MARGIN = 5.0
"""Seconds after the time limit in which the server may end a transaction before the client does."""

LONGEST_SLEEP = 3600.0
"""Seconds. Threading locks cannot wait as long as the largest transaction_timeout."""


class Watch(ABC):
    """The deadline of one transaction on one connection.

    After stop() the watch never closes the connection, which may then serve another transaction.
    A watch that is garbage collected has stopped too.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.deadline = time.monotonic() + seconds

    @abstractmethod
    def end(self) -> None:
        """Close the connection. The watchdog calls this from its thread, holding its lock."""

    def stop(self) -> None:
        """Stop watching the connection."""
        _watchdog.remove(self)


class _SocketWatch(Watch):
    """Shuts the socket down, which wakes the thread or event loop that waits for it."""

    _descriptor = -1

    def __init__(self, descriptor: int, seconds: float) -> None:
        super().__init__(seconds)
        # A duplicate: after the driver closes its own, another connection may get the number.
        self._descriptor = os.dup(descriptor)

    def end(self) -> None:
        connection = socket.socket(fileno=self._descriptor)
        try:
            connection.shutdown(socket.SHUT_RDWR)
        finally:
            connection.detach()

    def stop(self) -> None:
        super().stop()
        self._close()

    def _close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self) -> None:
        self._close()


class _LoopWatch(Watch):
    """Asks the connection's event loop to abort it, for a driver that hides its socket."""

    def __init__(self, connection: Any, seconds: float) -> None:
        super().__init__(seconds)
        self._loop = asyncio.get_running_loop()
        self._connection = connection

    def end(self) -> None:
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._abort)

    def _abort(self) -> None:
        if self._connection is not None:  # the transaction may have ended in the meantime
            self._connection.terminate()

    def stop(self) -> None:
        super().stop()
        self._connection = None


class _Watchdog:
    """The thread and the watches it serves."""

    def __init__(self) -> None:
        self._changed = threading.Condition()  # reentrant: a signal handler may interrupt
        self._watches: weakref.WeakSet[Watch] = weakref.WeakSet()
        self._thread: threading.Thread | None = None
        self._wakes_at = 0.0

    def add(self, watch: Watch) -> None:
        with self._changed:
            self._watches.add(watch)
            if self._thread is None:
                self._start(watch.deadline)
            elif watch.deadline < self._wakes_at:
                self._wakes_at = watch.deadline
                self._changed.notify()

    def remove(self, watch: Watch) -> None:
        # The thread is not woken: it sleeps until a deadline and then checks what is left.
        with self._changed:
            self._watches.discard(watch)

    def _start(self, wakes_at: float) -> None:
        self._wakes_at = wakes_at
        thread = threading.Thread(target=self._run, name="oncebox-watchdog", daemon=True)
        with suppress(RuntimeError):  # the interpreter is shutting down
            thread.start()
            self._thread = thread

    def _run(self) -> None:
        while (ended := self._wait()) is not None:
            for seconds in ended:
                logger.error(
                    "transaction did not end within %.0f s: connection closed, work rolled back",
                    seconds,
                )

    def _wait(self) -> list[float] | None:
        """End the overdue watches and return their time limits; None when no watch is left."""
        with self._changed:
            while self._watches:
                now = time.monotonic()
                if overdue := [watch for watch in self._watches if watch.deadline <= now]:
                    return [self._end(watch) for watch in overdue]
                self._wakes_at = min(watch.deadline for watch in self._watches)
                self._changed.wait(min(self._wakes_at - now, LONGEST_SLEEP))
            self._thread = None
            return None

    def _end(self, watch: Watch) -> float:
        self._watches.discard(watch)
        with suppress(OSError):  # the connection is closed already
            watch.end()
        return watch.seconds


_watchdog = _Watchdog()


def _reset_after_fork() -> None:
    """Start without watches in a forked child: the sockets belong to the parent."""
    global _watchdog
    _watchdog = _Watchdog()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_after_fork)


class Watched:
    """A transaction with a time limit, from its beginning until its connection is released."""

    _watch: Watch | None = None

    def watch(self, connection: Any, within: float | None) -> None:
        """Close the connection some seconds after `within`, unless unwatch() is called before."""
        self.unwatch()
        if within is not None:
            self._watch = watch(connection, within + MARGIN)

    def unwatch(self) -> None:
        """Stop watching: the connection no longer belongs to this transaction."""
        current, self._watch = self._watch, None
        if current is not None:
            current.stop()


def watch(connection: Any, seconds: float) -> Watch | None:
    """Close a driver's connection after some seconds, unless stop() is called before.

    Returns None for a closed connection, and for drivers without a socket, such as SQLite.
    """
    try:
        found = _watch_of(connection, seconds)
    except Exception:  # it is closed; the next statement raises a better error
        return None
    if found is not None:
        _watchdog.add(found)
    return found


def _watch_of(connection: Any, seconds: float) -> Watch | None:
    if hasattr(connection, "fileno"):  # psycopg, psycopg2
        return _SocketWatch(connection.fileno(), seconds)
    if hasattr(connection, "terminate"):  # asyncpg
        return _LoopWatch(connection, seconds)
    return None
