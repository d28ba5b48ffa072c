"""A naive consumer: was the event processed? If not, do the work, record the event, ack.

Each step is correct. Together they are not: kill -9 between the work and the record of the event
makes the next process do the work again. A payment that fails three times is logged and dropped.

    python -m oncebox.cli.demo.naive URL FILE OFFSET --beat FD --life FD
"""

from __future__ import annotations

import os
import sqlite3
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from oncebox.cli.demo.stream import print_receipt

MAX_ATTEMPTS = 3


def main(url: str, file: Path, offset: Path, beat: int) -> None:
    """Read the file forever, from the offset that the last process saved."""
    database = connect(url)
    position = int(offset.read_text()) if offset.exists() else 0
    while True:
        send_heartbeat(beat)
        for line in new_lines(file, position):
            handle(database, msgspec.json.decode(line))
            position += len(line)
            ack(offset, position)
        time.sleep(0.05)


def handle(database: Any, event: dict[str, Any]) -> None:
    """Process an event, unless a process recorded that it is processed."""
    if database.execute("SELECT 1 FROM processed WHERE event_id = ?", event["id"]).fetchone():
        return
    for attempt in range(1, MAX_ATTEMPTS + 1):
        try:
            book(database, event)
            break
        except database.integrity_error as error:
            print(f"{event['order']}: attempt {attempt} failed: {error}", file=sys.stderr)
            time.sleep(0.05)
    database.execute("INSERT INTO processed (event_id) VALUES (?)", event["id"])


def book(database: Any, event: dict[str, Any]) -> None:
    """Book a payment in one transaction, then print the receipt."""
    order, account, cents = event["order"], event["account"], event["cents"]
    with database.transaction():
        database.execute(
            "INSERT INTO ledger (event_id, order_number, account, cents) VALUES (?, ?, ?, ?)",
            event["id"], order, account, cents,
        )  # fmt: skip
        database.execute("UPDATE accounts SET cents = cents + ? WHERE name = ?", cents, account)
    print_receipt()


def new_lines(file: Path, position: int) -> list[bytes]:
    """The next complete lines of the file."""
    with file.open("rb") as stream:
        stream.seek(position)
        return [line for line in stream.readlines(65536) if line.endswith(b"\n")]


def ack(offset: Path, position: int) -> None:
    """Save the position, as a broker does: at once or not at all."""
    saved = offset.with_suffix(".new")
    saved.write_text(str(position))
    saved.replace(offset)


class Sqlite:
    """A connection to SQLite in autocommit mode."""

    integrity_error = sqlite3.IntegrityError

    def __init__(self, path: str) -> None:
        self._raw = sqlite3.connect(path, timeout=30, isolation_level=None)
        self.execute("PRAGMA foreign_keys=ON")
        self.execute("PRAGMA synchronous=NORMAL")  # faster, and as safe under kill -9

    def execute(self, sql: str, *params: Any) -> Any:
        return self._raw.execute(sql, params)

    def transaction(self) -> Any:
        self.execute("BEGIN IMMEDIATE")
        return self._raw  # as a context manager, it commits or rolls back

    def close(self) -> None:
        self._raw.close()


class Postgres:
    """A connection to PostgreSQL in autocommit mode."""

    def __init__(self, url: str) -> None:
        import psycopg

        self.integrity_error = psycopg.IntegrityError
        self._raw = psycopg.connect(url, autocommit=True)

    def execute(self, sql: str, *params: Any) -> Any:
        return self._raw.execute(sql.replace("?", "%s").encode(), params)

    def transaction(self) -> Any:
        return self._raw.transaction()

    def close(self) -> None:
        self._raw.close()


def connect(url: str) -> Sqlite | Postgres:
    """Connect to the books behind a URL."""
    is_file = url.startswith("sqlite:///")
    return Sqlite(url.removeprefix("sqlite:///")) if is_file else Postgres(url)


def send_heartbeat(pipe: int) -> None:
    """Tell the demo that this process works."""
    with suppress(OSError):
        os.write(pipe, b".")


def exit_with_demo(life: int) -> None:
    """End this process when the demo ends, which closes its end of the pipe."""
    os.read(life, 1)
    os._exit(0)


if __name__ == "__main__":
    url, file, offset, _, beat, _, life = sys.argv[1:]
    os.set_blocking(int(beat), False)
    threading.Thread(target=exit_with_demo, args=[int(life)], daemon=True).start()
    main(url, Path(file), Path(offset), int(beat))
