"""Poll: what a look at nothing costs, and by which plans it is made."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from statistics import median

import psycopg

from bench.drain import load as loads
from bench.drain import oncebox
from bench.drain.options import Options
from bench.drain.worker_pool import Drain
from bench.environment import Environment

TIMES = 300
WITHIN = 1.3

# Processed messages: inbox rows and the record of their runs, as the drain leaves them.
PROCESS = f"""
WITH m AS MATERIALIZED (SELECT nextval('oncebox_seq') AS seq, m.* FROM ({loads.MESSAGES}) m),
i AS (
  INSERT INTO oncebox_inbox (consumer, origin, message_id, seq, type, version, key, payload,
                             content_hash, source)
  SELECT '{oncebox.NAME}', 'bank', id, seq, 'payment', 1, key, payload,
         decode(md5(payload), 'hex'), 'default'
  FROM m ORDER BY id)
INSERT INTO oncebox_attempt (consumer, origin, message_id, number, outcome, worker)
SELECT '{oncebox.NAME}', 'bank', id, 1, 'done', 'bench' FROM m"""
CHUNK = 250_000
TAKE = f"SELECT * FROM oncebox_take('{oncebox.NAME}', 100, 8, '300000ms', true)"
EXPLAIN = """
LOAD 'auto_explain';
SET auto_explain.log_min_duration = 0;
SET auto_explain.log_nested_statements = on;
SET auto_explain.log_analyze = on;
SET auto_explain.log_timing = off;
SET auto_explain.log_level = notice;
"""


def poll(environment: Environment, options: Options) -> Iterator[str]:
    """An empty poll with nothing, with a long history, and with rows that no vacuum has removed."""
    urls = [environment.database(), environment.database()]
    for url in urls:
        oncebox.create(url)
    _process(urls[1], options)
    opened = [oncebox.open_batch(url, options.batch) for url in urls]
    with opened[0] as without, opened[1] as step:
        without_history, with_history = _milliseconds(without, step)
        plans = list(_plans(urls[1]))
        oncebox.fill(urls[1], loads.Load(options.messages, first=options.history + 1))
        while step():
            pass
        (first,) = _milliseconds(step, times=1)
        (drained,) = _milliseconds(step)
        under_snapshot = _under_snapshot(urls[1], step, options)
    yield f"an empty poll, medians of {TIMES}, by turns" + _scaled(options)
    yield _line("nothing processed", without_history)
    yield _line(f"{options.history:,} processed", with_history)
    yield _line(f"{options.messages:,} drained just now, first look", first)
    yield _line(f"{options.messages:,} drained just now, no vacuum yet", drained)
    yield _line(f"{options.messages:,} drained under an old snapshot", under_snapshot)
    ratio = median(with_history) / median(without_history)
    verdict = "ok" if ratio <= WITHIN else "MISSED"
    yield f"  with history to without: {ratio:.2f}  goal {WITHIN:g}: {verdict}"
    yield f"  plans of the statements inside take, with {options.history:,} processed:"
    yield from plans


def _under_snapshot(url: str, step: Drain, options: Options) -> list[float]:
    """How long polls take while a report keeps the rows that were drained meanwhile."""
    oncebox.fill(url, loads.Load(options.messages, first=options.history + options.messages + 1))
    with psycopg.connect(url) as report:
        report.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        report.execute("SELECT count(*) FROM oncebox_pending")
        while step():
            pass
        (times,) = _milliseconds(step)
        report.rollback()
    return times


def _line(label: str, times: list[float]) -> str:
    return f"  {label:<44}{median(times):>8.2f} ms  ({min(times):.2f}-{max(times):.2f})"


def _scaled(options: Options) -> str:
    return "" if options.history >= 5_000_000 else "; the goal speaks of 5,000,000: --history"


def _milliseconds(*steps: Drain, times: int = TIMES) -> list[list[float]]:
    """How long each takes, by turns: a machine that is busy for a moment is so for all."""
    found: list[list[float]] = [[] for _ in steps]
    for _ in range(times):
        for step, measured in zip(steps, found, strict=True):
            started = time.perf_counter()
            step()
            measured.append((time.perf_counter() - started) * 1000)
    return found


def _process(url: str, options: Options) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        for first in range(1, options.history + 1, CHUNK):
            messages = min(CHUNK, options.history + 1 - first)
            load = loads.Load(messages, first=first)
            connection.execute(PROCESS, loads.parameters(load))
            options.progress(f"poll: {first + messages - 1:,} processed")
        connection.execute("VACUUM ANALYZE")
        connection.execute("CHECKPOINT")


def _plans(url: str) -> Iterator[str]:
    """As the server itself reports them, of statements that touch a table."""
    with psycopg.connect(url, autocommit=True) as connection:
        try:
            connection.execute(EXPLAIN)
        except psycopg.Error as error:
            yield f"    auto_explain cannot be had: {error}"
            return
        told: list[str] = []
        connection.add_notice_handler(lambda notice: told.append(notice.message_primary or ""))
        connection.execute(TAKE)
    for text in told:
        plan = text.partition("\n")[2]
        if " on oncebox_" in plan:
            yield from (f"    {line}" for line in _shortened(plan))
            yield ""


def _shortened(plan: str) -> Iterator[str]:
    """Without the query's text and without estimates."""
    text = plan.partition("\n")[2] if plan.startswith("Query Text") else plan
    lines = text.splitlines()
    start = next((n for n, line in enumerate(lines) if "(cost=" in line), 0)
    for line in lines[start:]:
        yield re.sub(r"  \(cost=\S+ rows=\d+ width=\d+\)", "", line).rstrip()
