"""A consumer in a process of its own, which can be killed at a named point of its work.

    python child.py URL FOLDER [POINT]

It processes the deliveries in FOLDER/deliveries, batch by batch, and notes in FOLDER/settled what
it would tell a broker. At POINT, in its second batch, it kills itself without a word.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Generator
from datetime import timedelta
from pathlib import Path
from typing import Any

from oncebox import CloudEvents, Delivery, Inbox, Outcome
from oncebox.processing import unit_of_work as unit
from oncebox.storage.drivers.psycopg.database import PsycopgWork
from oncebox.storage.drivers.sqlite.database import SqliteWork
from oncebox.storage.postgres import PostgresStore
from oncebox.storage.sqlite import SqliteStore
from oncebox.testing import event

BATCH = 5
BAD = "bad"
POINTS = (
    "after begin",
    "after claim",
    "before handlers",
    "mid handler",
    "after handlers",
    "after record",
    "before commit",
    "after commit",
    "before settle",
)


class Point:
    """Where the process is to end; reached once it is armed."""

    def __init__(self, name: str | None, signal: int = signal.SIGKILL) -> None:
        self.name = name
        self.signal = signal
        self.armed = False

    def reached(self, name: str) -> None:
        if self.armed and name == self.name:
            self.armed = False
            os.kill(os.getpid(), self.signal)


def install(point: Point) -> None:
    """Let every named step of the unit of work pass by the point."""
    for work in (PsycopgWork, SqliteWork):
        wrap(work, "begin", after=lambda: point.reached("after begin"))
        wrap(work, "commit", after=lambda: point.reached("after commit"))
        # The first call executes the guard, or queues it with COMMIT; the second one sends.
        wrap(work, "commit", second_call=lambda: point.reached("before commit"))
    for store in (PostgresStore, SqliteStore):
        wrap(store, "claim", after=lambda: point.reached("after claim"))
        wrap(store, "record", after=lambda: point.reached("after record"))
    wrap(
        unit,
        "run_handlers",
        before=lambda: point.reached("before handlers"),
        after=lambda: point.reached("after handlers"),
    )


def _nothing() -> None:
    pass


def wrap(
    owner: Any,
    name: str,
    *,
    before: Callable[[], None] = _nothing,
    second_call: Callable[[], None] = _nothing,
    after: Callable[[], None] = _nothing,
) -> None:
    steps = getattr(owner, name)

    def wrapped(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        before()
        answer = yield from _watched(steps(*args, **kwargs), second_call)
        after()
        return answer

    setattr(owner, name, wrapped)


def _watched(steps: Any, second_call: Callable[[], None]) -> Any:
    calls, answer, error = 0, None, None
    while True:
        try:
            call = steps.send(answer) if error is None else steps.throw(error)
        except StopIteration as stop:
            return stop.value
        calls += 1
        if calls == 2:
            second_call()
        try:
            answer, error = (yield call), None
        except BaseException as raised:
            answer, error = None, raised


# -- the consumer ---------------------------------------------------------------------------------


def write_deliveries(folder: Path, messages: list[tuple[str, str | None]]) -> None:
    """The source: ids and keys, in order."""
    (folder / "deliveries").write_text(json.dumps(messages))


def read_deliveries(folder: Path) -> list[Delivery]:
    messages = json.loads((folder / "deliveries").read_text())
    return [event(CloudEvents(), "order", {"id": id}, id=id, key=key) for id, key in messages]


def make_inbox(url: str, point: Point, **options: Any) -> Inbox:
    """The inbox of parent and child; a message's effect is a row, written in two halves."""
    inbox = Inbox("billing", url, **options)

    @inbox.on("order")
    def order(payload: dict[str, Any], tx: Any) -> None:
        tx.execute("INSERT INTO effects (id, body) VALUES (:id, '')", id=payload["id"])
        tx.execute("SELECT count(*) FROM effects").rows()  # the row is on the server by now
        point.reached("mid handler")
        tx.execute("UPDATE effects SET body = 'whole' WHERE id = :id", id=payload["id"])
        if payload["id"].startswith(BAD):
            raise ValueError("a bad message")

    return inbox


def consume(inbox: Inbox, folder: Path, point: Point) -> None:
    """Process everything from the start, as after a rebalance, and record what may be acked."""
    deliveries = read_deliveries(folder)
    with (folder / "settled").open("a") as settled:
        for start in range(0, len(deliveries), BATCH):
            outcomes = inbox.process(deliveries[start : start + BATCH])
            point.reached("before settle")
            for outcome in outcomes:
                settled.write(_line(outcome))
            settled.flush()
            point.armed = True


def read_settled(folder: Path) -> list[tuple[str, str]]:
    """The acked ids and their outcomes; an incomplete last line is ignored."""
    lines = (folder / "settled").read_text().split("\n")[:-1]
    return [tuple(line.split(" ")) for line in lines]  # type: ignore[misc]


def _line(outcome: Outcome) -> str:
    assert outcome.message is not None
    return f"{outcome.message.id} {outcome.kind.value}\n"


def main(url: str, folder: str, name: str | None = None) -> None:
    options: dict[str, Any] = {}
    point = Point(name)
    if name == "stop in handler":
        point = Point("mid handler", signal.SIGSTOP)
        point.armed = True
        options = {"transaction_timeout": timedelta(seconds=1)}
    install(point)
    with make_inbox(url, point, **options) as inbox:
        consume(inbox, Path(folder), point)


if __name__ == "__main__":
    main(*sys.argv[1:])
