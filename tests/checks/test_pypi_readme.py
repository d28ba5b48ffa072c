"""The description on PyPI: README.md without pictures and without links to files."""

from __future__ import annotations

import re
import runpy

import pytest

from support.markdown import ROOT

description = runpy.run_path(str(ROOT / "tools" / "pypi_readme.py"))["description"]

CASES = {
    "![A picture](docs/unit.svg)\n\nText": "Text",
    "See [retention](docs/retention.md#limits).": "See retention.",
    "[a](a.md) · [b](b.md)": "a · b",
    "[PyPI](http://localhost/pypi)": "[PyPI](http://localhost/pypi)",
    "<!-- not executed: a reason -->\n```sh\nls\n```": "```sh\nls\n```",
    "inbox.process([Delivery(body), Delivery(body)])": (
        "inbox.process([Delivery(body), Delivery(body)])"
    ),
}


@pytest.mark.parametrize(("text", "expected"), CASES.items())
def test_what_pypi_does_not_have_is_left_out(text: str, expected: str) -> None:
    assert description(text) == expected


def test_the_readme_keeps_everything_else() -> None:
    readme = (ROOT / "README.md").read_text()
    found = description(readme)
    assert "](" not in found
    assert "<!--" not in found
    headings = re.findall(r"^#+ .*", readme, re.MULTILINE)
    assert re.findall(r"^#+ .*", found, re.MULTILINE) == headings
    assert found.count("```") == readme.count("```")
