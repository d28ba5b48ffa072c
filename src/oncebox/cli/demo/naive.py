"""A naive consumer: check whether the event was processed, do the work, record the event.

Each step is correct; together they are not, because the process may crash between any two.

    python -m oncebox.cli.demo.naive URL FILE OFFSET
"""

from __future__ import annotations

import sqlite3
import sys
import time
from pathlib import Path
from typing import Any

import msgspec


def main(url: str, file: Path, offset: Path) -> None:
    """Read the file forever, from the offset that the last process saved."""
    connection = connect(url)
    position = int(offset.read_text() or 0) if offset.exists() else 0
    while True:
        for line in lines(file, position):
            handle(connection, msgspec.json.decode(line))
            position += len(line)
            offset.write_text(str(position))  # the ack, after the work
        time.sleep(0.05)


def lines(file: Path, position: int) -> list[bytes]:
    with file.open("rb") as stream:
        stream.seek(position)
        return [line for line in stream.readlines(65536) if line.endswith(b"\n")]


def handle(connection: Any, event: dict[str, Any]) -> None:
    payment = event["payment"]
    seen = connection.execute(
        connection.placed("SELECT 1 FROM processed WHERE event_id = ?"), (event["id"],)
    ).fetchone()
    if seen:
        return
    try:
        connection.execute(
            connection.placed("INSERT INTO ledger VALUES (?, ?, ?)"),
            (payment["order"], payment["account"], payment["cents"]),
        )
        connection.execute(
            connection.placed("UPDATE accounts SET cents = cents + ? WHERE name = ?"),
            (payment["cents"], payment["account"]),
        )
    except connection.failures:
        pass  # "log it and continue": the payment is lost
    connection.execute(connection.placed("INSERT INTO processed VALUES (?)"), (event["id"],))


class Connection:
    """A connection in autocommit mode, as in most articles."""

    def __init__(self, raw: Any, placeholder: str, failures: type[Exception]) -> None:
        self._raw = raw
        self._placeholder = placeholder
        self.failures = failures

    def placed(self, sql: str) -> str:
        return sql.replace("?", self._placeholder)

    def execute(self, sql: str, params: tuple[Any, ...]) -> Any:
        return self._raw.execute(sql, params)


def connect(url: str) -> Connection:
    if url.startswith("sqlite:///"):
        path = url.removeprefix("sqlite:///")
        raw = sqlite3.connect(path, timeout=30, isolation_level=None)
        raw.execute("PRAGMA foreign_keys=ON")
        return Connection(raw, "?", sqlite3.IntegrityError)
    import psycopg

    return Connection(psycopg.connect(url, autocommit=True), "%s", psycopg.IntegrityError)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
