"""When the limit of a gap is over."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import oncebox.operations.gaps
from oncebox import Consumer, Gaps, Worker
from oncebox.brokers.contract import Batch
from oncebox.brokers.file import FileSource
from support.sequences import (
    Clock,
    SequenceHarness,
    age_gaps,
    make_keeper,
    set_lag,
    step,
    steps,
    watch,
)
from support.services import wait_until
from support.tables import audit_entries
from support.worlds import BOTH, World


@pytest.mark.only(BOTH)
def test_a_worker_waits_the_whole_limit_itself_before_it_skips_a_gap(
    world: World, harness: SequenceHarness, clock: Clock
) -> None:
    """A worker does not know what was before it began: all consumers may have been down."""
    harness.process(*steps(2))
    age_gaps(world, 3600)
    keeper = make_keeper(harness)
    assert not watch(keeper, clock, 0)
    assert not watch(keeper, clock, 59)
    assert watch(keeper, clock, 2)
    assert world.states() == {"k2": "pending"}


@pytest.mark.only(BOTH)
def test_a_worker_checks_gaps_once_a_second(
    world: World, harness: SequenceHarness, clock: Clock
) -> None:
    keeper = make_keeper(harness, hurry=True)
    assert not watch(keeper, clock, 0)
    harness.process(*steps(2))
    age_gaps(world, 61)
    assert not watch(keeper, clock, 0.9)
    assert watch(keeper, clock, 0.2)


@pytest.mark.only(BOTH)
def test_the_limit_of_a_gap_does_not_run_while_a_source_lags(
    world: World, harness: SequenceHarness, clock: Clock
) -> None:
    keeper = make_keeper(harness)
    harness.process(*steps(2))
    age_gaps(world, 3600)
    set_lag(world, 10)
    assert not watch(keeper, clock, 61)
    assert not watch(keeper, clock, 3600)
    set_lag(world, 0)
    assert not watch(keeper, clock, 59)
    set_lag(world, 1)
    assert not watch(keeper, clock, 10)
    set_lag(world, 0)
    assert not watch(keeper, clock, 59)
    assert watch(keeper, clock, 2)


@pytest.mark.only(BOTH)
def test_a_lag_that_ended_before_the_limit_extends_the_wait(
    world: World, harness: SequenceHarness, clock: Clock
) -> None:
    keeper = make_keeper(harness)
    harness.process(*steps(2))
    set_lag(world, 10)
    assert not watch(keeper, clock, 3600)
    set_lag(world, 0)
    age_gaps(world, 61)
    assert not watch(keeper, clock, 59)
    assert watch(keeper, clock, 2)


@pytest.mark.only(BOTH)
def test_a_partition_without_an_owner_lags(
    world: World, harness: SequenceHarness, clock: Clock
) -> None:
    keeper = make_keeper(harness)
    harness.process(*steps(2))
    age_gaps(world, 3600)
    set_lag(world, 0)
    world.execute("UPDATE oncebox_position SET owner = NULL")
    assert not watch(keeper, clock, 61)
    set_lag(world, None)
    assert watch(keeper, clock, 61), "nothing is to come of what has ended"


@pytest.mark.only(BOTH)
def test_one_drain_pass_waits_for_lagging_sources_too(
    world: World, harness: SequenceHarness
) -> None:
    harness.process(*steps(2))
    age_gaps(world, 3600)
    set_lag(world, 3)
    assert harness.drain() == {}
    set_lag(world, 0)
    assert harness.drain() == {"done": 1}


class HaltingSource(FileSource):
    """A file that is read to its end only when it is let."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.let = threading.Event()
        self._has_begun = False

    def read(self, limit: int, seconds: float) -> Batch | None:
        if self._has_begun and not self.let.wait(0.05):
            return None
        self._has_begun = True
        return super().read(1, seconds)


@pytest.mark.only(BOTH)
def test_a_gap_is_not_skipped_while_the_source_has_messages(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real source, its consumer and a drainer."""
    monkeypatch.setattr(oncebox.operations.gaps, "CHECK_INTERVAL", 0.01)
    harness = SequenceHarness(world, gaps=Gaps(limit=timedelta(seconds=0.1)))
    lines = [step(n, partitionkey="k").body + b"\n" for n in (2, 1)]
    (tmp_path / "events").write_bytes(b"".join(lines))
    source = HaltingSource(tmp_path / "events")
    drainer = Worker(harness.inbox, poll=0.02)
    drainer.on_beat = lambda waits: drainer.stop() if len(harness.runs) == 2 else None
    services = [Consumer(harness.inbox, source, mode="stored"), drainer]
    threads = [threading.Thread(target=service.run) for service in services]
    for thread in threads:
        thread.start()
    long = timedelta(seconds=0.6)
    wait_until(
        lambda: any(datetime.now(UTC) - g.waiting_since > long for g in harness.gaps("find")),
        "the gap does not grow old",
    )
    source.let.set()
    for thread in threads:
        thread.join(60)
    assert harness.ran() == ["k1", "k2"]
    assert audit_entries(world) == []
