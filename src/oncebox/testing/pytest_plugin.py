"""A pytest plugin. Add it to the conftest.py of your tests:

pytest_plugins = ["oncebox.testing.pytest_plugin"]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NoReturn

import pytest

from oncebox.errors import ConfigurationError
from oncebox.inbox import Inbox
from oncebox.testing.databases import TemporaryDatabase


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option --oncebox-server."""
    parser.getgroup("oncebox").addoption(
        "--oncebox-server",
        metavar="URL",
        help="Create the databases of tests on this PostgreSQL server; default: SQLite files.",
    )


_USE = "write `with temporary_database(inbox) as database:`"
_ASYNC_USE = "write `async with temporary_database(inbox) as database:`"


class _Block(TemporaryDatabase):
    """A temporary database that knows whether the test entered its block."""

    was_entered = False

    def _move(self, stack: ExitStack) -> Inbox:
        self.was_entered = True
        return super()._move(stack)


class _Fixture:
    """Makes temporary databases for one test, and explains a block that is written wrongly."""

    def __init__(self, **options: Any) -> None:
        self._options = options
        self._blocks: list[_Block] = []

    def __call__(self, *args: Any, **options: Any) -> TemporaryDatabase:
        self._blocks.append(_Block(*args, **{**self._options, **options}))
        return self._blocks[-1]

    def __enter__(self) -> NoReturn:
        raise ConfigurationError(f"temporary_database is not called: {_USE}")

    def __exit__(self, *_: object) -> None: ...

    async def __aenter__(self) -> NoReturn:
        raise ConfigurationError(f"temporary_database is not called: {_ASYNC_USE}")

    async def __aexit__(self, *_: object) -> None: ...

    def check(self) -> None:
        """Raise if a block was not entered: the test used the inbox's own database."""
        if not all(block.was_entered for block in self._blocks):
            raise ConfigurationError(
                "temporary_database(inbox) without `with` does nothing, so the test used the "
                f"inbox's own database: {_USE}"
            )


@pytest.fixture
def temporary_database(
    pytestconfig: pytest.Config, tmp_path: Path
) -> Iterator[Callable[..., TemporaryDatabase]]:
    """TemporaryDatabase in the folder of the test, or on the server of --oncebox-server.

    with temporary_database(inbox) as database: ...
    """
    server = pytestconfig.getoption("--oncebox-server")
    fixture = _Fixture(server=server, folder=tmp_path)
    yield fixture
    fixture.check()
