"""The commands of operators."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from oncebox import CloudEvents, Delivery, Inbox
from support.events import cloud_event
from support.services import wait_until

from .conftest import Command, event, query, write_events

pytestmark = pytest.mark.usefixtures("ready")


@pytest.fixture
def consumed(ready: None, oncebox: Command, folder: Path) -> None:
    """A file went through: two good ones, a duplicate, one rejected, one of an unknown type."""
    events = folder / "events.jsonl"
    write_events(events, "1", "2", "1", "reject")
    with events.open("a") as file:
        file.write('{"specversion": "1.0", "id": "u", "source": "shop", "type": "?", "data": {}}\n')
    done = oncebox("run", "billing:inbox", "--from", f"file://{events}")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("database", ["sqlite", "postgres"], indirect=True)
@pytest.mark.usefixtures("consumed")
def test_a_file_goes_through_and_everything_about_it_can_be_seen(
    oncebox: Command, database: str
) -> None:
    assert query(database, "SELECT id FROM effects ORDER BY id") == [("1",), ("2",)]
    status = json.loads(oncebox("status", "billing:inbox", "--json").stdout)
    assert {group["reason"]: group["count"] for group in status["dead"]} == {
        "rejected": 1,
        "unknown_type": 1,
    }
    assert status["rates"]["60"]["duplicate"] == 1
    assert "duplicates absorbed" in oncebox("status", "billing:inbox").stdout
    listed = oncebox("list", "billing:inbox", "--state", "done", "--json").stdout.splitlines()
    assert [json.loads(line)["message_id"] for line in listed] == ["1", "2"]
    shown = oncebox("show", "billing:inbox", "reject").stdout
    assert "Reject: no" in shown
    assert "dead (rejected)" in shown
    assert oncebox("show", "billing:inbox", "missing").returncode == 3
    tail = oncebox("tail", "billing:inbox", "-n", "1").stdout
    assert "unknown_type" in tail


@pytest.mark.usefixtures("consumed")
def test_dead_letters_are_grouped_retried_and_discarded(oncebox: Command, database: str) -> None:
    groups = oncebox("dead-letters", "billing:inbox", "--json").stdout.splitlines()
    assert sorted(json.loads(group)["reason"] for group in groups) == ["rejected", "unknown_type"]
    act = ("billing:inbox", "--reason", "rejected", "--why", "a try", "--by", "ada")
    unexplained = ("retry", "billing:inbox", "--reason", "rejected")
    assert oncebox(*unexplained, "--dry-run").returncode == 0
    refused = oncebox(*unexplained, "--yes", input="")
    assert refused.returncode == 2
    assert "--why" in refused.stderr
    letter = oncebox("show", "billing:inbox", "reject").stdout
    assert re.search(r"^dead letter +\d+$", letter, re.MULTILINE), letter
    assert re.search(r"^error +Reject", letter, re.MULTILINE), letter
    preview = oncebox("retry", *act, "--dry-run")
    assert preview.returncode == 0
    assert "reject" in preview.stdout
    assert query(database, "SELECT count(*) FROM oncebox_pending") == [(0,)]
    assert oncebox("retry", *act, input="n\n").returncode == 1, "asked, and refused"
    done = oncebox("retry", *act, "--yes", "--json")
    assert json.loads(done.stdout) == {
        "action": "retry",
        "dry_run": False,
        "matching": 1,
        "done": 1,
        "left": 0,
    }
    assert query(database, "SELECT count(*) FROM oncebox_pending") == [(1,)]
    assert oncebox("discard", "billing:inbox", "--all", "--why", "noise", "-y").returncode == 0
    assert query(database, "SELECT action, by_whom, why FROM oncebox_audit ORDER BY id")[0] == (
        "retry",
        "ada",
        "a try",
    )
    assert oncebox("discard", "billing:inbox", "--all", "--why", "x", "-y").returncode == 3


def test_a_crashed_worker_is_an_alarm_until_another_one_takes_over(
    oncebox: Command, start: Callable[..., Any], database: str
) -> None:
    worker = start("run", "billing:inbox", "--from", "-", stdin=subprocess.PIPE)
    drainers = "SELECT name FROM oncebox_worker"
    wait_until(lambda: bool(query(database, drainers)), "no worker signs on")
    ((name,),) = query(database, drainers)
    # A stopped supervisor cannot start another worker. A killed one would let this worker sign off.
    worker.send_signal(signal.SIGSTOP)
    os.kill(int(name.split(":")[1]), signal.SIGKILL)
    worker.kill()
    worker.communicate(timeout=60)
    check = ("status", "billing:inbox", "--check")
    wait_until(lambda: oncebox(*check).returncode == 4, "it is not overdue")
    overdue = oncebox(*check)
    assert re.search(r"s ago OVERDUE$", overdue.stdout, re.MULTILINE)
    failed = (
        rf"^check failed: worker {name} crashed or hangs \(last heartbeat .+ ago\), and no live"
    )
    assert re.search(failed, overdue.stderr, re.MULTILINE), overdue.stderr
    assert oncebox("drain", "billing:inbox").returncode == 0
    shown = oncebox(*check)
    assert shown.returncode == 0, shown.stdout
    assert re.search(r"s ago, crashed, work taken over$", shown.stdout, re.MULTILINE)
    (seen,) = json.loads(oncebox(*check, "--json").stdout)["workers"]
    assert (seen["is_crashed"], seen["is_overdue"]) == (True, False)


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_messages_that_are_ready_without_a_worker_are_an_alarm(
    oncebox: Command, folder: Path, database: str
) -> None:
    with Inbox("billing", database, identity=CloudEvents()) as inbox:
        inbox.on("order")(lambda message, tx: None)
        inbox.receive([Delivery(json.dumps(event(id)).encode()) for id in ("1", "2")])
    check = ("status", "billing:inbox", "--check")
    assert oncebox(*check).returncode == 0, "they may still be taken"
    query(database, "UPDATE oncebox_inbox SET received_at = received_at - 300000000")
    done = oncebox(*check)
    assert done.returncode == 4
    assert (
        "2 messages are ready for 5 min and no worker runs: start one with `oncebox worker APP`"
    ) in done.stderr


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_a_worker_without_heartbeats_is_marked(
    oncebox: Command, start: Callable[..., Any], database: str
) -> None:
    worker = start("run", "billing:inbox", "--from", "-", stdin=subprocess.PIPE)
    names = "SELECT name FROM oncebox_worker"
    wait_until(lambda: bool(query(database, names)), "no worker signs on")
    worker.send_signal(signal.SIGSTOP)
    os.kill(int(query(database, names)[0][0].split(":")[1]), signal.SIGKILL)
    worker.kill()
    worker.communicate(timeout=60)
    late = "heartbeat_at = heartbeat_at - 180000000, until = until + 60000000"
    query(database, f"UPDATE oncebox_worker SET {late}")
    shown = oncebox("status", "billing:inbox").stdout
    assert re.search(r"no heartbeat for 3 min$", shown, re.MULTILINE), shown


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_a_message_says_what_it_waits_for(oncebox: Command, folder: Path) -> None:
    events = [{**event(id), "partitionkey": "k"} for id in ("reject-1", "after")]
    (folder / "events").write_text("".join(json.dumps(e) + "\n" for e in events))
    oncebox("run", "billing:inbox", "--from", f"file://{folder}/events")
    shown = oncebox("show", "billing:inbox", "after").stdout
    assert re.search(r"^waits +behind dead letter 1 of its key$", shown, re.MULTILINE), shown


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_what_is_old_is_forgotten(oncebox: Command, database: str, folder: Path) -> None:
    purge = ("purge", "billing:inbox")
    write_events(folder / "one", "old")
    oncebox("run", "billing:inbox", "--from", f"file://{folder}/one")
    for table, column in (("inbox", "received_at"), ("minute_counter", "minute")):
        query(database, f"UPDATE oncebox_{table} SET {column} = {column} - 8 * 86400000000")
    none = "no messages are older than the retention, counted from the last arrival\n"
    assert oncebox(*purge, "--dry-run").stdout == none, "nothing has come since"
    write_events(folder / "two", "new")
    oncebox("run", "billing:inbox", "--from", f"file://{folder}/two")
    assert json.loads(oncebox(*purge, "--dry-run", "--json").stdout)["matching"] == 1
    assert oncebox(*purge, "--why", "x", input="n\n").returncode == 1, "asked, and refused"
    assert query(database, "SELECT count(*) FROM oncebox_inbox") == [(2,)]
    assert json.loads(oncebox(*purge, "--why", "x", "--yes", "--json").stdout)["done"] == 1
    assert query(database, "SELECT message_id FROM oncebox_inbox") == [("new",)]


ORDERS = ("--type", "order", "--why", "a bug", "--by", "ada", "--yes")


@pytest.fixture
def past(ready: None, database: str) -> None:
    """Two messages were handled."""
    with Inbox("billing", database) as inbox:
        inbox.on("order")(lambda payload: None)
        inbox.process([cloud_event("order", id=id) for id in ("1", "2")])


@pytest.mark.usefixtures("consumed")
def test_messages_of_the_past_are_replayed(oncebox: Command, database: str) -> None:
    preview = oncebox("replay", "billing:inbox", "--type", "order", "--dry-run")
    assert preview.returncode == 0
    assert "2 messages would run again" in preview.stdout
    assert "1 more match but are in another state" in preview.stdout
    begun = oncebox("replay", "billing:inbox", "again", *ORDERS, "--no-wait", "--json")
    assert begun.returncode == 0, begun.stderr
    replay = json.loads(begun.stdout)
    assert (replay["name"], replay["state"], replay["total"]) == ("again", "running", 2)
    assert query(database, "SELECT count(*) FROM effects") == [(2,)]
    assert oncebox("drain", "billing:inbox").returncode == 0
    assert query(database, "SELECT id FROM effects ORDER BY id") == [("1",), ("1",), ("2",), ("2",)]
    shown = oncebox("replay", "billing:inbox", "again").stdout
    assert re.search(r"^again +done +2 +2 +0 +0 +0 +0 +0 ", shown, re.MULTILINE), shown
    assert '{"type":"order"}; by ada: a bug' in shown
    assert "attempt 1 of replay 1 done" in oncebox("show", "billing:inbox", "--id", "1").stdout


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
@pytest.mark.usefixtures("past")
def test_a_replay_is_listed_paced_and_cancelled(oncebox: Command, database: str) -> None:
    replay = ("replay", "billing:inbox")
    assert "no replays" in oncebox(*replay).stdout
    odd = ("--by", "[red]eve[/red]\x1b[31m")
    begun = oncebox(*replay, "one", *ORDERS, *odd, "--no-wait", "--pace", "0.01")
    assert r"by [red]eve[/red]\x1b[31m: a bug" in begun.stdout, "it does not steer a terminal"
    oncebox(*replay, "two", *ORDERS, "--id", "1", "--since", "1h", "--no-wait")
    assert oncebox("drain", "billing:inbox").returncode == 0
    paced = oncebox(*replay, "one", "--pace", "0.02", "--why", "faster", "--json")
    assert json.loads(paced.stdout)["pace"] == 0.02
    cancel = (*replay, "one", "--cancel", "--why", "no bug")
    assert oncebox(*cancel, "--dry-run").returncode == 2, "it is about new replays"
    assert oncebox(*cancel, input="n\n").returncode == 1, "asked, and refused"
    cancelled = oncebox(*cancel, "--yes").stdout
    assert re.search(r"^one +cancelled +1 +2 +0 +0 +0 +0 +1 ", cancelled, re.MULTILINE), cancelled
    listed = [json.loads(line) for line in oncebox(*replay, "--json").stdout.splitlines()]
    assert [(one["name"], one["state"], one["done"], one["cancelled"]) for one in listed] == [
        ("two", "done", 1, 0),
        ("one", "cancelled", 1, 1),
    ]
    assert query(database, "SELECT action, why FROM oncebox_audit ORDER BY id") == [
        ("replay", "a bug"),
        ("replay", "a bug"),
        ("pace", "faster"),
        ("cancel", "no bug"),
    ]
    assert len(query(database, "SELECT id FROM effects")) == 2


@pytest.mark.slow
@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
@pytest.mark.usefixtures("past")
def test_a_replay_is_watched_until_it_is_over(
    oncebox: Command, start: Callable[..., Any], database: str
) -> None:
    watching = start("replay", "billing:inbox", "again", *ORDERS, "--json")
    assert "no worker is running" in watching.stderr.readline()
    leaving = start("replay", "billing:inbox", "other", *ORDERS, "--json")
    assert "no worker is running" in leaving.stderr.readline()
    leaving.send_signal(signal.SIGINT)
    out, err = leaving.communicate(timeout=60)
    assert json.loads(out)["state"] == "running"
    assert "the replay continues; show it: oncebox replay APP other, stop it: " in err
    assert oncebox("drain", "billing:inbox").returncode == 0
    out, err = watching.communicate(timeout=60)
    assert watching.returncode == 0, err
    assert (json.loads(out)["state"], json.loads(out)["done"]) == ("done", 2)
    assert len(query(database, "SELECT id FROM effects")) == 4


@pytest.mark.slow
@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
@pytest.mark.usefixtures("past")
def test_mistakes_of_replays_are_met_with_a_remedy(oncebox: Command, database: str) -> None:
    for arguments, code, says in (
        (("x", "--type", "nothing"), 3, "0 messages would run again"),
        (("--type", "order"), 2, "name the replay"),
        (("x", "--type", "order", "--yes"), 2, "it is recorded in the audit log"),
        (("x", "--type", "order", "--why", "x"), 1, "Run 2 messages again?"),
        (("x", "--pace", "0", "--why", "x"), 2, "pace must be a number of messages per second"),
        (("x", "--since", "soon"), 2, "write 2026-07-14, 2026-07-14T09:30 or"),
        (("missing",), 3, "there is no replay 'missing' in this inbox"),
    ):
        done = oncebox("replay", "billing:inbox", *arguments, input="n\n")
        assert says in done.stdout + done.stderr, arguments
        assert done.returncode == code, arguments
        assert "Traceback" not in done.stderr
    assert query(database, "SELECT count(*) FROM oncebox_replay") == [(0,)]


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_a_module_that_cannot_be_imported_is_one_line(oncebox: Command, folder: Path) -> None:
    (folder / "billing.py").write_text("import os\nos.environ['NO_SUCH_VARIABLE']\n")
    said = oncebox("status", "billing:inbox")
    assert said.returncode == 2
    assert "KeyError: 'NO_SUCH_VARIABLE'" in said.stderr
    assert "billing.py, line 2" in said.stderr
    assert "Traceback" not in said.stderr


def test_lines_from_standard_input_go_through(oncebox: Command, database: str) -> None:
    lines = "".join(
        json.dumps({"specversion": "1.0", "id": id, "source": "s", "type": "order", "data": {}})
        + "\n"
        for id in ("1", "2")
    )
    done = oncebox("run", "billing:inbox", "--from", "-", input=lines)
    assert done.returncode == 0, done.stderr
    assert query(database, "SELECT id FROM effects ORDER BY id") == [("1",), ("2",)]


def test_the_sql_can_be_reviewed(oncebox: Command) -> None:
    printed = oncebox("sql", "billing:inbox").stdout
    assert 'CREATE TABLE "oncebox_inbox"' in printed
    assert printed == oncebox("migrate", "billing:inbox", "--dry-run").stdout
    assert "up to date" in oncebox("migrate", "billing:inbox").stdout


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("rnu",), 2, "Did you mean 'run'?"),
        (("status", "billing"), 2, "module:attribute"),
        (("status", "bling:inbox"), 2, "there is no module 'bling' here"),
        (("status", "billing:box"), 2, "it has inbox"),
        (("run", "billing:inbox", "--from", "flie:///x"), 2, "did you mean 'file'?"),
        (("run", "billing:inbox", "--from", "-", "--processes", "2"), 2, "one process only"),
        (("retry", "billing:inbox", "--why", "x"), 2, "give numbers or ids, filters, or --all"),
        (
            ("list", "billing:inbox", "--since", "soon"),
            2,
            "write 2026-07-14, 2026-07-14T09:30 or",
        ),
        (("status",), 2, "APP"),
    ],
)
def test_mistakes_are_met_with_a_remedy(
    oncebox: Command, arguments: tuple[str, ...], code: int, says: str
) -> None:
    done = oncebox(*arguments)
    assert says in done.stderr
    assert done.returncode == code


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_settings_come_from_pyproject_and_the_environment(
    oncebox: Command, folder: Path, environment: dict[str, str]
) -> None:
    (folder / "pyproject.toml").write_text('[tool.oncebox]\napp = "billing:inbox"\nlimit = 1\n')
    write_events(folder / "events", "1", "2")
    environment["ONCEBOX_FROM"] = f"file://{folder}/events"
    assert oncebox("run").returncode == 0
    assert len(oncebox("list", "--json").stdout.splitlines()) == 1
    assert "state" in oncebox("show", "1").stdout, "an argument that does not name an APP"
    del environment["ONCEBOX_FROM"]
    settings = '[tool.oncebox]\napp = "billing:inbox"\njson = true\n'
    (folder / "pyproject.toml").write_text(f'{settings}from = "file://{folder}/events"\n')
    assert oncebox("run").returncode == 0
    assert json.loads(oncebox("status").stdout)["consumer"] == "billing"


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    ("settings", "arguments", "says"),
    [
        ("process = 2", ("status",), "setting 'process' in {}, did you mean 'processes'?"),
        ("batch = 'many'", ("status",), "'batch' in {} must be a whole number, got 'many'"),
        ("limit = 0", ("list", "billing:inbox"), "Invalid value for 'limit' in {}: 0 is not in"),
        ("from = 'flie:///'", ("run", "billing:inbox"), "pyproject.toml has settings: from"),
        ("= 3", ("status",), "pyproject.toml cannot be read: "),
    ],
)
def test_mistakes_in_the_settings_are_met_with_a_remedy(
    oncebox: Command, folder: Path, settings: str, arguments: tuple[str, ...], says: str
) -> None:
    file = folder / "pyproject.toml"
    file.write_text(f"[tool.oncebox]\n{settings}\n")
    done = oncebox(*arguments)
    assert says.format(f"[tool.oncebox] of {file}") in done.stderr
    assert "Traceback" not in done.stderr
    assert done.returncode == 2


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_wrong_settings_are_of_no_concern_where_they_are_not_asked(
    oncebox: Command, folder: Path
) -> None:
    (folder / "pyproject.toml").write_text("[tool.oncebox]\nlimit = 0\nlog_level = 'INFO'\n")
    assert oncebox("list", "billing:inbox", "--limit", "3").returncode == 0
    assert oncebox("status", "billing:inbox").returncode == 0


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_missing_tables_name_the_command_that_makes_them(
    oncebox: Command, environment: dict[str, str], tmp_path: Path
) -> None:
    environment["DATABASE"] = f"sqlite:///{tmp_path}/other.db"
    done = oncebox("status", "billing:inbox")
    assert "if the database is new: oncebox migrate billing:inbox" in done.stderr
    assert done.returncode == 1
    (tmp_path / "other.db").touch()
    assert "try: oncebox migrate billing:inbox" in oncebox("status", "billing:inbox").stderr


NUMBERED = """
import os
from oncebox import CloudEvents, Inbox, Message, Transaction

