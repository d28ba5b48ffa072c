"""The Django application."""

from __future__ import annotations

from django.apps import AppConfig


class OnceboxConfig(AppConfig):
    """The Django app that creates the tables of oncebox."""

    name = "oncebox.contrib.django"
    label = "oncebox"
    verbose_name = "oncebox"
    default_auto_field = "django.db.models.BigAutoField"
