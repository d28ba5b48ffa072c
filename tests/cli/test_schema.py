"""`oncebox migrate` and `oncebox sql`, with and without --claims-only."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from oncebox.cli import main


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    text = f"from oncebox import Inbox\ninbox = Inbox('billing', 'sqlite:///{tmp_path}/inbox.db')\n"
    (tmp_path / "claims_app.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "claims_app:inbox"
    sys.modules.pop("claims_app", None)


def output(*args: str) -> str:
    result = CliRunner().invoke(main, args)
    assert result.exit_code == 0, result.output
    return result.output


def test_the_claims_tables_are_made_first_and_the_others_later(app: str) -> None:
    assert output("migrate", app, "--claims-only") == "applied 0001_claims\n"
    assert output("migrate", app, "--claims-only") == "the tables are up to date\n"
    assert output("migrate", app) == "applied 0002_processing\n"


def test_the_statements_are_printed(app: str) -> None:
    everything, claims = output("sql", app), output("sql", app, "--claims-only")
    assert 'CREATE TABLE "oncebox_inbox"' in claims
    assert "oncebox_pending" not in claims
    assert "oncebox_pending" in everything
    assert output("migrate", app, "--claims-only", "--dry-run") == claims
