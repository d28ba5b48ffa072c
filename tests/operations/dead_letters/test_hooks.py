"""Hooks are notified of dead letters."""

from __future__ import annotations

import http.server
import json
import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from oncebox import Delivery
from oncebox.model.dead_letter import DeadLetter
from support.inboxes import ONCE, InboxHarness, keyed, make_dead_letters
from support.worlds import BOTH, SOME, World, order


def told_again(world: World) -> None:
    """End the leases of failed notifications."""
    past = "clock_timestamp()" if world.is_postgres else "0"
    world.execute(f"UPDATE oncebox_dead_letter SET notify_at = {past} WHERE notify_at IS NOT NULL")


def untold(world: World) -> int:
    ((count,),) = world.query(
        "SELECT count(*) FROM oncebox_dead_letter WHERE notify_at IS NOT NULL"
    )
    return int(count)


@pytest.mark.only(SOME)
def test_a_hook_is_notified_once_of_every_dead_letter(world: World) -> None:
    told: list[DeadLetter] = []
    harness = InboxHarness(world, retry=ONCE, on_dead=told.append)
    make_dead_letters(harness, keyed("1"))
    assert told == [], "the drain tells"
    harness.bad["2"] = ValueError("two")
    harness.receive(order("2"), order("3"))
    harness.process(Delivery(b"?"))
    assert harness.drain() == {"dead": 1, "done": 1}
    harness.drain()
    assert sorted(letter.message_id or "" for letter in told) == ["", "1", "2"]
    assert {letter.id for letter in told} == {letter.id for letter in harness.dead("find")}
    assert untold(world) == 0


@pytest.mark.only(("psycopg-async", "aiosqlite"))
def test_an_async_hook_is_awaited(world: World) -> None:
    told: list[str | None] = []

    async def tell(letter: DeadLetter) -> None:
        told.append(letter.message_id)

    harness = InboxHarness(world, retry=ONCE, on_dead=[tell])
    make_dead_letters(harness, keyed("1"))
    harness.drain()
    assert told == ["1"]


@pytest.mark.only(("psycopg-async",))
def test_a_sync_hook_does_not_block_the_loop(world: World) -> None:
    threads: list[str] = []
    hook = lambda letter: threads.append(threading.current_thread().name)  # noqa: E731
    harness = InboxHarness(world, retry=ONCE, on_dead=hook)
    make_dead_letters(harness, keyed("1"))
    harness.drain()
    assert len(threads) == 1
    assert threads != [threading.current_thread().name]


@pytest.mark.only(SOME)
def test_a_failed_notification_is_repeated_later(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[str | None] = []
    errors = [ConnectionError("down")]

    def tell(letter: DeadLetter) -> None:
        told.append(letter.message_id)
        if errors:
            raise errors.pop()

    harness = InboxHarness(world, retry=ONCE, on_dead=tell)
    make_dead_letters(harness, keyed("1"))
    harness.drain()
    harness.drain()
    assert told == ["1"], "not before its lease ends"
    assert untold(world) == 1
    assert "tell failed for dead letter 1 (ConnectionError); all its hooks" in caplog.text
    told_again(world)
    harness.drain()
    assert told == ["1", "1"]
    assert untold(world) == 0
    told_again(world)
    harness.drain()
    assert told == ["1", "1"]


@pytest.mark.only(BOTH)
def test_hooks_are_notified_of_more_dead_letters_than_one_lease(world: World) -> None:
    told: list[str | None] = []
    harness = InboxHarness(world, retry=ONCE, on_dead=lambda letter: told.append(letter.message_id))
    make_dead_letters(harness, *[order(str(n)) for n in range(45)])
    harness.drain()
    assert len(told) == 45
    assert set(told) == {str(n) for n in range(45)}


@pytest.mark.only(BOTH)
def test_without_hooks_no_notification_is_pending(world: World, harness: InboxHarness) -> None:
    make_dead_letters(harness, keyed("1"))
    assert untold(world) == 0


@pytest.mark.only(BOTH)
def test_the_log_hook_names_the_dead_letter_and_nothing_private(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    harness = InboxHarness(world, retry=ONCE, on_dead="log")
    harness.bad["secret"] = ValueError("secret error")
    harness.process(order("1", key="k", data={"id": "secret"}))
    caplog.clear()
    harness.drain()
    (record,) = [r for r in caplog.records if r.levelno == logging.ERROR]
    assert record.getMessage().startswith("dead letter 1: message '1' of type 'order', key 'k'")
    assert "secret" not in caplog.text


class Receiver(http.server.BaseHTTPRequestHandler):
    """Accepts webhooks; responds with the status codes in `refusals` first, if there are any."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.got.append((self.path, self.headers["Content-Type"], json.loads(body)))  # type: ignore[attr-defined]
        refusals = self.server.refusals  # type: ignore[attr-defined]
        self.send_response(refusals.pop() if refusals else 204)
        self.end_headers()

    def log_message(self, *args: Any) -> None:
        """Not to the terminal."""


@pytest.fixture
def receiver() -> Iterator[Any]:
    server: Any = http.server.HTTPServer(("127.0.0.1", 0), Receiver)
    server.got, server.refusals = [], []
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.only(("psycopg", "aiosqlite"))
def test_a_webhook_gets_the_dead_letter_without_its_payload(
    world: World, receiver: Any, caplog: pytest.LogCaptureFixture
) -> None:
    receiver.refusals = [503]
    url = f"http://127.0.0.1:{receiver.server_port}/dead"
    harness = InboxHarness(world, retry=ONCE, on_dead=url)
    make_dead_letters(harness, keyed("1"))
    harness.drain()
    assert untold(world) == 1, "an answer of 503 is none"
    assert "on_dead hook webhook failed for dead letter 1 (HTTPError)" in caplog.text
    assert url not in caplog.text, "a URL may contain a secret"
    told_again(world)
    harness.drain()
    assert untold(world) == 0
    (path, content_type, letter), again = receiver.got
    assert again[2]["id"] == letter["id"]
    assert (path, content_type) == ("/dead", "application/json")
    assert (letter["message_id"], letter["reason"], letter["key"]) == ("1", "out_of_attempts", "k")
    assert {"payload", "headers", "content_hash"}.isdisjoint(letter)


@pytest.mark.only(BOTH)
def test_every_hook_is_notified(world: World, caplog: pytest.LogCaptureFixture) -> None:
    told: list[int] = []
    harness = InboxHarness(
        world, retry=ONCE, on_dead=["log", lambda letter: told.append(letter.id)]
    )
    make_dead_letters(harness, keyed("1"))
    harness.drain()
    assert told == [1]
    assert "dead letter 1: " in caplog.text
    assert "; see `oncebox show APP --number 1`" in caplog.text
