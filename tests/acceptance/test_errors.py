"""Errors of the command line say what happened, why, and what to do; never a traceback."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from .conftest import Command, event, query, write_events

pytestmark = pytest.mark.parametrize("database", ["sqlite"], indirect=True)

MODELS = """
from django.db import models
from oncebox import Inbox

class Order(models.Model):
    class Meta:
        app_label = "shop"

inbox = Inbox("shop", "sqlite:///shop.db")
"""


def last_line(done: object) -> str:
    """The error; nothing else but what Click prints before it."""
    text = str(getattr(done, "stderr"))  # noqa: B009
    assert "Traceback" not in text
    return text.splitlines()[-1]


def test_a_file_that_is_not_a_database_is_named(
    oncebox: Command, folder: Path, environment: dict[str, str]
) -> None:
    (folder / "notes.txt").write_text("These are notes. " * 100)
    environment["DATABASE"] = "sqlite:///notes.txt"
    done = oncebox("migrate", "billing:inbox")
    assert done.returncode != 0
    assert "file is not a SQLite database: check the path in the URL" in last_line(done)


def test_a_database_of_an_unknown_kind_is_refused(
    oncebox: Command, environment: dict[str, str]
) -> None:
    environment["DATABASE"] = "mysql://root@localhost/shop"
    done = oncebox("migrate", "billing:inbox")
    assert done.returncode == 2
    assert "mysql" in last_line(done)
    assert "postgresql://" in last_line(done)


def test_a_file_instead_of_a_module_is_explained(oncebox: Command) -> None:
    done = oncebox("status", "billing.py:inbox")
    assert done.returncode == 2
    assert "'billing.py:inbox' names a file: write the module, as in billing:inbox" in done.stderr


def test_an_unknown_database_is_an_error_in_one_line(
    oncebox: Command, environment: dict[str, str], postgres_url: str
) -> None:
    environment["DATABASE"] = postgres_url.rpartition("/")[0] + "/nowhere"
    done = oncebox("migrate", "billing:inbox")
    assert done.returncode != 0
    assert len(done.stderr.splitlines()) == 1
    assert '"nowhere" does not exist' in done.stderr
    assert "ack" not in done.stderr


def test_a_role_without_privileges_is_pointed_to_the_grants(
    oncebox: Command, environment: dict[str, str], postgres_url: str
) -> None:
    environment["DATABASE"] = postgres_url
    assert oncebox("migrate", "billing:inbox").returncode == 0
    query(
        postgres_url,
        "DO $$ BEGIN CREATE ROLE reader LOGIN; EXCEPTION WHEN duplicate_object THEN END $$",
    )
    environment["DATABASE"] = postgres_url.replace("postgres@", "reader@")
    done = oncebox("status", "billing:inbox")
    assert done.returncode != 0
    assert "permission denied" in last_line(done)
    assert "`oncebox sql APP --grants ROLE`" in last_line(done)
    environment["DATABASE"] = postgres_url
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(oncebox("sql", "billing:inbox", "--grants", "reader").stdout.encode())
    environment["DATABASE"] = postgres_url.replace("postgres@", "reader@")
    assert oncebox("status", "billing:inbox").returncode == 0


def test_django_is_set_up_where_its_settings_are_named(
    oncebox: Command, folder: Path, environment: dict[str, str]
) -> None:
    (folder / "shop").mkdir()
    (folder / "shop" / "__init__.py").touch()
    (folder / "shop" / "models.py").write_text(MODELS)
    (folder / "settings.py").write_text("INSTALLED_APPS = ['shop']\n")
    environment["DJANGO_SETTINGS_MODULE"] = "settings"
    environment["PYTHONPATH"] = os.fspath(folder)
    done = oncebox("migrate", "shop.models:inbox")
    assert done.returncode == 0, done.stderr


TYPES = ("--type", "none", "--why", "x", "--yes", "--json")


@pytest.mark.usefixtures("ready")
@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("status",), 2, "APP is missing: write module:attribute, such as billing:inbox"),
        (("run", "billing:inbox", "--workers", "2"), 2, "did you mean --processes?"),
        (("list", "billing:inbox", "--state", "failed"), 2, "failed messages are pending"),
        (("status", "billing:write"), 2, "billing:write is a function, not an Inbox"),
        (
            ("run", "billing:inbox", "--from", "file://events.jsonl"),
            2,
            "write the absolute path: file:///",
        ),
    ],
)
def test_a_mistake_is_explained(
    oncebox: Command, arguments: tuple[str, ...], code: int, says: str
) -> None:
    done = oncebox(*arguments)
    assert says in done.stderr
    assert done.returncode == code


def test_only_migrate_creates_a_database_file(
    oncebox: Command, folder: Path, environment: dict[str, str]
) -> None:
    environment["DATABASE"] = "sqlite:///pay.db"
    done = oncebox("status", "billing:inbox")
    assert done.returncode == 1
    assert (
        f"{folder}/pay.db does not exist (the current folder is {folder}): run oncebox where it "
        "is, or migrate"
    ) in done.stderr
    assert list(folder.glob("pay.db*")) == []
    assert oncebox("migrate", "billing:inbox").returncode == 0


def test_a_database_file_without_tables_is_named(
    oncebox: Command, folder: Path, environment: dict[str, str]
) -> None:
    environment["DATABASE"] = "sqlite:///other.db"
    query(f"sqlite:///{folder}/other.db", "CREATE TABLE notes (id text)")
    done = oncebox("status", "billing:inbox")
    assert f"are missing in {folder}/other.db: call inbox.migrate()" in done.stderr
    assert "jango" not in done.stderr


def test_a_server_that_does_not_run_is_one_line(
    oncebox: Command, environment: dict[str, str]
) -> None:
    environment["DATABASE"] = "postgresql://postgres@127.0.0.1:1/nowhere"
    done = oncebox("status", "billing:inbox")
    assert done.returncode == 1
    assert last_line(done).endswith(": check the URL, and that the server runs")
    assert "ack" not in done.stderr


@pytest.mark.usefixtures("ready")
def test_an_id_or_a_key_with_a_colon_is_not_an_app(
    oncebox: Command, folder: Path, environment: dict[str, str]
) -> None:
    environment["ONCEBOX_APP"] = "billing:inbox"
    write_events(folder / "events", "order:abc")
    assert oncebox("run", "--from", f"file://{folder}/events").returncode == 0
    assert "order:abc" in oncebox("show", "order:abc").stdout
    assert "order:abc" in oncebox("show", "billing:inbox", "order:abc").stdout
    assert oncebox("list", "--key", "tenant:acme").returncode == 0
    assert oncebox("list", "--key", "billing:inbox").returncode == 0


@pytest.mark.usefixtures("ready")
def test_an_action_without_a_terminal_asks_for_yes(oncebox: Command, folder: Path) -> None:
    write_events(folder / "events", "done-1", "reject")
    assert oncebox("run", "billing:inbox", "--from", f"file://{folder}/events").returncode == 0
    done = oncebox("retry", "billing:inbox", "reject", "--why", "x", input="")
    assert done.returncode == 2
    assert "this is not a terminal: pass --yes" in done.stderr
    done = oncebox("retry", "billing:inbox", "done-1", "--why", "x", "--yes")
    assert done.returncode == 3
    assert "message done-1 is done: `oncebox replay` runs it again" in done.stderr


@pytest.mark.usefixtures("ready")
def test_a_delivery_without_an_id_cannot_be_retried(oncebox: Command, folder: Path) -> None:
    (folder / "events").write_text("{}\n")
    assert oncebox("run", "billing:inbox", "--from", f"file://{folder}/events").returncode == 0
    done = oncebox("retry", "billing:inbox", "--all", "--why", "x", "--yes")
    assert done.returncode == 5
    assert "1 dead letter left: still without an id: fix identity= or discard it" in done.stderr


@pytest.mark.usefixtures("ready")
def test_another_payload_with_the_same_id_says_so(oncebox: Command, folder: Path) -> None:
    lines = [json.dumps({**event("1"), "data": {"x": x}}) + "\n" for x in (1, 2)]
    (folder / "events").write_text("".join(lines))
    assert oncebox("run", "billing:inbox", "--from", f"file://{folder}/events").returncode == 0
    group = json.loads(oncebox("dead-letters", "billing:inbox", "--json").stdout)
    assert group["error"] == "another payload than the message with this id"
    assert group["fingerprint"]


@pytest.mark.usefixtures("ready")
@pytest.mark.parametrize("command", [("retry",), ("discard",), ("replay", "again")])
def test_an_action_that_matches_nothing_prints_zeros_as_json(
    oncebox: Command, command: tuple[str, ...]
) -> None:
    name, *rest = command
    done = oncebox(name, "billing:inbox", *rest, *TYPES)
    assert done.returncode == 3
    assert json.loads(done.stdout)["matching"] == 0


@pytest.mark.usefixtures("ready")
def test_messages_that_are_left_pending_name_the_command_that_runs_them(
    oncebox: Command, folder: Path
) -> None:
    app = folder / "billing.py"
    app.write_text(app.read_text().replace("milliseconds=50", "minutes=10"))
    write_events(folder / "events", "fail")
    done = oncebox("run", "billing:inbox", "--from", f"file://{folder}/events")
    assert last_line(done).endswith("; 1 pending: run `oncebox worker APP` or `oncebox drain APP`")


@pytest.mark.usefixtures("ready")
def test_an_overwritten_file_is_read_from_its_beginning(oncebox: Command, folder: Path) -> None:
    events = folder / "events"
    run = ("run", "billing:inbox", "--from", f"file://{events}")
    write_events(events, "1", "2")
    assert oncebox(*run).returncode == 0
    events.unlink()
    write_events(events, "2", "3")
    done = oncebox(*run)
    assert "is not the file that was read up to byte" in done.stderr
    assert last_line(done).startswith("2 received: 1 done, 1 duplicates absorbed")
    assert last_line(oncebox(*run)).startswith("0 received")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("retry", "1"), '--why "..." is required'),
        (("retry", "1", "--why", "x"), "this is not a terminal: pass --yes"),
    ],
)
def test_a_closed_standard_input_is_not_a_terminal(
    oncebox: Command,
    folder: Path,
    environment: dict[str, str],
    arguments: tuple[str, ...],
    says: str,
) -> None:
    assert oncebox("migrate", "billing:inbox").returncode == 0
    (folder / "events").write_text("no JSON\n")
    assert oncebox("run", "billing:inbox", "--from", f"file://{folder}/events").returncode == 0
    command = [sys.executable, "-m", "oncebox", arguments[0], "billing:inbox", *arguments[1:]]
    closed = subprocess.run(
        ["sh", "-c", f"{shlex.join(command)} <&-"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert closed.returncode == 2
    assert says in closed.stderr
    assert "Traceback" not in closed.stderr
