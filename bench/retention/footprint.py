"""Footprints: checksums over every byte of messages and their attempts, in order."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from hashlib import sha256

import msgspec
import psycopg

# The number of an attempt's row is the database's; the order within a message stays.
RUN = (
    "consumer, origin, message_id, replay, number, outcome, error, fingerprint, duration, worker, "
    "ended_at"
)
INBOX = """
SELECT count(*), md5(string_agg(md5(i::text), '' ORDER BY i.seq)) FROM oncebox_inbox i"""
ATTEMPTS = f"""
SELECT count(*), md5(string_agg(md5(ROW({RUN})::text), '' ORDER BY origin, message_id, id))
FROM oncebox_attempt"""
INBOX_ROWS = "SELECT * FROM oncebox_inbox ORDER BY seq"
ATTEMPT_ROWS = f"SELECT {RUN} FROM oncebox_attempt ORDER BY origin, message_id, id"


class Rows(msgspec.Struct, frozen=True):
    """How many rows there are, and their checksum."""

    count: int
    digest: str | None


class Footprint(msgspec.Struct, frozen=True):
    """What a database holds."""

    messages: Rows
    attempts: Rows


class Changed(Exception):
    """Messages are not what they were."""


def take(url: str) -> Footprint:
    """What a database holds now."""
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as file:
            return Footprint(_read(file, INBOX_ROWS), _read(file, ATTEMPT_ROWS))
    with psycopg.connect(url) as connection:
        found = [connection.execute(sql).fetchall()[0] for sql in (INBOX, ATTEMPTS)]
    return Footprint(*(Rows(count, digest) for count, digest in found))


def _read(file: sqlite3.Connection, sql: str) -> Rows:
    """SQLite has no checksums: the rows are read, with the types that they have."""
    count, digest = 0, sha256()
    for row in file.execute(sql):
        digest.update(repr(row).encode())
        count += 1
    return Rows(count, digest.hexdigest())


def check_is_empty(label: str, url: str) -> None:
    """Raise unless everything was purged."""
    found = take(url)
    if found.messages.count or found.attempts.count:
        raise Changed(f"{label}: something is left: {found}")


def check_is_same(label: str, url: str, before: Footprint) -> None:
    """Raise unless everything is there again as it was."""
    found = take(url)
    if found != before:
        raise Changed(f"{label}: there were {before}, and there are {found}")
