"""Command `worker`: runs stored messages until it is stopped. Command `drain`: one pass."""

from __future__ import annotations

import click

from oncebox.cli.app import Reference, app_argument, called
from oncebox.cli.documents import print_json
from oncebox.cli.options import batch_option, json_option
from oncebox.cli.processes import Processes, configure_logging, process_options, processes


@click.command()
@app_argument
@click.option(
    "--processes",
    "count",
    type=click.IntRange(1),
    default=1,
    envvar="ONCEBOX_PROCESSES",
    show_default=True,
    help="Worker processes.",
)
@process_options
def worker(
    app: Reference,
    count: int,
    health: tuple[str, int] | None,
    batch: int,
    log_level: str,
) -> None:
    """Run stored messages as they become due, until stopped.

    For messages that a webhook or your own loop passes to inbox.receive(), and for retries of those
    that failed in inbox.process(). `oncebox run` has such workers of its own. Start as many as you
    need, on any number of machines.

    After the first SIGTERM or Ctrl-C, processes finish their messages in flight. A second signal
    kills them, which loses no messages. A process that crashes or hangs is restarted.
    """
    configure_logging(log_level)
    running = Processes(app, app.load(), batch=batch, log_level=log_level)
    intro = f"{processes(count, 'worker')}, batches of up to {batch:,} stored messages"
    raise SystemExit(running.run(intro, workers=count, health=health))


@click.command()
@app_argument
@batch_option
@json_option
def drain(app: Reference, batch: int, as_json: bool) -> None:
    """Run the stored messages that are due, then exit.

    For tests and cron jobs. `oncebox worker` does the same until it is stopped.
    """
    inbox = app.load()
    counts = called(inbox, inbox.drain, batch=batch)
    if as_json:
        print_json({kind.value: count for kind, count in counts.items()})
    else:
        shown = ", ".join(f"{n:,} {kind}" for kind, n in counts.items())
        click.echo(shown or "no messages were due")
