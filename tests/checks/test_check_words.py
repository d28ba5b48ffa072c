"""tools/check_words.py finds words that the project does not use."""

from __future__ import annotations

from pathlib import Path

import pytest

from checks.running import check


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Somebody took it.", "'Somebody'"),
        ("def test_nobody_waits() -> None: ...", "'nobody'"),
        ("# it is kept for\n# ever", "'for ever'"),
        ("-- what a worker has in its hands", "'in its hands'"),
        ("A batch is no list.", "'is no list'"),
        ("Who drains a lane holds it.", "'Who'"),
        ("the minted_at column", "'minted'"),
        ("ONE_COLOUR = 1", "'COLOUR'"),
    ],
)
def test_a_word_that_is_not_used_is_found(tmp_path: Path, text: str, found: str) -> None:
    (tmp_path / "page.md").write_text("First line.\n" + text)
    result = check("check_words", tmp_path)
    assert result.returncode == 1
    assert f"page.md:2: {found}: use plain words instead (" in result.stdout


def test_a_file_name_is_checked_as_well(tmp_path: Path) -> None:
    (tmp_path / "killer_worker.py").write_text("")
    result = check("check_words", tmp_path)
    assert result.returncode == 1
    assert "killer_worker.py:1: the file name has 'killer'" in result.stdout


@pytest.mark.parametrize(
    "text",
    [
        "There is no message.",
        "It is no longer there.",
        "recommended",
        "indeed",
        "@pytest.mark.crash",
        "An operator who retries it.",
        "color: red",
    ],
)
def test_plain_words_are_fine(tmp_path: Path, text: str) -> None:
    (tmp_path / "page.md").write_text(text)
    result = check("check_words", tmp_path)
    assert (result.returncode, result.stdout) == (0, "check_words: no findings\n")


def test_a_report_does_not_fail(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text("Nobody mends it.")
    result = check("check_words", "--report", tmp_path)
    assert result.returncode == 0
    assert result.stdout.startswith("check_words: 2 findings")
