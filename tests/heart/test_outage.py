"""What a loop says of itself while its database is away, and when it is back."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import oncebox.services.loop
from oncebox import Consumer, Drainer, Inbox
from oncebox.services.loop import Loop
from oncebox.sources import FileSource
from services import wait_until
from services.postgres import Postgres
from worlds import World, write_effect

pytestmark = [pytest.mark.crash, pytest.mark.only(("sqlalchemy-psycopg",))]


def consumer(inbox: Inbox, file: Path) -> Loop:
    return Consumer(inbox, FileSource(file, follow=True))


def drainer(inbox: Inbox, file: Path) -> Loop:
    return Drainer(inbox, poll=0.05)


@pytest.mark.parametrize("make", [consumer, drainer])
def test_a_loop_waits_for_as_long_as_the_database_is_away(
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
    beats: list[bool] = []
    loop.on_beat = beats.append
    thread = threading.Thread(target=loop.run)
    thread.start()
    try:
        wait_until(lambda: len(beats) > 2, "it does not begin")
        assert not any(beats)
        postgres.crash()
        wait_until(lambda: any(beats), "nothing was noticed")
        wait_until(lambda: caplog.text.count("waits for the database") > 5, "it gave up")
        assert all(beats[beats.index(True) :]), "it is away all the time"
        postgres.restart()
        wait_until(lambda: not beats[-1], "it does not notice that it is back")
        assert loop._pause < 0.1, "the next outage begins with a short pause"
    finally:
        loop.stop()
        thread.join(20)
    assert not thread.is_alive()
