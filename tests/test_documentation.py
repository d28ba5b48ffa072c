"""The code of the README is executed, top to bottom, in an empty folder."""

from __future__ import annotations

import os
import re
import runpy
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser

from oncebox import Inbox

README = Path(__file__).parents[1] / "README.md"
DOCS = README.parent / "docs"


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


@pytest.mark.parametrize("name", ["concepts.md", "multi-tenant.md"])
def test_a_page_works_and_says_what_it_prints(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    document = Sybil(parsers=[PythonCodeBlockParser()]).parse(DOCS / name)
    for example in document.examples():
        example.evaluate()
    promised = (DOCS / name).read_text().split("```text\n")[1:]
    assert capsys.readouterr().out == "".join(block.split("```")[0] for block in promised)
    opened = [value for value in document.namespace.values() if isinstance(value, Inbox)]
    for inbox in [*opened, *document.namespace.get("inboxes", {}).values()]:
        inbox.close()


def test_the_first_example_has_at_most_twenty_lines() -> None:
    block = README.read_text().split("```python\n")[1].split("```")[0]
    assert len(block.strip().splitlines()) <= 20


def test_every_file_that_the_documentation_names_exists() -> None:
    for page in (README, *DOCS.glob("*.md")):
        for part in page.read_text().split("](")[1:]:
            link = part.split(")")[0].split("#")[0]
            if link and "://" not in link:
                assert os.path.exists(page.parent / link), f"{page.name}: {link}"


def test_every_link_of_the_documentation_has_its_heading() -> None:
    for page in (README, *DOCS.glob("*.md")):
        for name, anchor in re.findall(r"\]\(([\w./-]*)#([\w-]+)\)", page.read_text()):
            target = page.parent / name if name else page
            headings = re.findall(r"^#+ (.*)$", target.read_text(), re.MULTILINE)
            assert anchor in map(_anchor, headings), f"{page.name}: {name}#{anchor}"


def _anchor(heading: str) -> str:
    """The name that GitHub gives to a heading."""
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def test_the_reference_says_what_the_commands_say() -> None:
    made = runpy.run_path(str(DOCS / "generate_commands.py"))["reference"]()
    complaint = "run: python docs/generate_commands.py > docs/commands.md"
    assert (DOCS / "commands.md").read_text() == made, complaint
