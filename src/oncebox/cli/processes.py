"""The supervised processes of `run` and `worker`: their options, start, health checks and end."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import click

from oncebox.cli.app import Reference, called
from oncebox.cli.options import batch_option, together
from oncebox.inbox import Inbox
from oncebox.model.inspection import Rates, Status
from oncebox.services.health import serve_health
from oncebox.services.supervisor import MISUSED, Supervisor, Task

SHOWN_TYPES = 5
"""Message types that are named at the start; further ones are counted."""


class HealthAddress(click.ParamType):  # type: ignore[type-arg] # not generic in every version of click
    """A port of 127.0.0.1, or host:port."""

    name = "address"

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        if isinstance(value, tuple):
            return value
        host, _, port = str(value).rpartition(":")
        if not port.isdigit() or int(port) > 65535:
            self.fail(f"{value!r} is not a port: write 8086, or 0.0.0.0:8086 for all interfaces")
        return host.strip("[]") or "127.0.0.1", int(port)


process_options = together(
    click.option(
        "--health",
        type=HealthAddress(),
        envvar="ONCEBOX_HEALTH",
        metavar="[HOST:]PORT",
        help="Serve /live and /ready on this port, of 127.0.0.1 by default.",
    ),
    batch_option,
    click.option(
        "--log-level",
        default="INFO",
        envvar="ONCEBOX_LOG_LEVEL",
        show_default=True,
        type=click.Choice(["DEBUG", "INFO", "WARNING", "ERROR"], case_sensitive=False),
        help="Log messages of this level and above, to stderr.",
    ),
)


class Processes:
    """The processes of one command: `consumers` read the source, `workers` run stored messages."""

    def __init__(self, app: Reference, inbox: Inbox, *, batch: int, log_level: str) -> None:
        self._app = app
        self._inbox = inbox
        self._options = ["--batch", str(batch), "--log-level", log_level]
        self._since = datetime.now(UTC) - timedelta(days=1)
        # Reading from the database now reports a wrong configuration before any process starts.
        inbox._engine.registry.check(inbox.name)
        self._before: Rates = called(inbox, inbox.rates, since=self._since)

    def run(
        self,
        intro: str,
        *,
        workers: int,
        consumers: int = 0,
        source: Sequence[str] = (),
        health: tuple[str, int] | None = None,
    ) -> int:
        """Run until the consumers finish, or a signal. Returns the exit code."""
        reading = self._tasks("consumer", consumers, source)
        supervisor = Supervisor(
            [*reading, *self._tasks("worker", workers)], essential=[task.name for task in reading]
        )
        with serve_health(health, supervisor) as url:
            self._print_intro(intro, url)
            code = supervisor.run()
        if code == MISUSED:
            return code
        if not code and not supervisor.interrupted:
            code = self._finish(workers)
        self._print_summary()
        return code

    def _finish(self, workers: int) -> int:
        """Run the messages that are still stored after the source has ended."""
        status: Status = called(self._inbox, self._inbox.status)
        if not (status.ready or status.retrying):
            return 0
        return Supervisor(self._tasks("finish", workers)).run()

    def _tasks(self, role: str, count: int, source: Sequence[str] = ()) -> list[Task]:
        command = [sys.executable, "-m", "oncebox", "worker-process", str(self._app)]
        command += [*self._options, "--role", role, *source]
        timeout = 2 * self._inbox.transaction_timeout.total_seconds() + 30
        may_finish = role != "worker"
        return [Task(f"{role} {n}", command, timeout, may_finish) for n in range(1, count + 1)]

    def _print_intro(self, intro: str, health: str | None) -> None:
        click.echo(f"{self._inbox.name}: {intro}", err=True)
        click.echo(f"handlers: {_named(self._inbox._engine.registry.types)}", err=True)
        click.echo(f"health: {health or 'not served (--health PORT)'}", err=True)

    def _print_summary(self) -> None:
        """Print what was done, including the work of other processes of the same consumer."""
        after: Rates = called(self._inbox, self._inbox.rates, since=self._since)
        status: Status = called(self._inbox, self._inbox.status)
        counts = {
            name: getattr(after, name) - getattr(self._before, name)
            for name in after.__struct_fields__
        }
        pending = status.ready + status.retrying + status.blocked
        can_run = status.ready or status.retrying  # blocked messages wait for a dead letter
        remedy = ": run `oncebox worker APP` or `oncebox drain APP`" if can_run else ""
        click.echo(
            "{received:,} received: {done:,} done, {duplicate:,} duplicates absorbed, {failed:,} "
            "failed attempts, {dead:,} dead, {quarantined:,} quarantined; {pending:,} "
            "pending{remedy}".format(**counts, pending=pending, remedy=remedy),
            err=True,
        )


def processes(count: int, what: str) -> str:
    """A number of processes, such as 2 worker processes."""
    return f"{count} {what} process{'es' if count > 1 else ''}"


def _named(types: Sequence[str]) -> str:
    more = len(types) - SHOWN_TYPES
    return ", ".join(types[:SHOWN_TYPES]) + (f" and {more} more" if more > 0 else "")


def configure_logging(level: str) -> None:
    """Log to stderr with time, PID and level."""
    logging.basicConfig(
        level=level.upper(),
        format="%(asctime)s %(process)d %(levelname)s %(message)s",
        stream=sys.stderr,
    )
