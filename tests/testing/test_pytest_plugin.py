"""The pytest plugin of oncebox.testing, and its absence."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FILES = {
    "conftest.py": 'pytest_plugins = ["oncebox.testing.pytest_plugin"]\n',
    "billing.py": """
from oncebox import Inbox

inbox = Inbox("billing", "sqlite:////missing/production.db")
inbox.on("order")(lambda order, tx: tx.execute("insert into invoices values (:id)", id=order))
""",
    "test_billing.py": """
import pytest
from billing import inbox
from oncebox.testing import assert_kinds, deliver, event

@pytest.fixture
def database(temporary_database):
    with temporary_database(inbox) as database:
        database.execute("create table invoices (id text)")
        yield database

@pytest.mark.parametrize("copies", [2, 3])
def test_once(database, copies):
    outcomes = deliver(inbox, event(inbox, "order", "o-1", id="e-1"), copies=copies)
    assert_kinds(outcomes, done=1, duplicate=copies - 1)
    assert database.execute("select * from invoices") == [("o-1",)]
    print("URL", database.url)
""",
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The folder of an application with tests."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def run(project: Path, *options: str) -> str:
    command = [sys.executable, "-m", "pytest", "-q", "-rP", "-p", "no:cacheprovider", *options]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout
    return done.stdout


def test_the_fixture_gives_each_test_a_file(project: Path) -> None:
    output = run(project, f"--basetemp={project}/temporary")
    assert output.count(f"URL sqlite:///{project}/temporary/test_once_") == 2


def test_the_fixture_gives_each_test_a_database_on_a_server(
    project: Path, postgres_url: str
) -> None:
    output = run(project, f"--oncebox-server={postgres_url}")
    urls = {line for line in output.splitlines() if line.startswith("URL postgresql://")}
    assert len(urls) == 2


def test_the_helpers_work_without_pytest() -> None:
    code = (
        "import sys; sys.modules['pytest'] = None; import oncebox.testing as t; t.event; t.deliver"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


WRONG = """
from billing import inbox

def test_not_called(temporary_database):
    with temporary_database as database:
        pass

def test_not_entered(temporary_database):
    temporary_database(inbox)
"""


def test_a_wrong_use_of_the_fixture_is_explained(project: Path) -> None:
    (project / "test_billing.py").write_text(WRONG)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    output = subprocess.run(command, cwd=project, capture_output=True, text=True).stdout
    assert "1 failed, 1 passed, 1 error" in output
    assert "temporary_database is not called: write `with temporary_database(inbox)" in output
    assert "without `with` does nothing" in output
