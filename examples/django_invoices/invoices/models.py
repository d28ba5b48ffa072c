"""Invoices: one per order, paid or not."""

from django.db import models


class Invoice(models.Model):
    order = models.CharField(max_length=20)
    cents = models.IntegerField()
    is_paid = models.BooleanField(default=False)
