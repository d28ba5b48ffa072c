"""Every command that changes something records the reason that the operator gave."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from oncebox import CloudEvents, Delivery, Inbox, Reject, Retention
from oncebox.cli import main
from oncebox.storage.sqlite.values import later

from .conftest import Command, query

pytestmark = pytest.mark.parametrize("database", ["sqlite"], indirect=True)

A_DAY = 86_400
APP = """
import os
from oncebox import CloudEvents, Inbox, Retention

inbox = Inbox("billing", os.environ["DATABASE"], identity=CloudEvents(sequence="number"),
              retention=Retention(days=7, archive=os.environ["ARCHIVE"]))
"""
COMMANDS = {
    "retry": ("retry", "--all"),
    "discard": ("discard", "--all"),
    "replay": ("replay", "new", "--id", "done", "--no-wait"),
    "pace": ("replay", "running", "--pace", "2"),
    "cancel": ("replay", "running", "--cancel"),
    "skip": ("gaps", "--key", "k", "--skip"),
    "purge": ("purge",),
    "restore": ("archive", "--restore"),
    "erase": ("erase", "--id", "old"),
}


@pytest.fixture
def environment(environment: dict[str, str], folder: Path) -> dict[str, str]:
    return {**environment, "ARCHIVE": str(folder / "archive")}


@pytest.fixture
def inbox(database: str, folder: Path) -> Iterator[Inbox]:
    """The inbox of the application, in this process."""
    (folder / "billing.py").write_text(APP)
    retention = Retention(days=7, archive=str(folder / "archive"))
    identity = CloudEvents(sequence="number")
    with Inbox("billing", database, identity=identity, retention=retention) as inbox:

        @inbox.on("order")
        def handle(payload: str) -> None:
            if payload == "bad":
                raise Reject("no")

        inbox.migrate()
        yield inbox


def event(id: str, data: str = "", **attributes: object) -> Delivery:
    common = {"specversion": "1.0", "source": "shop", "type": "order"}
    return Delivery(json.dumps({**common, "id": id, "data": data, **attributes}).encode())


@pytest.fixture
def eventful(inbox: Inbox, database: str) -> None:
    """There is something to do for every command, and a source that delays the purge."""
    inbox.process([event("archived")])
    age(database, days=20)
    inbox.process([event("old")])
    assert inbox.purge.run().purged == 1
    age(database, days=9)
    inbox.process([event("done"), event("dead", "bad")])
    inbox.process([event(f"e{n}", partitionkey="k", number=n) for n in (1, 3)])
    inbox.replays.start("running", ids=["done"], why="the test")
    query(database, "DELETE FROM oncebox_audit")
    query(
        database,
        "INSERT INTO oncebox_position (consumer, source, partition, next, lag, seen_at, moved_at) "
        f"VALUES ('billing', 'file', 'a', 1, 0, {later(-8 * A_DAY)}, {later(-8 * A_DAY)})",
    )


def age(database: str, *, days: int) -> None:
    for table, column in (("inbox", "received_at"), ("minute_counter", "minute")):
        query(database, f"UPDATE oncebox_{table} SET {column} = {column} - {days * A_DAY}000000")


@pytest.mark.usefixtures("eventful")
@pytest.mark.parametrize("act", COMMANDS)
def test_the_reason_that_was_given_is_recorded(act: str, oncebox: Command, database: str) -> None:
    command, *arguments = COMMANDS[act]
    why = ("--why", "ticket 4711", "--by", "ada", "--yes")
    done = oncebox(command, "billing:inbox", *arguments, *why)
    assert done.returncode == 0, done.stderr
    recorded = query(database, "SELECT DISTINCT action, by_whom, why FROM oncebox_audit")
    assert recorded == [(act, "ada", "ticket 4711")]


@pytest.mark.usefixtures("eventful")
def test_a_purge_that_is_held_back_says_why(oncebox: Command, database: str) -> None:
    done = oncebox("purge", "billing:inbox", "--yes", "--why", "disk")
    assert "some messages cannot be purged yet: file a has no reader" in done.stderr
    assert query(database, "SELECT why FROM oncebox_audit") == [("disk",)]


def test_no_command_that_takes_a_reason_is_missing_here(database: str) -> None:
    takes_reason = {
        name
        for name, command in main.commands.items()
        if any(option.name == "why" for option in command.params)
    }
    assert takes_reason == {command for command, *_ in COMMANDS.values()}


@pytest.mark.usefixtures("eventful")
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("replay", "running", "--cancel", "--id", "other"), "leave out filters and --pace"),
        (("replay", "running", "--cancel", "--pace", "2"), "leave out filters and --pace"),
        (("replay", "--pace", "2"), "name the replay"),
        (("archive", "--check", "--since", "1d"), "leave out --since and --until"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_an_option_that_would_not_be_used_is_refused(
    arguments: tuple[str, ...], says: str, oncebox: Command, database: str
) -> None:
    command, *rest = arguments
    done = oncebox(command, "billing:inbox", *rest, "--why", "x", "--yes")
    assert done.returncode == 2
    assert says in done.stderr
    assert query(database, "SELECT count(*) FROM oncebox_audit") == [(0,)]


@pytest.mark.usefixtures("eventful")
def test_an_empty_filter_does_not_erase_everything(oncebox: Command, database: str) -> None:
    payloads = "SELECT message_id, payload FROM oncebox_inbox ORDER BY 1"
    before = query(database, payloads)
    done = oncebox("erase", "billing:inbox", "--type", "order", "--key", "", "--why", "x", "-y")
    assert done.returncode == 3, done.stderr
    assert query(database, payloads) == before
