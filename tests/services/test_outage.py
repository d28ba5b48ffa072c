"""What a service reports while its database is down, and when it is back."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import oncebox.services.loop
from oncebox import Consumer, Inbox, Worker
from oncebox.brokers.file import FileSource
from oncebox.services.loop import Loop
from support.services import wait_until
from support.services.postgres import Postgres
from support.worlds import World, write_effect

pytestmark = [pytest.mark.crash, pytest.mark.only(("sqlalchemy-psycopg",))]


def consumer(inbox: Inbox, file: Path) -> Loop:
    return Consumer(inbox, FileSource(file, follow=True))


def drainer(inbox: Inbox, file: Path) -> Loop:
    return Worker(inbox, poll=0.05)


@pytest.mark.parametrize("make", [consumer, drainer])
def test_a_loop_waits_while_the_database_is_down(
    make: Callable[[Inbox, Path], Loop],
    world: World,
    postgres: Postgres,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(oncebox.services.loop, "LONGEST_OUTAGE", 0.1)
    file = tmp_path / "events"
    file.touch()
    inbox = world.inbox()
    world.on(inbox, "order", write_effect)
    loop = make(inbox, file)
    beats: list[str] = []
    loop.on_beat = beats.append
    thread = threading.Thread(target=loop.run)
    thread.start()
    try:
        wait_until(lambda: len(beats) > 2, "it does not begin")
        assert not any(beats)
        postgres.crash()
        wait_until(lambda: any(beats), "nothing was noticed")
        wait_until(lambda: caplog.text.count("database unavailable") > 5, "it gave up")
        assert all(beats[beats.index("the database") :]), "it is away all the time"
        postgres.restart()
        wait_until(lambda: not beats[-1], "it does not notice that it is back")
        assert loop._pause < 0.1, "the next outage begins with a short pause"
    finally:
        loop.stop()
        thread.join(20)
    assert not thread.is_alive()
