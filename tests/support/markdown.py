"""Markdown: the pages of the documentation, and their fenced code blocks."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]

PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
"""README.md and all pages of docs/."""

MARKER = re.compile(r"<!-- not executed: (.+?) -->")
"""A comment directly above a block that no test executes, with the reason."""

_FENCE = re.compile(
    rf"(?:^{MARKER.pattern}\n)?^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)


class Block(NamedTuple):
    """A fenced block."""

    language: str
    text: str
    line: int
    """The line of its opening fence."""
    marked: str | None
    """Why it is not executed; None if it must be."""


def blocks(page: Path) -> list[Block]:
    """All fenced blocks of a page."""
    text = page.read_text()
    return [
        Block(m["language"], m["text"], text.count("\n", 0, m.start("language")) + 1, m[1])
        for m in _FENCE.finditer(text)
    ]


def name_of(page: Path) -> str:
    """The path of a page in the repository."""
    return str(page.relative_to(ROOT))


def prose(page: Path) -> str:
    """The text of a page without its blocks and inline code."""
    return re.sub(r"`[^`\n]*`", "", _FENCE.sub("", page.read_text()))


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives to the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", _FENCE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
