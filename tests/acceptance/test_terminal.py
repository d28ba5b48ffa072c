"""On a terminal and in a pipe, nothing that an operator copies is cut."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from oncebox import CloudEvents, Inbox, Reject
from support.events import cloud_event

from .conftest import Command

pytestmark = [
    pytest.mark.usefixtures("filled"),
    pytest.mark.parametrize("database", ["sqlite"], indirect=True),
]

ID = "0f2c9d4e-8a1b-4c3d-9e5f-7a6b5c4d3e2f"
KEY = "customer-of-the-northern-region-" + "7" * 20
TYPE = "order.confirmed.by.customer"
ERROR = "the account of this customer was closed last year, " * 3
RED = "\x1b[31m"


@pytest.fixture
def filled(ready: None, database: str) -> None:
    """A dead letter with a long id, key, type and error; and a short message that is done."""

    def handle(payload: dict[str, Any]) -> None:
        raise Reject(ERROR)

    with Inbox("billing", database, identity=CloudEvents()) as inbox:
        inbox.on(TYPE)(handle)
        inbox.on("order")(lambda payload: None)
        inbox.process([cloud_event(TYPE, {}, id=ID, key=KEY), cloud_event("order", id="short")])


@pytest.fixture
def terminal(folder: Path, environment: dict[str, str]) -> Callable[..., str]:
    """Run a command on a terminal with a number of columns; returns what the terminal gets."""

    def run(columns: int, *arguments: str, **variables: str) -> str:
        inherited = {k: v for k, v in environment.items() if k not in ("COLUMNS", "NO_COLOR")}
        reader, writer = pty.openpty()
        size = struct.pack("HHHH", 24, columns, 0, 0)
        fcntl.ioctl(writer, termios.TIOCSWINSZ, size)
        process = subprocess.Popen(
            [sys.executable, "-m", "oncebox", *arguments],
            cwd=folder, stdin=writer, stdout=writer, stderr=writer,
            env={**inherited, "TERM": "xterm-256color", **variables},
        )  # fmt: skip
        os.close(writer)
        printed = b""
        with suppress(OSError):  # the terminal has no other end any more
            while part := os.read(reader, 65536):
                printed += part
        os.close(reader)
        process.wait(timeout=60)
        return printed.decode().replace("\r\n", "\n")

    return run


def plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


@pytest.mark.parametrize("columns", [80, 140])
@pytest.mark.parametrize(
    "command", [("list",), ("tail",), ("dead-letters", "--list"), ("show", ID), ("retry", ID)]
)
def test_ids_keys_and_types_are_whole_on_a_terminal(
    terminal: Callable[..., str], columns: int, command: tuple[str, ...]
) -> None:
    name, *rest = command
    dry_run = ["--dry-run"] if name == "retry" else []
    printed = plain(terminal(columns, name, "billing:inbox", *rest, *dry_run))
    for whole in (ID, KEY, TYPE):
        assert whole in printed
    assert "\N{HORIZONTAL ELLIPSIS}" not in printed


def test_a_narrow_terminal_gets_a_list_of_values(terminal: Callable[..., str]) -> None:
    printed = plain(terminal(80, "dead-letters", "billing:inbox", "--list"))
    assert re.search(r"^number +1\nstate +dead\nreason +rejected\n", printed, re.MULTILINE), printed
    assert re.search(rf"^key +{KEY}$", printed, re.MULTILINE), printed
    table = plain(terminal(80, "list", "billing:inbox", "--type", "order"))
    assert re.match(r"received +state +type +id ", table), "what fits stays a table"


def test_only_the_error_is_wrapped_on_a_wider_terminal(terminal: Callable[..., str]) -> None:
    printed = plain(terminal(140, "dead-letters", "billing:inbox"))
    assert re.match(r"count +state +reason +type +last +fingerprint +error", printed), printed
    assert " ".join(ERROR.split()) in " ".join(re.sub(r".*Reject: ", "", printed).split())
    assert max(map(len, printed.splitlines())) <= 140


def test_a_pipe_gets_one_line_per_row_whatever_the_width(
    oncebox: Command, environment: dict[str, str]
) -> None:
    environment["COLUMNS"] = "80"
    header, line = oncebox("dead-letters", "billing:inbox", "--list").stdout.splitlines()
    assert header.split()[0] == "number"
    assert all(whole in line for whole in (ID, KEY, TYPE, ERROR.strip()))


def test_what_needs_attention_is_red_on_a_terminal_only(
    terminal: Callable[..., str], oncebox: Command, environment: dict[str, str]
) -> None:
    for command in (("list",), ("dead-letters",), ("status", "--check"), ("show", "missing")):
        name, *rest = command
        arguments = (name, "billing:inbox", *rest)
        assert RED in terminal(140, *arguments)
        assert "\x1b" not in re.sub(r"\x1b\[[01]m", "", terminal(140, *arguments, NO_COLOR="1"))
        environment.pop("NO_COLOR", None)
        done = oncebox(*arguments)
        assert "\x1b" not in done.stdout + done.stderr
