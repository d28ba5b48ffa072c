"""kill -9 at any point of the unit of work: once delivered again, every effect is there once."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from faults import child
from support.services import wait_until
from support.worlds import World

pytestmark = [pytest.mark.crash, pytest.mark.only(("psycopg", "sqlite3"), quick=["psycopg"])]

MESSAGES = [
    *[(f"m{number}", f"k{number % 3}") for number in range(6)],
    ("bad", "k3"),
    ("late", "k3"),
    ("free", None),
    ("m0", "k0"),  # a duplicate
    ("last", None),
]
KILLS = [3, pytest.param(10, marks=pytest.mark.slow)]


@contextmanager
def running(world: World, folder: Path, *point: str) -> Iterator[subprocess.Popen[bytes]]:
    """A consumer in a process of its own, which does not outlive the block."""
    command = [sys.executable, child.__file__, world.url, str(folder), *point]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        try:
            yield process
        finally:
            process.kill()


def finish(world: World, folder: Path) -> None:
    """Deliver everything again, to a consumer that is well."""
    point = child.Point(None)
    with child.make_inbox(world.url, point) as inbox:
        child.consume(inbox, folder, point)


def check_settled(world: World, folder: Path) -> None:
    """Every acked message is in the database."""
    states, effects = world.states(), world.effects()
    for id, kind in child.read_settled(folder):
        assert id in states
        if kind == "done":
            assert states[id] == "done"
            assert effects.count(id) == 1


def check_effects(world: World, messages: list[tuple[str, str | None]]) -> None:
    """Every message took effect once, as a whole, or waits with no effect at all."""
    waiting = {id for id, _ in messages if id.startswith(("bad", "late"))}
    done = {id for id, _ in messages} - waiting
    assert world.states() == dict.fromkeys(done, "done") | dict.fromkeys(waiting, "pending")
    assert world.effects() == sorted(done)
    assert {row[0] for row in world.query("SELECT body FROM effects")} == {"whole"}


@pytest.mark.parametrize("point", child.POINTS)
def test_a_consumer_killed_at_this_point_loses_nothing_and_repeats_nothing(
    world: World, tmp_path: Path, point: str
) -> None:
    child.write_deliveries(tmp_path, MESSAGES)
    world.migrate(world.inbox(migrate=False))
    with running(world, tmp_path, point) as process:
        output, _ = process.communicate()
    assert process.returncode == -signal.SIGKILL, output.decode()
    assert len(child.read_settled(tmp_path)) == child.BATCH  # it died in its second batch
    check_settled(world, tmp_path)
    finish(world, tmp_path)
    check_effects(world, MESSAGES)


@pytest.mark.parametrize("kills", KILLS)
def test_a_consumer_killed_again_and_again_loses_nothing_and_repeats_nothing(
    world: World, tmp_path: Path, kills: int
) -> None:
    chance = random.Random(kills)
    messages: list[tuple[str, str | None]] = [(f"m{n}", f"k{n % 7}") for n in range(600)]
    child.write_deliveries(tmp_path, messages)
    world.migrate(world.inbox(migrate=False))
    for _ in range(kills):
        with running(world, tmp_path) as process:
            kill_at_random(tmp_path, process, chance)
        check_settled(world, tmp_path)
    finish(world, tmp_path)
    check_effects(world, messages)


def kill_at_random(folder: Path, process: subprocess.Popen[bytes], chance: random.Random) -> None:
    """Kill it at a random point after it acked some more messages as done."""
    enough = done(folder) + chance.randint(1, 30)
    wait_until(
        lambda: process.poll() is not None or done(folder) >= enough, "the consumer does nothing"
    )
    process.kill()
    output, _ = process.communicate()
    assert process.returncode == -signal.SIGKILL, output.decode()


def done(folder: Path) -> int:
    if not (folder / "settled").exists():
        return 0
    return sum(kind == "done" for _, kind in child.read_settled(folder))
