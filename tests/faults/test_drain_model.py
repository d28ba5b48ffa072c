"""The order of keys survives whatever dies, and the model that says so sees when it does not.

`make torture` runs the model for longer:

    ONCEBOX_TORTURE_SEEDS     how many runs on each database
    ONCEBOX_TORTURE_KEYS      how many keys; 10000 if not given
    ONCEBOX_TORTURE_STRIKES   how often a worker is killed or suspended; 100 if not given
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from faults.drain_worker import make_inbox
from faults.sql_functions import replace_in
from faults.torture import Model, Size
from oncebox import Delivery
from oncebox.model.ordering import lane
from support.worlds import World

pytestmark = [pytest.mark.crash, pytest.mark.only(("psycopg", "sqlite3"))]

SMALL = Size(keys=30, hot=60, longest=8, free=10, strikes=10)
ORDERLY = Size(keys=40, hot=400, longest=1, flaky=0, bad=0)
FRAGILE = Size(keys=10, hot=400, longest=800, flaky=0.25, bad=0.05)
"""For proofs, which end with the first violation: many failures show what is out of order."""


def runs() -> Iterator[Any]:
    """The seeds and sizes of the model: short ones, and long ones if those are asked for."""
    yield pytest.param(1, SMALL, id="small-1")
    yield pytest.param(2, SMALL, id="small-2", marks=pytest.mark.slow)
    keys = int(os.environ.get("ONCEBOX_TORTURE_KEYS", "10000"))
    strikes = int(os.environ.get("ONCEBOX_TORTURE_STRIKES", "100"))
    large = Size(keys=keys, hot=keys // 4, longest=5, free=keys // 20, strikes=strikes)
    for seed in range(int(os.environ.get("ONCEBOX_TORTURE_SEEDS", "0"))):
        yield pytest.param(seed, large, id=f"large-{seed}", marks=pytest.mark.timeout(3600))


@pytest.fixture(autouse=True)
def tables(world: World) -> None:
    world.migrate(world.inbox(migrate=False))


@pytest.mark.parametrize(("seed", "size"), list(runs()))
def test_every_key_keeps_its_order_although_workers_crash(
    world: World, tmp_path: Path, seed: int, size: Size
) -> None:
    model = Model(world, tmp_path, seed, size)
    model.run()
    assert model.violations() == [], model.log()
    assert model.killed, "no worker was killed"


@pytest.mark.only(("psycopg",))
@pytest.mark.parametrize(("seed", "size"), list(runs()))
def test_every_key_keeps_its_order_where_searches_begin_at_floors(
    world: World, tmp_path: Path, seed: int, size: Size
) -> None:
    model = Model(world, tmp_path, seed, size, without="full searches")
    model.run()
    assert model.violations() == [], model.log()
    assert model.killed, "no worker was killed"


@pytest.mark.only(("psycopg",))
def test_no_key_of_another_lane_waits_for_the_end_of_a_hot_key(
    world: World, tmp_path: Path
) -> None:
    model = Model(world, tmp_path, 1, ORDERLY)
    first_the_hot = sorted(model.entries, key=lambda entry: entry.key > 0)
    receive(world, [entry.delivery() for entry in first_the_hot])
    model.drain()
    assert model.violations() == [], model.log()
    keys = [key for key, _ in model.ledger()]
    others = {key for key in keys if lane(f"key {key}") != lane("key 0")}
    assert max(place for place, key in enumerate(keys) if key in others) < len(keys) * 3 / 4


@pytest.mark.slow
@pytest.mark.only(("psycopg",))
def test_without_the_locks_of_keys_the_model_finds_violations(world: World, tmp_path: Path) -> None:
    assert finds_violations(world, tmp_path, without="key locks")


@pytest.mark.slow
def test_without_blocked_followers_the_model_finds_violations(world: World, tmp_path: Path) -> None:
    assert finds_violations(world, tmp_path, without="blocking")


@pytest.mark.slow
@pytest.mark.only(("psycopg",))
def test_without_the_locks_of_lanes_the_model_finds_violations(
    world: World, tmp_path: Path
) -> None:
    """Either of two guards is enough: the lane's lock, and that a batch is taken out as a whole."""
    replace_in(world, "oncebox_take", "lane = v_lane FOR UPDATE SKIP LOCKED", "lane = v_lane")
    replace_in(world, "oncebox_remove", "v_removed <> cardinality(p_seqs)", "false")
    assert finds_violations(world, tmp_path)


@pytest.mark.slow
@pytest.mark.only(("psycopg",))
def test_if_rows_ready_again_counted_as_fresh_the_model_would_find_violations(
    world: World, tmp_path: Path
) -> None:
    replace_in(world, "oncebox_release", ", fresh = false", "")
    replace_in(world, "oncebox_take", ", fresh = false", "")
    world.execute("ALTER TABLE oncebox_pending ALTER COLUMN fresh SET DEFAULT true")
    assert finds_violations(world, tmp_path, without="full searches")


def finds_violations(world: World, folder: Path, *, without: str = "") -> bool:
    return Model(world, folder, 1, FRAGILE, without=without).finds_violations()


def receive(world: World, deliveries: list[Delivery]) -> None:
    with make_inbox(world.url) as inbox:
        inbox.on("step")(lambda payload: None)
        inbox.receive(deliveries)
