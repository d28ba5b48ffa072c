"""The documentation of the architecture says what the code does: layers, folders, files, links."""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "oncebox"
ARCHITECTURE = ROOT / "docs" / "architecture.md"
CONTRIBUTING = ROOT / "CONTRIBUTING.md"
PAGES = [ARCHITECTURE, CONTRIBUTING, *sorted((ROOT / "docs" / "decisions").glob("*.md"))]


def layers() -> list[str]:
    """The layers of the contract that import-linter enforces, the highest first."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    [contract] = settings["tool"]["importlinter"]["contracts"]
    return [layer.replace("oncebox.", "") for layer in contract["layers"]]


@pytest.mark.parametrize("page", [ARCHITECTURE, CONTRIBUTING], ids=lambda page: page.name)
def test_the_documented_layers_are_those_of_the_contract(page: Path) -> None:
    block = page.read_text().split("```layers\n")[1].split("```")[0]
    assert block.splitlines() == layers(), f"copy the layers of pyproject.toml to {page.name}"


def test_the_table_says_what_each_folder_may_import() -> None:
    rows = re.findall(r"^\| `(\w+)` \| .+ \| (.*)\|$", ARCHITECTURE.read_text(), re.MULTILINE)
    documented = {
        name: [part for part in below.strip().split(", ") if part] for name, below in rows
    }
    assert documented == _may_import()


def test_every_layer_exists_and_everything_else_belongs_to_one() -> None:
    found = {path.stem for path in PACKAGE.iterdir() if path.suffix in ("", ".py")}
    assert found - {"__init__", "__main__", "__pycache__"} == set(_may_import())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_names_no_file_that_is_missing(page: Path) -> None:
    for name in re.findall(r"\b((?:[\w.-]+/)+[\w-]+\.(?:py|sql|md|txt))\b", page.read_text()):
        places = [ROOT / name, PACKAGE / name, page.parent / name]
        assert any(map(os.path.exists, places)), f"{page.name} names {name}, which is missing"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_has_no_broken_link(page: Path) -> None:
    for link in re.findall(r"\]\(([^)#]+)", page.read_text()):
        if "://" not in link:
            assert (page.parent / link).exists(), f"{page.name} links to {link}, which is missing"


def _may_import() -> dict[str, list[str]]:
    groups = [layer.split(" | ") for layer in layers()]
    return {
        name: [below for group in groups[number + 1 :] for below in group]
        for number, names in enumerate(groups)
        for name in names
    }
