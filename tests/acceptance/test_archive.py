"""Archives and erasure on the command line; and an archive on a disk that is full, or read-only."""

from __future__ import annotations

import json
import random
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from oncebox import Inbox, Reject, Retention
from support.events import cloud_event
from support.services import namespaces

from .conftest import Command, query

pytestmark = pytest.mark.parametrize("database", ["sqlite"], indirect=True)

APP = """
import os
from oncebox import Inbox, Retention

inbox = Inbox("billing", os.environ["DATABASE"],
              retention=Retention(days=7, archive=os.environ["ARCHIVE"]))
"""
ACT = ("--why", "a question", "--by", "ada", "--yes")


@pytest.fixture
def place(folder: Path) -> Path:
    return folder / "archive"


@pytest.fixture
def environment(environment: dict[str, str], place: Path) -> dict[str, str]:
    return {**environment, "ARCHIVE": str(place)}


@pytest.fixture
def inbox(database: str, folder: Path, place: Path) -> Iterator[Inbox]:
    """The inbox of the application, in this process."""
    (folder / "billing.py").write_text(APP)
    retention = Retention(days=7, archive=str(place))
    with Inbox("billing", database, retention=retention) as inbox:

        @inbox.on("order")
        def handle(payload: str) -> None:
            if payload == "bad":
                raise Reject("no")

        inbox.migrate()
        yield inbox


@pytest.fixture
def aged(inbox: Inbox, database: str) -> None:
    """Three messages are older than the retention, and one is not."""
    noise = random.Random(1)
    data = [noise.randbytes(20_000).hex() for _ in range(3)]
    inbox.process([cloud_event("order", data[n], id=str(n + 1), key="k") for n in range(3)])
    for table, column in (("inbox", "received_at"), ("minute_counter", "minute")):
        query(database, f"UPDATE oncebox_{table} SET {column} = {column} - 8 * 86400000000")
    inbox.process([cloud_event("order", "", id="new")])


@pytest.fixture
def purged(aged: None, inbox: Inbox) -> None:
    assert inbox.purge.run().purged == 3


def ids(database: str) -> list[str]:
    return [id for (id,) in query(database, "SELECT message_id FROM oncebox_inbox ORDER BY 1")]


def files(place: Path) -> list[Path]:
    return sorted(path for path in place.rglob("*") if path.is_file())


@pytest.mark.usefixtures("purged")
def test_purged_messages_are_listed_checked_and_restored(
    oncebox: Command, database: str, place: Path
) -> None:
    assert ids(database) == ["new"]
    listed = oncebox("archive", "billing:inbox")
    assert listed.returncode == 0
    assert "received from" in listed.stdout
    assert ".jsonl.gz" in listed.stdout
    (manifest,) = map(json.loads, oncebox("archive", "billing:inbox", "--json").stdout.splitlines())
    assert (manifest["count"], manifest["consumer"]) == (3, "billing")
    assert "no archived messages" in oncebox("archive", "billing:inbox", "--since", "1h").stdout
    checked = oncebox("archive", "billing:inbox", "--check")
    assert (checked.returncode, checked.stdout) == (0, "1 of 1 files are intact\n")

    restore = ("archive", "billing:inbox", "--restore")
    unexplained = oncebox(*restore, "--yes", input="")
    assert unexplained.returncode == 2
    assert "--why" in unexplained.stderr
    refused = oncebox(*restore, "--why", "a question", input="n\n")
    assert refused.returncode == 1, "asked, and refused"
    assert "Restore up to 3 messages" in refused.stderr
    assert ids(database) == ["new"]
    done = oncebox(*restore, *ACT, "--keep", "2h", "--json")
    assert json.loads(done.stdout) == {
        "action": "restore",
        "dry_run": False,
        "matching": 3,
        "done": 3,
        "left": 0,
        "known": 0,
    }, done.stderr
    assert ids(database) == ["1", "2", "3", "new"]
    again = oncebox(*restore, *ACT)
    assert again.stdout.endswith("restored 0 messages, 3 were not purged\n")
    preview = oncebox("purge", "billing:inbox", "--dry-run")
    assert preview.stdout == "no messages can be purged now\n"
    held = json.loads(oncebox("purge", "billing:inbox", "--yes", "--why", "x", "--json").stdout)
    assert held["done"] == 0
    assert "messages were restored" in held["held_back_by"][0]
    acts = query(database, "SELECT DISTINCT action, why FROM oncebox_audit ORDER BY action")
    assert acts == [("purge", "older than the retention"), ("restore", "a question")]


@pytest.mark.slow
@pytest.mark.usefixtures("purged")
def test_a_damaged_archive_is_reported_by_check_and_refused_by_restore(
    oncebox: Command, database: str, place: Path
) -> None:
    lines, manifest = files(place)
    (lines.parent / "begun.jsonl.gz.part").touch()
    lines.write_bytes(lines.read_bytes()[:-7])
    checked = oncebox("archive", "billing:inbox", "--check")
    assert checked.returncode == 1
    assert f"{lines.name} is damaged" in checked.stdout
    assert "begun.jsonl.gz.part is incomplete" in checked.stdout
    assert checked.stdout.endswith("0 of 1 files are intact\n")
    found = oncebox("archive", "billing:inbox", "--check", "--json")
    assert found.returncode == 1
    assert (json.loads(found.stdout)["files"], len(json.loads(found.stdout)["damaged"])) == (1, 1)
    refused = oncebox("archive", "billing:inbox", "--restore", *ACT)
    assert refused.returncode == 1
    assert refused.stderr.strip().startswith("error: billing/")
    assert f"{lines.name} is damaged" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert ids(database) == ["new"]
    manifest.write_text("{")
    checked = oncebox("archive", "billing:inbox", "--check")
    assert checked.returncode == 1
    assert f"{manifest.name} is damaged" in checked.stdout


