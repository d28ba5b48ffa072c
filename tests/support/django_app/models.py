"""The business tables of the tests."""

from typing import Any

from django.db import models


class Effect(models.Model):
    id: Any = models.CharField(max_length=50, primary_key=True)
    body: Any = models.TextField()

    class Meta:
        managed = False
        db_table = "effects"


class Account(models.Model):
    name: Any = models.CharField(max_length=50, primary_key=True)
    balance: Any = models.IntegerField()

    class Meta:
        managed = False
        db_table = "accounts"
