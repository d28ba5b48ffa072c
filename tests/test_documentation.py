"""The documentation is true: its code is executed, and its links lead somewhere."""

from __future__ import annotations

import re
import runpy
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser

from acceptance.pages import FOLLOWED
from oncebox import Inbox
from support.markdown import MARKER, PAGES, ROOT, anchors, blocks, name_of, prose

DOCS = ROOT / "docs"

EVALUATED = ("docs/concepts.md", "docs/handlers.md", "docs/multi-tenant.md", "docs/operating.md")
"""Pages whose Python blocks are one program, which runs in this process."""

LANGUAGES = {"layers", "properties", "python", "sh", "sql", "text"}


@pytest.mark.parametrize("name", EVALUATED)
def test_a_page_works_and_prints_what_it_says(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    found = [block for block in blocks(ROOT / name) if block.marked is None]
    python = {block.line for block in found if block.language == "python"}
    document = Sybil(parsers=[PythonCodeBlockParser()]).parse(ROOT / name)
    with ExitStack() as stack:
        stack.callback(_close_inboxes, document.namespace)
        for example in document.examples():
            if example.line in python:
                python.remove(example.line)
                example.evaluate()
    assert not python
    promised = "".join(block.text for block in found if block.language == "text")
    assert capsys.readouterr().out == promised


def _close_inboxes(namespace: dict[str, Any]) -> None:
    """Close the inboxes that the blocks of a page opened."""
    for value in [*namespace.values(), *namespace.get("inboxes", {}).values()]:
        if isinstance(value, Inbox):
            value.close()


def test_every_sql_block_of_the_documentation_can_be_executed(postgres_url: str) -> None:
    with Inbox("billing", postgres_url) as inbox:
        inbox.migrate()
    with psycopg.connect(postgres_url) as connection:
        for role in ("worker", "claimer"):
            found = connection.execute("SELECT FROM pg_roles WHERE rolname = %s", [role])
            if found.fetchone() is None:
                connection.execute(f"CREATE ROLE {role}")
        executed = 0
        for page in PAGES:
            for block in blocks(page):
                if block.language == "sql" and block.marked is None:
                    connection.execute(block.text.encode())
                    executed += 1
        connection.rollback()
    assert executed >= 5


def test_every_block_is_executed_or_marked_with_the_reason() -> None:
    for page in PAGES:
        name = name_of(page)
        languages = {"sql"}
        if name in EVALUATED:
            languages |= {"python"}
        if name in FOLLOWED:
            languages |= {"python", "sh"}
        for block in blocks(page):
            where = f"{name}, line {block.line}"
            assert block.language in LANGUAGES, f"{where}: unknown language {block.language!r}"
            if block.language in ("python", "sh", "sql") and block.marked is None:
                assert block.language in languages, f"{where}: neither executed nor marked"


def test_every_fence_and_every_marker_belongs_to_a_block() -> None:
    for page in PAGES:
        found = blocks(page)
        text = page.read_text()
        assert text.count("```") == 2 * len(found), name_of(page)
        marked = [block for block in found if block.marked is not None]
        assert len(MARKER.findall(text)) == len(marked), name_of(page)


def test_the_readme_is_short_and_its_first_example_too() -> None:
    readme = ROOT / "README.md"
    assert len(readme.read_text().splitlines()) <= 180
    first = next(block for block in blocks(readme) if block.language == "python")
    assert len(first.text.strip().splitlines()) <= 20


def test_every_link_and_every_picture_of_the_documentation_exists() -> None:
    examples = sorted((ROOT / "examples").rglob("*.md"))
    for page in (*PAGES, *examples, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"):
        for link in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
            if "://" in link:
                continue
            path, _, anchor = link.partition("#")
            target = (page.parent / path).resolve() if path else page
            assert target.exists(), f"{name_of(page)}: {link}"
            assert not anchor or anchor in anchors(target), f"{name_of(page)}: {link}"


def test_every_page_can_be_reached_from_the_readme() -> None:
    reached: set[Path] = set()
    waiting = [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page in reached or page.suffix != ".md":
            continue
        reached.add(page)
        links = re.findall(r"\]\(([^)#\s]+\.md)", prose(page))
        waiting += [(page.parent / link).resolve() for link in links if "://" not in link]
    assert set(PAGES) <= reached


def test_the_command_reference_is_generated_from_the_help_texts() -> None:
    made = runpy.run_path(str(DOCS / "generate_commands.py"))["reference"]()
    complaint = "run: python docs/generate_commands.py > docs/commands.md"
    assert (DOCS / "commands.md").read_text() == made, complaint
