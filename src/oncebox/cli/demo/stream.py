"""The payments of the demo, in the order a broker delivers them, and the expected books."""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Iterator

import msgspec

ACCOUNTS = [f"account-{number:02}" for number in range(20)]
LATE_ACCOUNT = "account-99"
"""An account that is opened late: until then, no payment to it can be booked."""

RECEIPT = 0.002
"""Seconds that the receipt of a payment takes."""


def print_receipt() -> None:
    """The last step of both handlers: stands for other work, such as rendering a document."""
    time.sleep(RECEIPT)


class Expected(msgspec.Struct):
    """What the shop has sent."""

    payments: int = 0
    cents: int = 0
    deliveries: int = 0
    repeated: int = 0
    """Deliveries of an event that was delivered before."""
    doubled: int = 0
    """Orders that were submitted twice, with two event ids."""


class Stream:
    """Endless deliveries: one in five is a redelivery, one in fifty a double click."""

    def __init__(self, seed: int) -> None:
        self.expected = Expected()
        self._chance = random.Random(seed)
        self._recent: deque[bytes] = deque(maxlen=200)
        self._number = 0

    def lines(self, count: int) -> Iterator[bytes]:
        """The next deliveries, as JSON lines."""
        for _ in range(count):
            yield self._next()

    def late_account(self, count: int) -> Iterator[bytes]:
        """Payments that cannot be booked before their account is opened."""
        for _ in range(count):
            self.expected.deliveries += 1
            yield self._payment(LATE_ACCOUNT)

    def _next(self) -> bytes:
        self.expected.deliveries += 1
        chance = self._chance.random()
        if self._recent and chance < 0.20:
            self.expected.repeated += 1
            return self._chance.choice(self._recent)
        if self._recent and chance < 0.22:
            self.expected.doubled += 1
            return self._double_click()
        line = self._payment(self._chance.choice(ACCOUNTS))
        self._recent.append(line)
        return line

    def _payment(self, account: str) -> bytes:
        self._number += 1
        cents = self._chance.randint(100, 10_000)
        self.expected.payments += 1
        self.expected.cents += cents
        number = self._number
        return _line(
            id=f"evt-{number}", type="payment.made", order=f"order-{number}", account=account,
            cents=cents,
        )  # fmt: skip

    def _double_click(self) -> bytes:
        event = msgspec.json.decode(self._chance.choice(self._recent))
        self._number += 1
        return _line(**{**event, "id": f"evt-{self._number}-again"})


def _line(**event: str | int) -> bytes:
    return msgspec.json.encode(event) + b"\n"
