"""The code of the README is executed, top to bottom, in an empty folder."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser

README = Path(__file__).parents[1] / "README.md"


def test_the_readme_works_and_says_what_it_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    document = Sybil(parsers=[PythonCodeBlockParser()]).parse(README)
    namespace: dict[str, Any] = document.namespace
    examples = list(document.examples())
    assert len(examples) >= 6
    for example in examples:
        example.evaluate()
    promised = README.read_text().split("```text\n")[1:]
    assert capsys.readouterr().out == "".join(block.split("```")[0] for block in promised)
    namespace["inbox"].close()
    database: sqlite3.Connection = namespace["database"]
    rows = database.execute("SELECT order_id FROM invoices").fetchall()
    database.close()
    assert rows == [("o-1",), ("o-2",), ("o-4",), ("o-3",)]


def test_the_first_example_has_at_most_twenty_lines() -> None:
    block = README.read_text().split("```python\n")[1].split("```")[0]
    assert len(block.strip().splitlines()) <= 20


def test_the_documentation_names_no_file_that_is_missing() -> None:
    for page in (README, *README.parent.joinpath("docs").glob("*.md")):
        for part in page.read_text().split("](")[1:]:
            link = part.split(")")[0].split("#")[0]
            if link and "://" not in link:
                assert os.path.exists(page.parent / link), f"{page.name}: {link}"
