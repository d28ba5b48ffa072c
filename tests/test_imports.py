"""What is imported: starting is fast because modules are imported when they are used."""

from __future__ import annotations

import json
import subprocess
import sys

import oncebox
from oncebox.cli import PLACES, SECTIONS, main

SLOW = {"asyncio", "click", "email", "http", "inspect", "logging", "msgspec", "pytest", "rich"}
DRIVERS = {"aiosqlite", "asyncpg", "confluent_kafka", "django", "psycopg", "sqlalchemy", "sqlite3"}

FEW = 20
"""Modules of oncebox that a quick start may import; there are more than 100."""


def imported_by(code: str) -> set[str]:
    """The modules that a new process imports when it executes this code."""
    program = f"{code}\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_importing_oncebox_imports_no_library_and_few_modules() -> None:
    before = imported_by("")
    found = imported_by("import oncebox") - before
    assert not found & (SLOW | DRIVERS)
    assert {name for name in found if "oncebox" in name} == {"oncebox", "oncebox.errors"}


def test_an_inbox_imports_no_driver_and_no_command_line() -> None:
    found = imported_by("from oncebox import Inbox, Transaction, Worker")
    assert "oncebox.inbox.inbox" in found
    assert not found & {"click", "http.server", "pytest", "rich", "urllib.request"}
    assert not found & DRIVERS - {"sqlite3"}


def test_the_help_imports_no_command_and_no_table_printer() -> None:
    code = "from oncebox.cli import main\nmain(['--help'], standalone_mode=False)"
    found = imported_by(code)
    assert not found & {"asyncio", "http", "rich", "pytest", *DRIVERS}
    assert len([name for name in found if name.startswith("oncebox")]) <= FEW


def test_a_command_imports_no_other_command() -> None:
    code = "from oncebox.cli import main\nmain(['sql', '--help'], standalone_mode=False)"
    found = {name for name in imported_by(code) if name.startswith("oncebox.cli.")}
    assert "oncebox.cli.schema" in found
    assert not found & {"oncebox.cli.status", "oncebox.cli.demo.command", "oncebox.cli.replay"}


def test_the_help_has_the_first_sentence_of_each_command() -> None:
    sentences = {
        name: " ".join((command.help or "").split("\n\n")[0].split()).split(". ")[0].rstrip(".")
        for name, command in main.commands.items()
        if not command.hidden
    }
    complaint = "copy the first sentence of the help to SECTIONS in src/oncebox/cli/__init__.py"
    listed = {name: text for section in SECTIONS.values() for name, (_, text) in section.items()}
    assert {name: text.rstrip(".") for name, text in listed.items()} == sentences, complaint
    assert set(main.commands) == set(PLACES)


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    assert not hasattr(oncebox, "Outbox")
    assert set(oncebox.__all__) <= set(dir(oncebox))
