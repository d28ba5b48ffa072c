"""Handlers write with the models: their connection is in the transaction of the claim."""

from dataclasses import dataclass

from oncebox import Django, Inbox

from .models import Invoice

inbox = Inbox("invoices", Django())


@dataclass
class Confirmed:
    order: str
    cents: int


@dataclass
class Paid:
    order: str


@inbox.on("order.confirmed")
def create_invoice(confirmed: Confirmed) -> None:
    Invoice.objects.create(order=confirmed.order, cents=confirmed.cents)


@inbox.on("order.paid")
def mark_as_paid(paid: Paid) -> None:
    invoice = Invoice.objects.get(order=paid.order)
    invoice.is_paid = True
    invoice.save()
