"""The watchdog: it closes what is overdue, and nothing else."""

from __future__ import annotations

import gc
import os
import socket
import threading
from collections.abc import Iterator

import pytest

from oncebox.storage.drivers import watchdog
from oncebox.storage.drivers.watchdog import Watched, watch
from support.services import wait_until

LONG = 1000.0


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    near, far = socket.socketpair()
    with near, far:
        yield near, far


def is_open(near: socket.socket, far: socket.socket) -> bool:
    far.send(b".")
    return near.recv(1) == b"."


def test_an_overdue_connection_is_shut_down_under_its_reader(
    pair: tuple[socket.socket, socket.socket], caplog: pytest.LogCaptureFixture
) -> None:
    near, _ = pair
    watched = watch(near, 0.05)
    assert watched is not None
    assert near.recv(1) == b""
    watched.stop()
    wait_until(lambda: "did not end within" in caplog.text, "nothing is logged")


def test_a_shorter_deadline_does_not_wait_for_a_longer_one() -> None:
    (near, far), (other, remote) = socket.socketpair(), socket.socketpair()
    with near, far, other, remote:
        long = watch(near, LONG)
        short = watch(other, 0.05)
        assert long is not None
        assert short is not None
        assert other.recv(1) == b""
        assert is_open(near, far)
        long.stop()
        short.stop()


def test_a_released_connection_is_not_shut_down(pair: tuple[socket.socket, socket.socket]) -> None:
    near, far = pair
    work = Watched()
    work.watch(near, -watchdog.MARGIN + 0.05)
    work.unwatch()
    other, remote = socket.socketpair()
    with other, remote:
        later = watch(other, 0.1)  # once this is closed, the first deadline has passed too
        assert later is not None
        assert other.recv(1) == b""
        later.stop()
    assert is_open(near, far)


def test_a_watch_without_an_owner_closes_nothing(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    near, far = pair
    before = os.listdir("/proc/self/fd")
    abandoned = watch(near, 0.05)
    assert abandoned is not None
    del abandoned
    gc.collect()
    assert os.listdir("/proc/self/fd") == before
    other, remote = socket.socketpair()
    with other, remote:
        later = watch(other, 0.1)
        assert later is not None
        assert other.recv(1) == b""
        later.stop()
    assert is_open(near, far)


def test_a_socket_that_reuses_a_closed_descriptor_is_not_shut_down() -> None:
    near, far = socket.socketpair()
    number = near.fileno()
    watched = watch(near, 0.1)
    assert watched is not None
    near.close()
    other, remote = socket.socketpair()
    with far, other, remote:
        assert other.fileno() == number
        assert far.recv(1) == b"", "the closed one is shut down"
        assert is_open(other, remote)
    watched.stop()


def test_a_forked_child_does_not_shut_down_the_sockets_of_its_parent(
    pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    near, far = pair
    monkeypatch.setattr(watchdog, "_watchdog", watchdog._Watchdog())
    watched = watch(near, LONG)
    assert watched is not None
    parent = watchdog._watchdog
    watchdog._reset_after_fork()
    assert watchdog._watchdog is not parent
    assert not watchdog._watchdog._watches
    parent.remove(watched)
    watched.stop()
    assert is_open(near, far)


def test_units_in_a_row_wake_the_thread_once_per_deadline_and_not_once_each(
    pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    near, _ = pair
    monkeypatch.setattr(watchdog, "_watchdog", dog := watchdog._Watchdog())
    notified = threading.Event()
    monkeypatch.setattr(dog._changed, "notify", notified.set)
    work = Watched()
    for _ in range(100):
        work.watch(near, LONG)
        work.unwatch()
    assert not notified.is_set()


def test_the_thread_ends_when_nothing_is_left_to_watch(
    pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    near, _ = pair
    monkeypatch.setattr(watchdog, "_watchdog", dog := watchdog._Watchdog())
    watched = watch(near, 0.05)
    assert watched is not None
    watched.stop()
    wait_until(lambda: dog._thread is None, "the thread goes on")
