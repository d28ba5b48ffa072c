"""Hidden command `worker-process`: one process of `run` or `worker`."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from contextlib import suppress
from functools import partial
from typing import Literal

import click

from oncebox.brokers.urls import source_of
from oncebox.cli.app import Reference, app_argument
from oncebox.cli.processes import configure_logging
from oncebox.inbox import Inbox
from oncebox.services import Consumer, Worker
from oncebox.services.loop import Loop
from oncebox.services.supervisor import BEATS
from oncebox.storage.steps import treat_exit_as_error


@click.command("worker-process", hidden=True)
@app_argument
@click.option("--role", type=click.Choice(["consumer", "worker", "finish"]), required=True)
@click.option("--from", "url", default="-")
@click.option("--mode", default="inline")
@click.option("--batch", type=int, required=True)
@click.option("--beat", type=int, required=True)
@click.option("--life", type=int, required=True)
@click.option("--log-level", default="INFO")
def worker_process(
    app: Reference,
    role: str,
    url: str,
    mode: Literal["inline", "stored"],
    batch: int,
    beat: int,
    life: int,
    log_level: str,
) -> None:
    """One process of `run` or `worker`."""
    configure_logging(log_level)
    inbox = app.load()
    loop: Loop = (
        Consumer(inbox, source_of(url), mode=mode, batch=batch)
        if role == "consumer"
        else Worker(inbox, batch=batch, until_idle=role == "finish")
    )
    os.set_blocking(beat, False)
    loop.on_beat = partial(_send_heartbeat, beat)
    signal.signal(signal.SIGTERM, lambda *_: loop.stop())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    treat_exit_as_error()
    threading.Thread(target=_stop_with_supervisor, args=(life, loop), daemon=True).start()
    _serve(inbox, loop)


def _send_heartbeat(pipe: int, waits_for: str) -> None:
    """Write a heartbeat; if the supervisor is gone, the other pipe stops the process."""
    with suppress(OSError):
        os.write(pipe, BEATS[waits_for])


def _stop_with_supervisor(life: int, loop: Loop) -> None:
    """Stop when the supervisor ends, which closes its end of the pipe."""
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
