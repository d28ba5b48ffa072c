"""Years of operation survive every crash, and the model that says so finds missing guards.

`make torture` runs the model for longer, with the variables of test_drain_model; of keys there are
fewer, because each of them lives through many days.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from faults.retention_model import RetentionModel, Span
from faults.sql_functions import replace_in
from support.worlds import World

pytestmark = [pytest.mark.crash, pytest.mark.only(("psycopg", "sqlite3"))]

TINY = Span(keys=8, hot=12, longest=4, free=6, generations=3, replays=4, strikes=6)
SMALL = Span(keys=30, hot=60, longest=8, free=15, generations=5, replays=16, strikes=20)
FRAGILE = Span(
    keys=8,
    hot=60,
    longest=60,
    free=10,
    generations=4,
    replays=20,
    flaky=0.15,
    bad=0.03,
    stale=0.1,
    missing=0.08,
    late=0.15,
    heartbeat_timeout=1.5,
)
"""For proofs, which end with the first violation: much fails, and much comes late."""

DEADLY = msgspec.structs.replace(FRAGILE, flaky=0.05, bad=0.12)
"""For proofs about dead letters: several grow old before an operator ends them."""

CALM = Span(
    keys=300,
    hot=10,
    longest=10,
    generations=3,
    replays=100,
    filters=("ids",),
    cancelled=0,
    consumers=("consumer", "consumer"),
    flaky=0,
    bad=0,
    stale=0,
    missing=0,
    late=0,
    archive=False,
)
"""For proofs: most messages run as they arrive, and replays are small."""

BOUND = 5
"""How many runs may end without a violation before the proof is given up."""


def runs() -> Iterator[Any]:
    """The seeds and sizes of the model: short ones, and long ones if those are asked for."""
    yield pytest.param(1, TINY, id="tiny-1")
    for seed, archive in ((1, True), (2, False)):
        small = msgspec.structs.replace(SMALL, archive=archive)
        yield pytest.param(seed, small, id=f"small-{seed}", marks=pytest.mark.slow)
    keys = int(os.environ.get("ONCEBOX_TORTURE_KEYS", "10000")) // 50
    strikes = int(os.environ.get("ONCEBOX_TORTURE_STRIKES", "100"))
    large = partial(
        Span,
        keys=keys,
        hot=keys,
        longest=10,
        free=keys // 5,
        generations=12,
        replays=60,
        strikes=strikes,
    )
    for seed in range(int(os.environ.get("ONCEBOX_TORTURE_SEEDS", "0"))):
        size = large(archive=seed % 2 == 0)
        yield pytest.param(seed, size, id=f"large-{seed}", marks=pytest.mark.timeout(3600))


@pytest.fixture(autouse=True)
def tables(world: World) -> None:
    world.migrate(world.inbox(migrate=False))


@pytest.mark.parametrize(("seed", "size"), list(runs()))
def test_everything_runs_once_and_in_order_under_retention_and_replays(
    world: World, tmp_path: Path, seed: int, size: Span
) -> None:
    model = RetentionModel(world, tmp_path, seed, size)
    model.run()
    assert model.violations() == [], model.log()
    assert model.killed, "no worker was killed"
    assert world.query("SELECT count(*) FROM purged")[0][0], "nothing was purged"


@pytest.mark.slow
@pytest.mark.parametrize("size", [FRAGILE, DEADLY, CALM], ids=["fragile", "deadly", "calm"])
def test_with_all_guards_the_model_finds_nothing(world: World, tmp_path: Path, size: Span) -> None:
    model = RetentionModel(world, tmp_path, 1, size)
    assert not model.finds_violations(), model.violations()


# -- proofs ---------------------------------------------------------------------------------------

asked_for = pytest.mark.skipif(
    "ONCEBOX_TORTURE_SEEDS" not in os.environ, reason="proofs need minutes: make torture"
)


def proof(test: Any) -> Any:
    """A test that a guard is needed."""
    return asked_for(pytest.mark.slow(pytest.mark.timeout(600)(test)))


@proof
@pytest.mark.only(("psycopg",))
@pytest.mark.parametrize(
    ("guard", "size"),
    [("key locks of replays", CALM), ("one feeder", FRAGILE), ("purge lock", CALM)],
)
def test_without_a_lock_the_model_finds_violations(
    world: World, tmp_path: Path, guard: str, size: Span
) -> None:
    assert finds_violations(world, tmp_path, size, without=guard)


@proof
@pytest.mark.parametrize(
    ("guard", "size"),
    [
        ("release of numbers", FRAGILE),
        ("items with messages", FRAGILE),
        ("watermark", FRAGILE),
        ("watermark that waits", FRAGILE),
        ("select_batch with replays", FRAGILE),
    ],
)
def test_without_a_guard_the_model_finds_violations(
    world: World, tmp_path: Path, guard: str, size: Span
) -> None:
    assert finds_violations(world, tmp_path, size, without=guard)


@proof
@pytest.mark.only(("sqlite3",))
def test_without_the_release_of_replayed_messages_the_model_finds_violations(
    world: World, tmp_path: Path
) -> None:
    assert finds_violations(world, tmp_path, FRAGILE, without="release of replays")


@proof
@pytest.mark.parametrize(
    ("table", "size"),
    [
        ("awaiting_sequence", FRAGILE),
        ("pending", FRAGILE),
        ("dead_letter", DEADLY),
        ("replay_item", FRAGILE),
    ],
)
def test_if_unfinished_messages_are_purged_the_model_finds_violations(
    world: World, tmp_path: Path, table: str, size: Span
) -> None:
    assert finds_violations(world, tmp_path, size, blind_for=table)


def finds_violations(
    world: World, folder: Path, size: Span, *, without: str = "", blind_for: str = ""
) -> bool:
    """Some runs, each with tables of its own, until one finds something."""
    for seed in range(1, BOUND + 1):
        if seed > 1:
            drop_tables(world)
        if blind_for:
            make_blind(world, blind_for)
        if without == "watermark" and world.is_postgres:
            replace_in(world, "oncebox_claim", "WHEN m.produced < v_watermark", "WHEN false")
            replace_in(world, "oncebox_claim_single", "WHEN p_produced < v_watermark", "WHEN false")
        own = folder / str(seed)
        own.mkdir()
        if RetentionModel(world, own, seed, size, without=without).finds_violations():
            return True
    return False


def drop_tables(world: World) -> None:
    """An empty database."""
    if world.is_postgres:
        world.execute("DROP SCHEMA public CASCADE")
        world.execute("CREATE SCHEMA public")
    else:
        for path in Path(world.url.removeprefix("sqlite:///")).parent.glob("inbox.db*"):
            path.unlink()
    world.migrate(world.inbox(migrate=False))


def make_blind(world: World, table: str) -> None:
    """The purge does not look into a table."""
    text = "SELECT sql FROM sqlite_master WHERE name = 'oncebox_finished'"
    if world.is_postgres:
        text = "SELECT 'CREATE VIEW oncebox_finished AS ' || pg_get_viewdef('oncebox_finished')"
    view = world.query(text)[0][0].replace('"', "")
    assert f"FROM oncebox_{table} " in view
    nothing = f"(SELECT * FROM oncebox_{table} WHERE false)"
    world.execute("DROP VIEW oncebox_finished")
    world.execute(view.replace(f"FROM oncebox_{table} ", f"FROM {nothing} "))
