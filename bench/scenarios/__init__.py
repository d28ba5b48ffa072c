"""The scenarios: one per library. Each opens its contenders, the hand-written one first."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import msgspec

from bench.environment import Environment
from bench.measure import Contender
from bench.scenarios import (
    django,
    psycopg,
    psycopg_async,
    sqlalchemy_core,
    sqlalchemy_orm,
    sqlite,
)


class Scenario(msgspec.Struct, frozen=True):
    """The contenders of one library."""

    name: str
    open: Callable[[Environment], AbstractContextManager[list[Contender]]]
    messages: int
    """Per round: enough for steady figures, few enough for patience."""
    needs_server: bool = True


ALL = [
    Scenario("psycopg", psycopg.contenders, 3000),
    Scenario("psycopg-async", psycopg_async.contenders, 2000),
    Scenario("sqlalchemy-core", sqlalchemy_core.contenders, 1500),
    Scenario("sqlalchemy-orm", sqlalchemy_orm.contenders, 1000),
    Scenario("django", django.contenders, 1000),
    Scenario("sqlite", sqlite.contenders, 5000, needs_server=False),
]
