"""Command `run`: consumers and workers as processes, under a supervisor."""

from __future__ import annotations

from typing import Literal

import click

from oncebox.brokers.urls import source_of
from oncebox.cli.app import Reference, app_argument
from oncebox.cli.processes import Processes, configure_logging, process_options, processes
from oncebox.errors import ConfigurationError


@click.command()
@app_argument
@click.option(
    "--from",
    "url",
    required=True,
    metavar="URL",
    envvar="ONCEBOX_FROM",
    help="kafka://host/topic?group=name, file:///path[?follow=1], or - for standard input.",
)
@click.option(
    "--mode",
    type=click.Choice(["inline", "stored"]),
    default="inline",
    envvar="ONCEBOX_MODE",
    show_default=True,
    help="inline: run handlers at once; stored: store messages, workers run them.",
)
@click.option(
    "--processes",
    "count",
    type=click.IntRange(1),
    default=1,
    envvar="ONCEBOX_PROCESSES",
    show_default=True,
    help="Consumer processes; with --mode stored, also as many worker processes.",
)
@process_options
def run(
    app: Reference,
    url: str,
    mode: Literal["inline", "stored"],
    count: int,
    health: tuple[str, int] | None,
    batch: int,
    log_level: str,
) -> None:
    """Consume a source and run stored messages.

    It ends when the source ends or a signal stops it. After the first SIGTERM or Ctrl-C, processes
    finish their messages in flight. A second signal kills them, which loses no messages. A process
    that crashes or hangs is restarted.
    """
    configure_logging(log_level)
    inbox = app.load()
    source = source_of(url)
    if source.features.single and count > 1:
        raise ConfigurationError(
            f"{source.name} can be read by one process only: use --processes 1"
        )
    workers = count if mode == "stored" else 1
    runs = "store messages" if mode == "stored" else "run handlers"
    intro = (
        f"consuming {source.name}: {processes(count, 'consumer')} {runs} in batches of up to "
        f"{batch:,}; {processes(workers, 'worker')} for stored messages and retries"
    )
    code = Processes(app, inbox, batch=batch, log_level=log_level).run(
        intro,
        consumers=count,
        workers=workers,
        source=["--from", url, "--mode", mode],
        health=health,
    )
    raise SystemExit(code)
