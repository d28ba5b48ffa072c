"""The load: the stored messages before the workers begin. The server generates them."""

from __future__ import annotations

from typing import Literal

import msgspec
import psycopg

from oncebox.model.ordering import lane

KEYS = 10_000
BLOCKED_KEY = "blocked"


class Payment(msgspec.Struct):
    """The payload."""

    id: str
    account: str
    n: int
    amount: int


class Load(msgspec.Struct, frozen=True):
    """Messages with many keys or one, perhaps behind many messages of a blocked key."""

    messages: int
    first: int = 1
    keys: Literal["uniform", "hot"] = "uniform"
    blocked: int = 0
    """Messages of one key that came before them. The first has failed and runs again tomorrow."""


LEDGER = """
CREATE TABLE ledger (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, message_id text NOT NULL,
  account text NOT NULL, n bigint NOT NULL, amount integer NOT NULL);
CREATE TABLE load_key (number integer PRIMARY KEY, key text NOT NULL, lane smallint NOT NULL);
"""

# Time-ordered ids, as UUIDv7 are; keys by hash, so that every contender gets the same ones.
MESSAGES = """
SELECT n.n, k.key, k.lane, '019b0000-0000-7000-8000-' || lpad(to_hex(n.n), 12, '0') AS id,
       convert_to(format('{"id":"019b0000-0000-7000-8000-%%s","account":"%%s","n":%%s,"amount":%%s}',
                         lpad(to_hex(n.n), 12, '0'), k.key, n.n, n.n %% 100), 'UTF8') AS payload
FROM generate_series(%(first)s::bigint, %(last)s::bigint) AS n (n)
JOIN load_key k ON k.number = CASE WHEN %(uniform)s
                              THEN abs(hashint8(n.n)::bigint) %% %(keys)s ELSE 0 END
ORDER BY n.n"""


def create(connection: psycopg.Connection) -> None:
    """The business table, and the keys with their lanes."""
    connection.execute(LEDGER)
    with connection.cursor().copy("COPY load_key FROM STDIN") as copy:
        for number in range(KEYS):
            key = f"account-{number:05}"
            copy.write_row((number, key, lane(key)))


def parameters(load: Load) -> dict[str, object]:
    """The parameters of MESSAGES."""
    return {
        "first": load.first,
        "last": load.first + load.messages - 1,
        "uniform": load.keys == "uniform",
        "keys": KEYS,
    }


class WrongResult(Exception):
    """A contender lost a message, took one twice, or took them out of order."""


APPLIED = "SELECT count(*), count(DISTINCT message_id), count(DISTINCT n) FROM ledger"
OVERTAKEN = """
SELECT count(*) FROM (
  SELECT n, lag(n) OVER (PARTITION BY account ORDER BY id) AS before FROM ledger) l
WHERE n < before"""


def check(url: str, label: str, load: Load, *, done: int, left: int, ordered: bool = True) -> None:
    """Raise unless each of the messages was applied once, in the order of its key, or is left."""
    with psycopg.connect(url) as connection:
        applied = connection.execute(APPLIED).fetchall()[0]
        overtaken = connection.execute(OVERTAKEN).fetchall()[0][0] if ordered else 0
    expected = load.messages + load.blocked
    if set(applied) != {done} or done + left != expected or overtaken:
        raise WrongResult(
            f"{label}: {done} of {expected} were done, {left} are left, {applied} were applied, "
            f"{overtaken} overtook another of their key"
        )
