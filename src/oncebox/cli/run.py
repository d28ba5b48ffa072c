"""run: consumers and drainers as processes, under a supervisor."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
from typing import Any, Literal

import click

from oncebox.cli.app import Reference, app_argument, called
from oncebox.cli.health import serve_health
from oncebox.errors import ConfigurationError
from oncebox.inbox import Inbox
from oncebox.services import Consumer, Drainer
from oncebox.services.loop import Loop
from oncebox.services.supervise import Supervisor, Task
from oncebox.sources import source_of

_options = (
    click.option(
        "--from",
        "url",
        required=True,
        metavar="URL",
        envvar="ONCEBOX_FROM",
        help="The source: file:///path[?follow=1], or - for standard input.",
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
    help="Processes that consume, and as many that drain.",
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
    called(inbox, inbox.look.status)  # fails now, with a remedy, if it would fail later
    if not source.features.positions and workers > 1:
        raise ConfigurationError(f"{url} can be read by one worker only: --workers 1")
    common = [sys.executable, "-m", "oncebox", "worker", str(app), "--from", url, "--mode", mode]
    common += [
        "--batch",
        str(batch),
        "--log-level",
        log_level,
        "--beat",
        "{beat}",
        "--life",
        "{life}",
    ]
    patience = 2 * inbox.transaction_timeout.total_seconds() + 30
    consumers = [
        Task(f"consumer {n}", [*common, "--role", "consume"], patience)
        for n in range(1, workers + 1)
    ]
    drainers = [
        Task(f"drainer {n}", [*common, "--role", "drain"], patience)
        for n in range(1, (workers if mode == "stored" else 1) + 1)
    ]
    supervisor = Supervisor([*consumers, *drainers], essential=[task.name for task in consumers])
    with serve_health(health, supervisor):
        raise SystemExit(supervisor.run())


@click.command(hidden=True)
@app_argument
@_common
@click.option("--role", type=click.Choice(["consume", "drain"]), required=True)
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
        else Drainer(inbox, batch=batch)
    )
    loop.on_beat = lambda: os.write(beat, b".")
    signal.signal(signal.SIGTERM, lambda *_: loop.stop())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_watch, args=(life, loop), daemon=True).start()
    _serve(inbox, loop)


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
