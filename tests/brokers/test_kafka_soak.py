"""Soak test on Kafka: workers crash, partitions move and the broker restarts."""

from __future__ import annotations

import os
import random
import threading
import time
from contextlib import suppress

import pytest
from confluent_kafka import KafkaException

from brokers.conftest import Deployment, Worker, orders
from support.services import wait_until

MESSAGES = int(os.environ.get("ONCEBOX_SOAK_MESSAGES", "3000"))
KEYS = 200
KILLS = 6 if MESSAGES < 10_000 else 60


def duplicated(sent: list[tuple[str, int]], chance: random.Random) -> list[tuple[str, int]]:
    """Send every fifth order again, some time later."""
    again = [(place + chance.uniform(1, 500), order) for place, order in enumerate(sent)]
    late = [entry for entry in again if chance.random() < 0.2]
    both = [*((float(place), order) for place, order in enumerate(sent)), *late]
    return [order for _, order in sorted(both, key=lambda entry: entry[0])]


class OffsetWatch:
    """Checks all the time that no committed offset is ahead of the position in the database."""

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.checks = 0
        self.findings: list[str] = []

    def __enter__(self) -> OffsetWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(0.3):
            with suppress(KafkaException):  # the broker restarts
                committed = self._deployment.committed()
                position = self._deployment.position()
                self.checks += 1
                for partition, offset in committed.items():
                    if offset > position.get(partition, 0):
                        self.findings.append(
                            f"{partition}: {offset} is beyond {position.get(partition)}"
                        )


def crash_workers(deployment: Deployment, names: list[str], chance: random.Random) -> int:
    """Kill workers with -9 and start them again; restart the broker once."""
    workers: dict[str, Worker] = {name: deployment.start_worker(name, batch=40) for name in names}
    for kill in range(KILLS):
        time.sleep(chance.uniform(0.5, 2.0))
        if kill == KILLS // 2:
            deployment.kafka.crash()
            deployment.kafka.restart()
        name = chance.choice(names)
        workers[name].kill()
        workers[name] = deployment.start_worker(name, batch=40)
    return KILLS


@pytest.mark.slow
@pytest.mark.crash
@pytest.mark.timeout(0 if MESSAGES > 10_000 else 150)
@pytest.mark.parametrize("protocol", ["classic", "consumer"], indirect=True)
def test_every_effect_is_there_once_in_the_order_of_its_key(
    deployment: Deployment, protocol: str
) -> None:
    chance = random.Random(f"{MESSAGES} {protocol}")
    deployment.create_topic(4)
    sent = orders(MESSAGES, KEYS)
    stream = duplicated(sent, chance)
    half = len(stream) // 2
    deployment.send(stream[:half])
    rest = threading.Thread(target=deployment.send_slowly, args=(stream[half:], KILLS * 0.8))
    with OffsetWatch(deployment) as watch:
        rest.start()
        crash_workers(deployment, ["one", "two", "three"], chance)
        rest.join()
        wait_until(lambda: len(deployment.effects()) >= MESSAGES, "not every message was processed")
        wait_until(
            lambda: deployment.query("SELECT count(*) FROM oncebox_pending") == [(0,)],
            "some messages are pending",
        )
        wait_until(
            lambda: deployment.committed() == deployment.position(), "not all offsets are committed"
        )
        deployment.stop_workers()
    deployment.check(sent)
    assert watch.findings == []
    assert watch.checks > 3
    # A broker that crashed may have stored some messages twice.
    assert sum(deployment.position().values()) >= len(stream)