@pytest.mark.slow
@pytest.mark.usefixtures("inbox")
@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("archive", "--at", "elsewhere", "--restore", *ACT), 3, "no archived messages match"),
        (("archive", "--at", "elsewhere", "--check"), 3, ""),
        (("archive", "--at", "nowhere://x"), 2, "cannot use an archive at nowhere://"),
        (("archive", "--check", "--restore"), 2, "--check or --restore"),
        (("archive", "--restore", "--keep", "long"), 2, "write 90s, 15m, 2h or 7d"),
        (("erase", *ACT), 2, "give at least one filter: --key, --id, ..."),
        (("erase", "--key", "k", "--yes"), 2, "--why"),
    ],
)
def test_mistakes_are_answered_with_advice(
    oncebox: Command, arguments: tuple[str, ...], code: int, says: str
) -> None:
    done = oncebox(arguments[0], "billing:inbox", *arguments[1:], input="")
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert done.returncode == code


@pytest.mark.usefixtures("aged")
def test_payloads_are_erased_and_unfinished_messages_are_counted(
    oncebox: Command, database: str, inbox: Inbox
) -> None:
    erase = ("erase", "billing:inbox", "--key", "k")
    payloads = "SELECT count(*) FROM oncebox_inbox WHERE key = 'k' AND payload IS NOT NULL"
    preview = oncebox(*erase, "--dry-run")
    assert preview.returncode == 0
    assert preview.stdout.endswith("3 messages match and have content to erase\n")
    assert re.search(r"^\S+ \S+  done   order  2   k ", preview.stdout, re.MULTILINE), "an example"
    described = json.loads(oncebox(*erase, "--dry-run", "--json").stdout)
    assert described == {"action": "erase", "dry_run": True, "matching": 3}
    assert oncebox(*erase, "--why", "x", input="n\n").returncode == 1, "asked, and refused"
    assert query(database, payloads) == [(3,)]
    one = oncebox("erase", "billing:inbox", "--id", "1", *ACT)
    assert (one.returncode, one.stdout.splitlines()[-1]) == (0, "erased 1 message")
    inbox.process([cloud_event("order", "bad", id="rejected", key="k")])
    rest = oncebox(*erase, *ACT, "--json")
    assert rest.returncode == 5
    assert json.loads(rest.stdout) == {
        "action": "erase",
        "dry_run": False,
        "matching": 3,
        "done": 2,
        "left": 1,
    }
    assert query(database, payloads) == [(1,)]
    left = oncebox(*erase, *ACT)
    assert (left.returncode, left.stdout.splitlines()[-1]) == (5, "erased 0 messages")
    assert left.stderr.strip() == (
        "1 message left: unfinished, quarantined, in a replay or locked: let them end, discard "
        "them, or try again"
    )
    acts = "SELECT action, by_whom, message_id FROM oncebox_audit ORDER BY message_id"
    assert query(database, acts) == [("erase", "ada", id) for id in ("1", "2", "3")]


# -- a disk of its own ----------------------------------------------------------------------------


class Disk:
    """A disk that only commands under a prefix see."""

    def __init__(self, prefix: list[str]) -> None:
        self.prefix = prefix

    def run(self, *command: str) -> str:
        done = subprocess.run([*self.prefix, *command], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def files(self) -> list[str]:
        return self.run("find", "disk", "-type", "f").split()


@pytest.fixture
def disk(folder: Path) -> Iterator[Disk]:
    (folder / "disk").mkdir()
    with namespaces.disk(folder / "disk", "1024k") as prefix:
        yield Disk(prefix)


class TestOnADisk:
    @pytest.fixture
    def prefix(self, disk: Disk) -> list[str]:
        return disk.prefix

    @pytest.fixture
    def place(self, folder: Path) -> Path:
        return folder / "disk" / "archive"

    @pytest.mark.crash
    @pytest.mark.usefixtures("aged")
    @pytest.mark.parametrize("room", ["none", "little", "read-only"])
    def test_an_archive_without_disk_space_loses_nothing_and_is_written_later(
        self, oncebox: Command, database: str, disk: Disk, room: str
    ) -> None:
        kilobytes = {"none": 1024, "little": 1000}
        if room in kilobytes:
            fill = f"dd if=/dev/zero of=disk/ballast bs=1k count={kilobytes[room]} || true"
            disk.run("sh", "-c", fill)
        else:
            disk.run("mount", "-o", "remount,ro", "disk")
        refused = oncebox("purge", "billing:inbox", "--yes", "--why", "x")
        assert refused.returncode == 1
        told = refused.stderr.strip()
        assert told.startswith("error: the archive cannot be written (OSError: ")
        assert told.endswith("no message of this file was purged")
        assert "Traceback" not in refused.stderr
        assert ids(database) == ["1", "2", "3", "new"]
        assert [name for name in disk.files() if "ballast" not in name] == []
        if room in kilobytes:
            disk.run("rm", "disk/ballast")
        else:
            disk.run("mount", "-o", "remount,rw", "disk")
        done = oncebox("purge", "billing:inbox", "--yes", "--why", "x")
        assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "purged 3 messages")
        assert ids(database) == ["new"]
        lines, manifest = sorted(disk.files())
        assert json.loads(disk.run("cat", manifest))["size"] == int(
            disk.run("stat", "--format=%s", lines)
        )
