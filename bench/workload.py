"""The workload: payments to a thousand accounts, every fifth delivery a repetition."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator, Sequence
from typing import TypeVar

import msgspec

from oncebox import Delivery

ACCOUNTS = [f"account-{number:04}" for number in range(1000)]
EVERY = 5
"""One delivery in this many repeats an earlier one."""
RECENT = 500
"""How many messages back a repetition may come from: the same batch, or one long committed."""

T = TypeVar("T")


class Payment(msgspec.Struct):
    """The payload. It carries its message's id, so that handlers of batches know it as well."""

    id: str
    account: str
    amount: int


class Event(msgspec.Struct):
    """The envelope, as far as a hand-written consumer reads it."""

    id: str
    data: Payment


class Totals(msgspec.Struct):
    """The totals of the business tables if every payment is booked once."""

    payments: int = 0
    balances: dict[str, int] = msgspec.field(default_factory=lambda: dict.fromkeys(ACCOUNTS, 0))


class Stream:
    """An endless stream of deliveries that knows the expected totals."""

    def __init__(
        self,
        seed: int = 7,
        *,
        repeats: bool = True,
        accounts: Sequence[str] = ACCOUNTS,
        clock: int = 1_767_225_600_000,
    ) -> None:
        self.totals = Totals()
        self._repeats = repeats
        self._accounts = accounts
        self._random = random.Random(seed)
        self._recent: deque[Delivery] = deque(maxlen=RECENT)
        self._clock = clock

    def take(self, count: int) -> list[Delivery]:
        """The next deliveries."""
        return [self._next(number) for number in range(1, count + 1)]

    def _next(self, number: int) -> Delivery:
        if self._repeats and number % EVERY == 0 and self._recent:
            return self._random.choice(self._recent)
        delivery = self._payment()
        self._recent.append(delivery)
        return delivery

    def _payment(self) -> Delivery:
        payment = Payment(
            self._id(), self._random.choice(self._accounts), self._random.randint(1, 100)
        )
        self.totals.payments += 1
        self.totals.balances[payment.account] += payment.amount
        return _delivery(payment)

    def _id(self) -> str:
        """A UUIDv7: its time, its version, its variant, and chance for the rest."""
        self._clock += 1
        low = self._random.getrandbits(62)
        digits = f"{self._clock:012x}7{self._random.getrandbits(12):03x}{2 << 62 | low:016x}"
        return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def _delivery(payment: Payment) -> Delivery:
    """A CloudEvent, which is what oncebox expects where it is not told otherwise."""
    event = {
        "specversion": "1.0",
        "id": payment.id,
        "source": "bank",
        "type": "payment",
        "data": payment,
    }
    return Delivery(msgspec.json.encode(event), key=payment.account)


_EVENT = msgspec.json.Decoder(Event)


def read(delivery: Delivery) -> Payment:
    """The payment in a delivery, for the hand-written consumers."""
    return _EVENT.decode(delivery.body).data


def batches(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """The items in batches."""
    return (items[start : start + size] for start in range(0, len(items), size))


def per_account(payments: Sequence[Payment]) -> dict[str, int]:
    """How much each account gets, for the handlers of batches."""
    sums: dict[str, int] = {}
    for payment in payments:
        sums[payment.account] = sums.get(payment.account, 0) + payment.amount
    return sums
