"""The soak on Kafka: workers are killed, partitions move, the broker restarts; nothing shows."""

from __future__ import annotations

import os
import random
import threading
import time
from contextlib import suppress

import pytest
from confluent_kafka import KafkaException

from broker.conftest import Shop, Worker, orders
from services import wait_until

MESSAGES = int(os.environ.get("ONCEBOX_SOAK_MESSAGES", "3000"))
KEYS = 200
KILLS = 6 if MESSAGES < 10_000 else 60


def duplicated(sent: list[tuple[str, int]], chance: random.Random) -> list[tuple[str, int]]:
    """Every fifth one comes again, some time later."""
    again = [(place + chance.uniform(1, 500), order) for place, order in enumerate(sent)]
    late = [entry for entry in again if chance.random() < 0.2]
    both = [*((float(place), order) for place, order in enumerate(sent)), *late]
    return [order for _, order in sorted(both, key=lambda entry: entry[0])]


class Watch:
    """Looks all the time whether Kafka was told more than is in the database."""

    def __init__(self, shop: Shop) -> None:
        self._shop = shop
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.looks = 0
        self.findings: list[str] = []

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(0.3):
            with suppress(KafkaException):  # the broker restarts
                settled = self._shop.settled()
                position = self._shop.position()
                self.looks += 1
                for part, offset in settled.items():
                    if offset > position.get(part, 0):
                        self.findings.append(f"{part}: {offset} is beyond {position.get(part)}")


def harass(shop: Shop, names: list[str], chance: random.Random) -> int:
    """Kill workers with -9 and start them again; once, the broker as well."""
    staff: dict[str, Worker] = {name: shop.hire(name, batch=40) for name in names}
    for kill in range(KILLS):
        time.sleep(chance.uniform(0.5, 2.0))
        if kill == KILLS // 2:
            shop.kafka.crash()
            shop.kafka.restart()
        name = chance.choice(names)
        staff[name].kill()
        staff[name] = shop.hire(name, batch=40)
    return KILLS


@pytest.mark.slow
@pytest.mark.crash
@pytest.mark.timeout(0 if MESSAGES > 10_000 else 150)
@pytest.mark.parametrize("protocol", ["classic", "consumer"], indirect=True)
def test_every_effect_is_there_once_in_the_order_of_its_key(shop: Shop, protocol: str) -> None:
    chance = random.Random(f"{MESSAGES} {protocol}")
    shop.open(4)
    sent = orders(MESSAGES, KEYS)
    stream = duplicated(sent, chance)
    half = len(stream) // 2
    shop.send(stream[:half])
    rest = threading.Thread(target=shop.send_slowly, args=(stream[half:], KILLS * 0.8))
    with Watch(shop) as watch:
        rest.start()
        harass(shop, ["one", "two", "three"], chance)
        rest.join()
        wait_until(lambda: len(shop.effects()) >= MESSAGES, "not everything took effect")
        wait_until(
            lambda: shop.query("SELECT count(*) FROM oncebox_pending") == [(0,)], "some wait"
        )
        wait_until(lambda: shop.settled() == shop.position(), "Kafka is not told everything")
        shop.dismiss()
    shop.check(sent)
    assert watch.findings == []
    assert watch.looks > 3
    # The broker may have taken something twice when it was killed, but nothing less.
    assert sum(shop.position().values()) >= len(stream)