inbox = Inbox("billing", os.environ["DATABASE"], identity=CloudEvents(sequence="number"))

@inbox.on("order")
def write(message: Message, tx: Transaction) -> None:
    tx.execute("insert into effects (id) values (:id)", id=message.id)
"""


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_numbers_that_are_missing_are_shown_and_skipped(
    oncebox: Command, database: str, folder: Path
) -> None:
    (folder / "numbered.py").write_text(NUMBERED)
    events = [{**event(f"e{n}"), "partitionkey": "k", "number": n} for n in (4, 2, 7, 1)]
    with Inbox("billing", database, identity=CloudEvents(sequence="number")) as inbox:
        inbox.on("order")(lambda payload: None)
        inbox.receive([Delivery(json.dumps(e).encode()) for e in events])
    gaps = ("gaps", "numbered:inbox")
    shown = oncebox(*gaps).stdout
    assert re.search(r"^k +number 3 +2 messages +\d+ s ago$", shown, re.MULTILINE), shown
    status = oncebox("status", "numbered:inbox").stdout
    assert re.search(
        r"^gaps +2 messages of 1 key wait for missing sequence numbers, oldest ",
        status,
        re.MULTILINE,
    ), status
    message = oncebox("show", "numbered:inbox", "e7").stdout
    assert re.search(r"^state +awaiting_sequence$", message, re.MULTILINE), message
    waits = r"^waits +for sequence number 3 of its key; its own is 7$"
    assert re.search(waits, message, re.MULTILINE), message

    skip = (*gaps, "--key", "k", "--skip")
    unnamed = oncebox(*gaps, "--skip", "--why", "lost", "--yes")
    assert (unnamed.returncode, "name the key" in unnamed.stderr) == (2, True)
    unexplained = oncebox(*skip, "--yes")
    assert (unexplained.returncode, "--why" in unexplained.stderr) == (2, True)
    act = (*skip, "--why", "lost", "--by", "ada")
    assert oncebox(*act, input="n\n").returncode == 1, "asked, and refused"
    assert query(database, "SELECT count(*) FROM oncebox_audit") == [(0,)]
    done = oncebox(*act, "--yes")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "skipped 1 gap")
    (line,) = oncebox(*gaps, "--json").stdout.splitlines()
    found = json.loads(line)
    assert (found["key"], found["next"], found["lowest"], found["waiting"]) == ("k", 5, 7, 1)
    done = oncebox(*act, "--yes", "--json")
    assert (json.loads(done.stdout)["action"], json.loads(done.stdout)["done"]) == ("skip", 1)
    assert query(
        database, "SELECT action, by_whom, why, reason FROM oncebox_audit ORDER BY id"
    ) == [
        ("skip", "ada", "lost", "key 'k': number 3"),
        ("skip", "ada", "lost", "key 'k': numbers 5 to 6"),
    ]
    assert oncebox("drain", "numbered:inbox").stdout == "4 done\n"
    assert query(database, "SELECT id FROM effects") == [("e1",), ("e2",), ("e4",), ("e7",)]
    again = oncebox(*act, "--yes")
    assert (again.returncode, again.stdout) == (3, "no sequence numbers are missing\n")
