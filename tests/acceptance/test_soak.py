"""The soak: a folder of files, every fifth line a repetition, workers killed at random; twice."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import socket
import time
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from support.services import wait_until

from .conftest import event, query

LINES = int(os.environ.get("ONCEBOX_SOAK_LINES", "1500"))
WIDE = ["postgres"] if "ONCEBOX_SOAK_LINES" in os.environ else []
FILES = 8
PATIENCE = 100 + LINES / 200


@pytest.fixture
def spool(folder: Path) -> Path:
    """A folder of files; every fifth line was there before, in the same file or in another."""
    made = folder / "spool"
    made.mkdir()
    chance = random.Random(7)
    files = [(made / f"{number}.jsonl").open("w") for number in range(FILES)]
    for number in range(LINES):
        id = number if number % 5 or not number else chance.randrange(number)
        chance.choice(files).write(json.dumps(event(f"e-{id}")) + "\n")
    for file in files:
        file.close()
    return made


def distinct(spool: Path) -> int:
    return len({line for file in spool.iterdir() for line in file.read_text().splitlines()})


def harass(run: Any, port: int, deadline: float) -> int:
    """Kill workers at random until they are through; says how many."""
    chance = random.Random(7)
    kills = 0
    while run.poll() is None and time.monotonic() < deadline:
        with suppress(OSError, ValueError):
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/live", timeout=5) as answer:
                workers = json.load(answer)["workers"]
            ready = [worker["pid"] for worker in workers if worker["is_ready"]]
            if ready and kills < 8 + LINES / 10_000:
                os.kill(chance.choice(ready), signal.SIGKILL)
                kills += 1
        time.sleep(chance.uniform(0.2, 0.6))
    return kills


@pytest.mark.parametrize("database", ["sqlite", *WIDE], indirect=True)
@pytest.mark.crash
@pytest.mark.slow
@pytest.mark.timeout(0 if LINES > 10_000 else 120)
@pytest.mark.usefixtures("ready")
def test_every_line_takes_effect_once_although_processes_are_killed(
    start: Callable[..., Any], oncebox: Callable[..., Any], database: str, spool: Path
) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    arguments = ("run", "billing:inbox", "--from", f"file://{spool}", "--processes", "4")
    log = (spool.parent / "log").open("w")
    run = start(*arguments, "--batch", "50", "--health", str(port), stdout=log, stderr=log)
    kills = harass(run, port, time.monotonic() + PATIENCE)
    assert run.wait(PATIENCE) == 0
    log.close()
    total, wanted = "SELECT count(*), count(DISTINCT id) FROM effects", distinct(spool)
    # A message that was running alone when its worker was killed waits for its timeout.
    pending = "SELECT count(*) FROM oncebox_pending"
    wait_until(
        lambda: oncebox("drain", "billing:inbox") and query(database, pending) == [(0,)],
        "something is left",
    )
    assert kills
    assert query(database, total) == [(wanted, wanted)]
    query(database, "DELETE FROM oncebox_position")
    again = oncebox(*arguments, heartbeat_timeout=PATIENCE)
    assert query(database, total) == [(wanted, wanted)], "the second time changes nothing"
    absorbed = re.search(r"([\d,]+) duplicates absorbed", again.stderr)
    assert absorbed is not None, again.stderr
    assert int(absorbed[1].replace(",", "")) == LINES
