"""The payments of the demo, in the order a broker delivers them, and the expected books."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator

import msgspec

ACCOUNTS = [f"account-{number:02}" for number in range(20)]
CLOSED = "account-99"
"""An account that does not exist at first: a payment to it cannot be booked."""


class Expected(msgspec.Struct):
    """The expected content of the books."""

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

    def failing_payment(self) -> bytes:
        """A payment that cannot be booked before its account exists."""
        self._number += 1
        self.expected.deliveries += 1
        self.expected.payments += 1
        self.expected.cents += 4200
        return _line("evt-failing", f"order-{self._number}", CLOSED, 4200)

    def _next(self) -> bytes:
        self.expected.deliveries += 1
        chance = self._chance.random()
        if self._recent and chance < 0.20:
            self.expected.repeated += 1
            return self._chance.choice(self._recent)
        if self._recent and chance < 0.22:
            self.expected.doubled += 1
            return self._double_click()
        return self._payment()

    def _payment(self) -> bytes:
        self._number += 1
        cents = self._chance.randint(100, 10_000)
        self.expected.payments += 1
        self.expected.cents += cents
        account = self._chance.choice(ACCOUNTS)
        line = _line(f"evt-{self._number}", f"order-{self._number}", account, cents)
        self._recent.append(line)
        return line

    def _double_click(self) -> bytes:
        event = msgspec.json.decode(self._chance.choice(self._recent))
        self._number += 1
        event["id"] = f"evt-{self._number}-again"
        return msgspec.json.encode(event) + b"\n"


def _line(id: str, order: str, account: str, cents: int) -> bytes:
    payment = {"order": order, "account": account, "cents": cents}
    return msgspec.json.encode({"id": id, "type": "payment.made", "payment": payment}) + b"\n"
