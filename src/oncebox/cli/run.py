"""run: consumers and drainers as processes, under a supervisor."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Literal

import click

from oncebox.cli.app import Reference, app_argument, called
from oncebox.cli.health import serve_health
from oncebox.cli.output import json_option, print_json
from oncebox.errors import ConfigurationError
from oncebox.inbox import Inbox
from oncebox.services import Consumer, Drainer
from oncebox.services.loop import Loop
from oncebox.services.supervise import GOES_ON, MISUSED, WAITS, Supervisor, Task
from oncebox.sources import source_of
from oncebox.store.reading import Rates, Status

_options = (
    click.option(
        "--from",
        "url",
        required=True,
        metavar="URL",
        envvar="ONCEBOX_FROM",
        help="kafka://host/topic?group=name, file:///path[?follow=1], or - for standard input.",
    ),
    click.option(
        "--mode",
        type=click.Choice(["inline", "stored"]),
        default="inline",
        envvar="ONCEBOX_MODE",
        show_default=True,
        help="Run handlers at once, or store first and let drainers run them.",
    ),
    click.option(
        "--batch",
        type=click.IntRange(1),
        default=100,
        envvar="ONCEBOX_BATCH",
        show_default=True,
        help="Messages per transaction.",
    ),
)


def _common(command: Any) -> Any:
    for option in reversed(_options):
        command = option(command)
    return command


@click.command()
@app_argument
@_common
@click.option(
    "--workers",
    type=click.IntRange(1),
    default=1,
    envvar="ONCEBOX_WORKERS",
    show_default=True,
    help="Processes that consume; in mode stored, as many drain.",
)
@click.option(
    "--health",
    type=click.IntRange(0, 65535),
    envvar="ONCEBOX_HEALTH",
    metavar="PORT",
    help="Answer /live and /ready on this port of 127.0.0.1.",
)
@click.option(
    "--log-level",
    default="INFO",
    envvar="ONCEBOX_LOG_LEVEL",
    show_default=True,
    type=click.Choice(["DEBUG", "INFO", "WARNING", "ERROR"], case_sensitive=False),
)
def run(
    app: Reference,
    url: str,
    mode: Literal["inline", "stored"],
    batch: int,
    workers: int,
    health: int | None,
    log_level: str,
) -> None:
    """Consume a source, and drain what was stored, until the source ends or a signal says stop.

    The first SIGTERM or Ctrl-C finishes what is in hands, a second one ends at once; nothing is
    lost either way. A worker that dies is started again.
    """
    _log(log_level)
    inbox = app.load()
    source = source_of(url)
    since = datetime.now(UTC) - timedelta(days=1)
    # This fails now, with a remedy, if it would fail later.
    before = called(inbox, inbox.look.rates, since=since)
    if source.features.single and workers > 1:
        raise ConfigurationError(f"{url} can be read by one worker only: --workers 1")
    command = [sys.executable, "-m", "oncebox", "worker", str(app), "--from", url, "--mode", mode]
    command += ["--batch", str(batch), "--log-level", log_level]
    patience = 2 * inbox.transaction_timeout.total_seconds() + 30
    staff = _Staff(command, patience, workers, drainers=workers if mode == "stored" else 1)
    code, interrupted = staff.work(health)
    if code == MISUSED:
        raise SystemExit(code)
    status: Status = called(inbox, inbox.look.status)
    if (status.ready or status.retrying) and not code and not interrupted:
        code = staff.finish()
        status = called(inbox, inbox.look.status)
    _sum_up(before, called(inbox, inbox.look.rates, since=since), status)
    raise SystemExit(code)


class _Staff:
    """The processes of a run."""

    def __init__(
        self, command: Sequence[str], patience: float, workers: int, *, drainers: int
    ) -> None:
        self._command = command
        self._patience = patience
        self._workers = workers
        self._drainers = drainers

    def work(self, health: int | None) -> tuple[int, bool]:
        """Consume and drain until the source ends; the exit code, and whether we were told to."""
        consumers = self._tasks("consume", self._workers)
        supervisor = Supervisor(
            [*consumers, *self._tasks("drain", self._drainers)],
            essential=[task.name for task in consumers],
        )
        with serve_health(health, supervisor):
            return supervisor.run(), supervisor.interrupted

    def finish(self) -> int:
        """Drain what the source left behind."""
        return Supervisor(self._tasks("finish", self._drainers)).run()

    def _tasks(self, role: str, count: int) -> list[Task]:
        command = [*self._command, "--role", role]
        return [Task(f"{role} {n}", command, self._patience) for n in range(1, count + 1)]


def _sum_up(before: Rates, after: Rates, status: Status) -> None:
    """Say what came of it. Other processes of the same consumer are counted as well."""
    counts = {
        name: getattr(after, name) - getattr(before, name) for name in after.__struct_fields__
    }
    left = status.ready + status.retrying + status.parked
    click.echo(
        "{received:,} received: {done:,} done, {duplicate:,} duplicates absorbed, {failed:,} "
        "failed runs, {dead:,} dead, {quarantined:,} quarantined; {left:,} pending".format(
            **counts, left=left
        ),
        err=True,
    )


@click.command()
@app_argument
@click.option(
    "--batch",
    type=click.IntRange(1),
    default=100,
    envvar="ONCEBOX_BATCH",
    show_default=True,
    help="Messages per transaction.",
)
@json_option
def drain(app: Reference, batch: int, as_json: bool) -> None:
    """Run what was stored and is due, until nothing is; for tests and cron jobs."""
    inbox = app.load()
    counts = called(inbox, inbox.drain, batch=batch)
    if as_json:
        print_json({kind.value: count for kind, count in counts.items()})
    else:
        click.echo(", ".join(f"{n:,} {kind}" for kind, n in counts.items()) or "nothing was due")


@click.command(hidden=True)
@app_argument
@_common
@click.option("--role", type=click.Choice(["consume", "drain", "finish"]), required=True)
@click.option("--beat", type=int, required=True)
@click.option("--life", type=int, required=True)
@click.option("--log-level", default="INFO")
def worker(
    app: Reference,
    url: str,
    mode: Literal["inline", "stored"],
    batch: int,
    role: str,
    beat: int,
    life: int,
    log_level: str,
) -> None:
    """One process of `run`."""
    _log(log_level)
    inbox = app.load()
    loop: Loop = (
        Consumer(inbox, source_of(url), mode=mode, batch=batch)
        if role == "consume"
        else Drainer(inbox, batch=batch, until_idle=role == "finish")
    )
    os.set_blocking(beat, False)
    loop.on_beat = partial(_beat, beat)
    signal.signal(signal.SIGTERM, lambda *_: loop.stop())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_watch, args=(life, loop), daemon=True).start()
    _serve(inbox, loop)


def _beat(pipe: int, waits: bool) -> None:
    """Say that we go on; if nobody listens, that is noticed elsewhere."""
    with suppress(OSError):
        os.write(pipe, WAITS if waits else GOES_ON)


def _watch(life: int, loop: Loop) -> None:
    """Stop when the supervisor is gone: its end of the pipe is closed then."""
    os.read(life, 1)
    loop.stop()


def _serve(inbox: Inbox, loop: Loop) -> None:
    if not inbox.is_async:
        with inbox:
            loop.run()
        return

    async def awaited() -> None:
        async with inbox:
            await loop.arun()

    asyncio.run(awaited())


def _log(level: str) -> None:
    logging.basicConfig(
        level=level.upper(),
        format="%(asctime)s %(process)d %(levelname)s %(message)s",
        stream=sys.stderr,
    )
