"""A pytest plugin. Add it to the conftest.py of your tests:

pytest_plugins = ["oncebox.testing.pytest_plugin"]
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from oncebox.testing.databases import TemporaryDatabase


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option --oncebox-server."""
    parser.getgroup("oncebox").addoption(
        "--oncebox-server",
        metavar="URL",
        help="Create the databases of tests on this PostgreSQL server; default: SQLite files.",
    )


@pytest.fixture
def temporary_database(
    pytestconfig: pytest.Config, tmp_path: Path
) -> Callable[..., TemporaryDatabase]:
    """TemporaryDatabase in the folder of the test, or on the server of --oncebox-server.

    with temporary_database(inbox) as database: ...
    """
    server = pytestconfig.getoption("--oncebox-server")
    return partial(TemporaryDatabase, server=server, folder=tmp_path)
