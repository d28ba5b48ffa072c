"""A folder with an application in it, as users have one; and the command, as they call it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.command_server import TERMINAL, CommandServer

APP = """
import os, sys
from datetime import timedelta
from oncebox import Inbox, Message, Reject, Retry, Transaction

inbox = Inbox("billing", os.environ["DATABASE"], transaction_timeout=timedelta(seconds=1),
              retry=Retry(max_attempts=2, initial_delay=timedelta(milliseconds=50)))

@inbox.on("order")
def write(message: Message, tx: Transaction) -> None:
    tx.execute("insert into effects (id) values (:id)", id=message.id)
    if "reject" in message.id:
        raise Reject("no")
    if "fail" in message.id:
        raise ValueError("not yet")
    if "kill" in message.id:
        os.abort()
"""

Command = Callable[..., "subprocess.CompletedProcess[str]"]


def event(id: str, type: str = "order") -> dict[str, Any]:
    return {"specversion": "1.0", "id": id, "source": "shop", "type": type, "data": {}}


def write_events(path: Path, *ids: str) -> None:
    with path.open("a") as file:
        file.writelines(json.dumps(event(id)) + "\n" for id in ids)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.slow)])
def database(request: pytest.FixtureRequest) -> str:
    """Commands do the same on every database: one is enough for most of `make test`."""
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "app"
    made.mkdir()
    (made / "billing.py").write_text(APP)
    return made


@pytest.fixture
def environment(database: str) -> dict[str, str]:
    return {**os.environ, **TERMINAL, "DATABASE": database}


@pytest.fixture
def prefix() -> list[str]:
    """The command under which the command runs."""
    return []


@pytest.fixture
def start(folder: Path, environment: dict[str, str], prefix: list[str]) -> Callable[..., Any]:
    """Start the command; the test that starts it ends it."""

    def start(*arguments: str, **options: Any) -> subprocess.Popen[str]:
        command = [*prefix, sys.executable, "-m", "oncebox", *arguments]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen(command, cwd=folder, env=environment, **{**pipes, **options})

    return start


@pytest.fixture(scope="session")
def command_server() -> Iterator[CommandServer]:
    server = CommandServer()
    yield server
    server.close()


@pytest.fixture
def oncebox(
    start: Callable[..., Any],
    folder: Path,
    environment: dict[str, str],
    prefix: list[str],
    request: pytest.FixtureRequest,
) -> Command:
    """Run the command to its end: in a fork that has it imported, unless it has a prefix."""

    def run(
        *arguments: str, input: str | None = None, heartbeat_timeout: float = 60
    ) -> subprocess.CompletedProcess[str]:
        stdin = subprocess.DEVNULL if input is None else subprocess.PIPE
        process = start(*arguments, stdin=stdin)
        out, err = process.communicate(input, timeout=heartbeat_timeout)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def run_fork(
        *arguments: str, input: str | None = None, heartbeat_timeout: float = 60
    ) -> subprocess.CompletedProcess[str]:
        server: CommandServer = request.getfixturevalue("command_server")
        return server.run(
            arguments,
            folder=folder,
            environment=environment,
            input=input,
            timeout=heartbeat_timeout,
        )

    return run if prefix else run_fork


@pytest.fixture
def ready(oncebox: Command, database: str) -> None:
    """The tables are there."""
    assert oncebox("migrate", "billing:inbox").returncode == 0
    query(database, "CREATE TABLE effects (id text)")


def query(url: str, sql: str) -> list[tuple[Any, ...]]:
    """Ask the database, on a connection of the test's own."""
    import sqlite3
    from contextlib import closing

    import psycopg

    if url.startswith("postgresql"):
        with psycopg.connect(url, autocommit=True) as connection:
            cursor = connection.execute(sql)
            return cursor.fetchall() if cursor.description else []
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"), timeout=30)) as connection:
        rows = connection.execute(sql).fetchall()
        connection.commit()
        return rows
