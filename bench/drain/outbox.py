"""pg-transactional-outbox, a library for Node: its inbox, with the key as the segment.

Install it where Node finds it: `npm install pg-transactional-outbox pg` in the working directory,
or NODE_PATH=.../node_modules. A worker says that it is through after 0.2 s without work, which is
in its time.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

from bench.drain import load as loads
from bench.drain.load import Load
from bench.drain.worker_pool import Drain

SCRIPT = Path(__file__).with_suffix(".cjs")
AT_ONCE = 10
"""Messages per listener: each has a transaction and a connection of its own."""
CLEAR = "TRUNCATE ledger, inbox"
LEFT = "SELECT count(*) FROM inbox WHERE processed_at IS NULL"
FILL = f"""
INSERT INTO inbox (id, aggregate_type, aggregate_id, message_type, segment, payload, created_at)
SELECT id::uuid, 'account', key, 'payment', key, convert_from(payload, 'UTF8')::jsonb,
       now() + n * interval '1 microsecond'
FROM ({loads.MESSAGES}) m"""


def missing() -> str | None:
    """Why it cannot be had, if so."""
    if shutil.which("node") is None:
        return "Node is not installed"
    done = subprocess.run(_command("setup"), env=_environment(), capture_output=True, text=True)
    return "not installed" if done.returncode else None


def _command(*arguments: str) -> list[str]:
    return ["node", str(SCRIPT), *arguments]


def _environment() -> dict[str, str]:
    places = [os.environ.get("NODE_PATH", ""), str(Path.cwd() / "node_modules")]
    return {**os.environ, "NODE_PATH": os.pathsep.join(filter(None, places))}


def create(url: str) -> None:
    """The tables of both."""
    setup = subprocess.check_output(_command("setup"), env=_environment(), text=True)
    with psycopg.connect(url) as connection:
        connection.execute(re.sub(r"^GRANT .*?;$", "", setup, flags=re.MULTILINE | re.DOTALL))
        loads.create(connection)


def fill(url: str, load: Load) -> None:
    """Replace what is there."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(CLEAR)
        connection.execute(FILL, loads.parameters(load))
        connection.execute("VACUUM ANALYZE")
        connection.execute("CHECKPOINT")


def left(url: str) -> int:
    """How many messages are not done."""
    with psycopg.connect(url) as connection:
        return int(connection.execute(LEFT).fetchall()[0][0])


@contextmanager
def open(url: str, batch: int) -> Iterator[Drain]:
    """A process of Node."""
    worker = subprocess.Popen(
        _command("drain", url, str(AT_ONCE)),
        env=_environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert worker.stdin is not None
    assert worker.stdout is not None
    pipes = worker.stdin, worker.stdout

    def drain() -> int:
        pipes[0].write("go\n")
        pipes[0].flush()
        return int(pipes[1].readline())

    yield drain
    pipes[0].close()
    worker.wait(10)
