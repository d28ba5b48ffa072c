"""Django for the tests: configured once, with a database alias per test."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any
from urllib.parse import urlsplit

import django
from django.conf import settings

_number = count(1)


def configure() -> None:
    """Set Django up; the second time nothing happens."""
    if not settings.configured:
        settings.configure(
            DATABASES={"default": {"ENGINE": "django.db.backends.dummy"}},
            INSTALLED_APPS=["oncebox.contrib.django", "support.django_app"],
            USE_TZ=True,
            DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
        )
        django.setup()


def add_database(url: str) -> tuple[str, Callable[[], Any]]:
    """An alias for this database, and the function that closes and removes it."""
    configure()
    from django.db import connections

    alias = f"test{next(_number)}"
    databases: Any = connections.settings
    databases[alias] = connections.configure_settings(
        {"default": databases["default"], alias: _settings(url)}
    )[alias]

    def remove() -> None:
        connections[alias].close()
        del connections[alias]
        del databases[alias]

    return alias, remove


def _settings(url: str) -> dict[str, Any]:
    if url.startswith("sqlite"):
        return {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": url.removeprefix("sqlite:///"),
            "OPTIONS": {
                "transaction_mode": "IMMEDIATE",
                "timeout": 30,
                "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL;",
            },
        }
    parts = urlsplit(url)
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": parts.path[1:],
        "USER": parts.username,
        "HOST": parts.hostname,
        "PORT": parts.port,
    }
