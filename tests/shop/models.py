from django.db import models


class Effect(models.Model):
    id = models.CharField(max_length=50, primary_key=True)
    body = models.TextField()

    class Meta:
        managed = False
        db_table = "effects"


class Account(models.Model):
    name = models.CharField(max_length=50, primary_key=True)
    balance = models.IntegerField()

    class Meta:
        managed = False
        db_table = "accounts"
