"""Django: the ORM in handlers of messages and of batches, against atomic() per message."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from django.db import connections, models, transaction
from django.db.models import F

from bench.environment import Environment
from bench.measure import Contender, Process
from bench.scenarios.psycopg import through
from bench.work import INBOX
from bench.workload import Payment, per_account, read
from oncebox import Delivery, Django, Inbox
from support import django_settings as djangoworld

djangoworld.configure()


class Ledger(models.Model):
    """A payment that was booked."""

    id: models.BigAutoField[int, int] = models.BigAutoField(primary_key=True)
    message_id: models.TextField[str, str] = models.TextField()
    account: models.TextField[str, str] = models.TextField()
    amount: models.IntegerField[int, int] = models.IntegerField()

    class Meta:
        app_label = "bench"
        managed = False
        db_table = "ledger"


class Account(models.Model):
    """An account and its balance."""

    name: models.TextField[str, str] = models.TextField(primary_key=True)
    balance: models.BigIntegerField[int, int] = models.BigIntegerField()

    class Meta:
        app_label = "bench"
        managed = False
        db_table = "accounts"


@contextmanager
def contenders(environment: Environment) -> Iterator[list[Contender]]:
    """By hand, a handler per message, a handler per batch."""
    urls = [environment.postgres() for _ in range(3)]
    aliases = [_alias(url) for url in urls]
    names = [alias for alias, _ in aliases]
    single, many = Inbox("bench", Django(names[1])), Inbox("bench", Django(names[2]))
    single.on("payment")(_book(names[1]))
    many.on("payment", batch=True)(_book_all(names[2]))
    yield [
        Contender("naive", urls[0], by_hand(names[0])),
        Contender("per message", urls[1], through(single, environment.batch), goal=1.6),
        Contender("batch", urls[2], through(many, environment.batch), goal=4),
    ]
    for _, remove in aliases:
        remove()


def _alias(url: str) -> tuple[str, Any]:
    alias, remove = djangoworld.add_database(url)
    # As consumers set it. With Django's default of 0 every unit of work has to connect again, and
    # the hand-written loop, which never ends a request, would not.
    connections.settings[alias]["CONN_MAX_AGE"] = None
    return alias, remove


def by_hand(alias: str) -> Process:
    """What people write: a transaction per message."""

    def process(deliveries: Sequence[Delivery]) -> None:
        for delivery in deliveries:
            payment = read(delivery)
            with transaction.atomic(using=alias), connections[alias].cursor() as cursor:
                cursor.execute(INBOX, (payment.id, delivery.body))
                if cursor.rowcount:
                    change(alias, payment)

    return process


def change(alias: str, payment: Payment) -> None:
    """The work itself, the same on both sides."""
    account, amount = payment.account, payment.amount
    Ledger.objects.using(alias).create(message_id=payment.id, account=account, amount=amount)
    Account.objects.using(alias).filter(name=account).update(balance=F("balance") + amount)


def _book(alias: str) -> Any:
    def book(payment: Payment) -> None:
        change(alias, payment)

    return book


def _book_all(alias: str) -> Any:
    def book_all(payments: list[Payment]) -> None:
        Ledger.objects.using(alias).bulk_create(
            Ledger(message_id=p.id, account=p.account, amount=p.amount) for p in payments
        )
        sums = per_account(payments)
        accounts = Account.objects.using(alias).select_for_update().in_bulk(list(sums))
        for name, account in accounts.items():
            account.balance += sums[name]
        Account.objects.using(alias).bulk_update(accounts.values(), ["balance"])

    return book_all
