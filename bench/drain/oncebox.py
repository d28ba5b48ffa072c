"""oncebox: its tables as receive() leaves them, and its drain."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import psycopg

from bench.drain import load as loads
from bench.drain.load import BLOCKED_KEY, Load, Payment
from bench.drain.worker_pool import Drain
from oncebox import Inbox, Transaction
from oncebox.model.ordering import lane
from oncebox.model.outcome import Kind
from oncebox.storage.steps import run

NAME = "bench"
ONE = "INSERT INTO ledger (message_id, account, n, amount) VALUES (:id, :account, :n, :amount)"
ALL = """
INSERT INTO ledger (message_id, account, n, amount)
SELECT * FROM unnest(:ids::text[], :accounts::text[], :ns::bigint[], :amounts::integer[])"""

CLEAR = "TRUNCATE ledger, oncebox_inbox, oncebox_pending, oncebox_attempt, oncebox_minute_counter"
LEFT = "SELECT count(*) FROM oncebox_pending"
FILL = f"""
WITH m AS MATERIALIZED (SELECT nextval('oncebox_seq') AS seq, m.* FROM ({loads.MESSAGES}) m),
i AS (
  INSERT INTO oncebox_inbox (consumer, origin, message_id, seq, type, version, key, payload,
                             content_hash, source)
  SELECT '{NAME}', 'bank', id, seq, 'payment', 1, key, payload, decode(md5(payload), 'hex'),
         'default'
  FROM m ORDER BY id)
INSERT INTO oncebox_pending (consumer, lane, seq, origin, message_id, type, version, key, payload,
                             source, fresh)
SELECT '{NAME}', lane, seq, 'bank', id, 'payment', 1, key, payload, 'default', true FROM m"""
FILL_BLOCKED = f"""
INSERT INTO oncebox_pending (consumer, lane, seq, origin, message_id, type, version, key, payload,
                             source, attempts, last_error, available_at)
SELECT '{NAME}', %(lane)s, nextval('oncebox_seq'), 'bank', 'blocked-' || n, 'payment', 1,
       '{BLOCKED_KEY}', '{{}}', 'default', (n = 1)::int, CASE WHEN n = 1 THEN 'it failed' END,
       CASE WHEN n = 1 THEN now() + interval '1 day' ELSE 'infinity' END
FROM generate_series(1, %(blocked)s) n"""


def book(payment: Payment, tx: Transaction) -> None:
    """The handler of one message."""
    tx.execute(ONE, id=payment.id, account=payment.account, n=payment.n, amount=payment.amount)


def book_all(payments: list[Payment], tx: Transaction) -> None:
    """The handler of a batch: one statement for all."""
    tx.execute(
        ALL,
        ids=[payment.id for payment in payments],
        accounts=[payment.account for payment in payments],
        ns=[payment.n for payment in payments],
        amounts=[payment.amount for payment in payments],
    )


def create(url: str) -> None:
    """The tables of both."""
    Inbox(NAME, url).migrate()
    with psycopg.connect(url) as connection:
        loads.create(connection)


def fill(url: str, load: Load) -> None:
    """Replace what is there."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(CLEAR)
        if load.blocked:
            connection.execute(FILL_BLOCKED, {"lane": lane(BLOCKED_KEY), "blocked": load.blocked})
        connection.execute(FILL, loads.parameters(load))
        connection.execute("VACUUM ANALYZE")
        connection.execute("CHECKPOINT")


def left(url: str) -> int:
    """How many messages are not done."""
    with psycopg.connect(url) as connection:
        return int(connection.execute(LEFT).fetchall()[0][0])


def inbox_for_batches(url: str) -> Inbox:
    """An inbox with the handler of a batch."""
    inbox = Inbox(NAME, url)
    inbox.on("payment", batch=True)(book_all)
    return inbox


def open_batch(url: str, batch: int) -> AbstractContextManager[Drain]:
    """A handler for all messages of a batch."""
    return draining(inbox_for_batches(url), batch)


def open_single(url: str, batch: int) -> AbstractContextManager[Drain]:
    """A handler per message."""
    inbox = Inbox(NAME, url)
    inbox.on("payment")(book)
    return draining(inbox, batch)


@contextmanager
def draining(inbox: Inbox, batch: int) -> Iterator[Drain]:
    """The steps of oncebox's Worker, one by one, so that they can be counted."""
    with inbox, inbox._engine.worker(batch) as worker:
        drain = run(inbox._engine.drain(False, worker))
        run(drain.sign_on())

        def step() -> int:
            while not (step := run(drain.step())).idle:
                if step.outcomes:
                    return sum(outcome.kind is Kind.done for outcome in step.outcomes)
            return 0

        yield step
        run(drain.sign_off())
