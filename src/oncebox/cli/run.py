"""Command `run`: consumers and workers as processes, under a supervisor."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Literal

import click

from oncebox.brokers.urls import source_of
from oncebox.cli.app import Reference, app_argument, called
from oncebox.cli.options import batch_option, together
from oncebox.errors import ConfigurationError
from oncebox.model.inspection import Rates, Status
from oncebox.services.health import serve_health
from oncebox.services.supervisor import MISUSED, Supervisor, Task

source_options = together(
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
        help="inline: run handlers at once; stored: store messages, workers run them.",
    ),
    batch_option,
)


@click.command()
@app_argument
@source_options
@click.option(
    "--workers",
    type=click.IntRange(1),
    default=1,
    envvar="ONCEBOX_WORKERS",
    show_default=True,
    help="Consumer processes; with --mode stored, also the number of worker processes.",
)
@click.option(
    "--health",
    type=click.IntRange(0, 65535),
    envvar="ONCEBOX_HEALTH",
    metavar="PORT",
    help="Serve /live and /ready on this port of 127.0.0.1.",
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
    """Consume a source and run stored messages.

    It ends when the source ends or a signal stops it. After the first SIGTERM or Ctrl-C, processes
    finish their messages in flight. A second signal kills them, which loses no messages. A process
    that crashes is restarted.
    """
    configure_logging(log_level)
    inbox = app.load()
    source = source_of(url)
    since = datetime.now(UTC) - timedelta(days=1)
    # Reading from the database now reports a wrong configuration before any process starts.
    before = called(inbox, inbox.rates, since=since)
    if source.features.single and workers > 1:
        raise ConfigurationError(f"{url} can be read by one worker only: use --workers 1")
    command = [sys.executable, "-m", "oncebox", "worker-process", str(app), "--from", url]
    command += ["--mode", mode, "--batch", str(batch), "--log-level", log_level]
    heartbeat_timeout = 2 * inbox.transaction_timeout.total_seconds() + 30
    processes = _Processes(
        command, heartbeat_timeout, consumers=workers, workers=workers if mode == "stored" else 1
    )
    code, interrupted = processes.run(health)
    if code == MISUSED:
        raise SystemExit(code)
    status: Status = called(inbox, inbox.status)
    if (status.ready or status.retrying) and not code and not interrupted:
        code = processes.finish()
        status = called(inbox, inbox.status)
    _print_summary(before, called(inbox, inbox.rates, since=since), status)
    raise SystemExit(code)


class _Processes:
    """The consumer and worker processes of a run."""

    def __init__(
        self, command: Sequence[str], heartbeat_timeout: float, *, consumers: int, workers: int
    ) -> None:
        self._command = command
        self._heartbeat_timeout = heartbeat_timeout
        self._consumers = consumers
        self._workers = workers

    def run(self, health: int | None) -> tuple[int, bool]:
        """Run until the source ends. Returns the exit code, and True if a signal stopped it."""
        consumers = self._tasks("consumer", self._consumers)
        supervisor = Supervisor(
            [*consumers, *self._tasks("worker", self._workers)],
            essential=[task.name for task in consumers],
        )
        with serve_health(health, supervisor):
            return supervisor.run(), supervisor.interrupted

    def finish(self) -> int:
        """Run the messages that are still stored after the source has ended."""
        return Supervisor(self._tasks("finish", self._workers)).run()

    def _tasks(self, role: str, count: int) -> list[Task]:
        command = [*self._command, "--role", role]
        timeout = self._heartbeat_timeout
        return [Task(f"{role} {n}", command, timeout) for n in range(1, count + 1)]


def _print_summary(before: Rates, after: Rates, status: Status) -> None:
    """Print what was done, including the work of other processes of the same consumer."""
    counts = {
        name: getattr(after, name) - getattr(before, name) for name in after.__struct_fields__
    }
    pending = status.ready + status.retrying + status.blocked
    click.echo(
        "{received:,} received: {done:,} done, {duplicate:,} duplicates absorbed, {failed:,} "
        "failed attempts, {dead:,} dead, {quarantined:,} quarantined; {pending:,} pending".format(
            **counts, pending=pending
        ),
        err=True,
    )


def configure_logging(level: str) -> None:
    """Log to stderr with time, PID and level."""
    logging.basicConfig(
        level=level.upper(),
        format="%(asctime)s %(process)d %(levelname)s %(message)s",
        stream=sys.stderr,
    )
