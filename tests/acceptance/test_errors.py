"""Errors of the command line say what happened, why, and what to do; never a traceback."""

from __future__ import annotations

import os
from pathlib import Path

import psycopg
import pytest

from .conftest import Command, query

pytestmark = pytest.mark.parametrize("database", ["sqlite"], indirect=True)

MODELS = """
from django.db import models
from oncebox import Inbox

class Order(models.Model):
    class Meta:
        app_label = "shop"

inbox = Inbox("shop", "sqlite:///shop.db")
"""


def last_line(done: object) -> str:
    """The error; nothing else but what Click prints before it."""
    text = str(getattr(done, "stderr"))  # noqa: B009
    assert "Traceback" not in text
    return text.splitlines()[-1]


def test_a_file_that_is_not_a_database_is_named(
    oncebox: Command, folder: Path, environment: dict[str, str]
) -> None:
    (folder / "notes.txt").write_text("These are notes. " * 100)
    environment["DATABASE"] = "sqlite:///notes.txt"
    done = oncebox("migrate", "billing:inbox")
    assert done.returncode != 0
    assert "file is not a SQLite database: check the path in the URL" in last_line(done)


def test_a_database_of_an_unknown_kind_is_refused(
    oncebox: Command, environment: dict[str, str]
) -> None:
    environment["DATABASE"] = "mysql://root@localhost/shop"
    done = oncebox("migrate", "billing:inbox")
    assert done.returncode == 2
    assert "mysql" in last_line(done)
    assert "postgresql://" in last_line(done)


def test_a_file_instead_of_a_module_is_explained(oncebox: Command) -> None:
    done = oncebox("status", "billing.py:inbox")
    assert done.returncode == 2
    assert "'billing.py:inbox' names a file: write the module, as in billing:inbox" in done.stderr


def test_an_unknown_database_is_an_error_in_one_line(
    oncebox: Command, environment: dict[str, str], postgres_url: str
) -> None:
    environment["DATABASE"] = postgres_url.rpartition("/")[0] + "/nowhere"
    done = oncebox("migrate", "billing:inbox")
    assert done.returncode != 0
    assert len(done.stderr.splitlines()) == 1
    assert '"nowhere" does not exist' in done.stderr
    assert "ack" not in done.stderr


def test_a_role_without_privileges_is_pointed_to_the_grants(
    oncebox: Command, environment: dict[str, str], postgres_url: str
) -> None:
    environment["DATABASE"] = postgres_url
    assert oncebox("migrate", "billing:inbox").returncode == 0
    query(
        postgres_url,
        "DO $$ BEGIN CREATE ROLE reader LOGIN; EXCEPTION WHEN duplicate_object THEN END $$",
    )
    environment["DATABASE"] = postgres_url.replace("postgres@", "reader@")
    done = oncebox("status", "billing:inbox")
    assert done.returncode != 0
    assert "permission denied" in last_line(done)
    assert "`oncebox sql APP --grants ROLE`" in last_line(done)
    environment["DATABASE"] = postgres_url
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(oncebox("sql", "billing:inbox", "--grants", "reader").stdout.encode())
    environment["DATABASE"] = postgres_url.replace("postgres@", "reader@")
    assert oncebox("status", "billing:inbox").returncode == 0


def test_django_is_set_up_where_its_settings_are_named(
    oncebox: Command, folder: Path, environment: dict[str, str]
) -> None:
    (folder / "shop").mkdir()
    (folder / "shop" / "__init__.py").touch()
    (folder / "shop" / "models.py").write_text(MODELS)
    (folder / "settings.py").write_text("INSTALLED_APPS = ['shop']\n")
    environment["DJANGO_SETTINGS_MODULE"] = "settings"
    environment["PYTHONPATH"] = os.fspath(folder)
    done = oncebox("migrate", "shop.models:inbox")
    assert done.returncode == 0, done.stderr
