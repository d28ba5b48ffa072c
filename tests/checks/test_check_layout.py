"""tools/check_layout.py finds a package that has become hard to read."""

from __future__ import annotations

from pathlib import Path

import pytest

from checks.running import check


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository that passes."""
    (tmp_path / "src" / "oncebox").mkdir(parents=True)
    (tmp_path / "tests").mkdir()
    (tmp_path / "src" / "oncebox" / "inbox.py").write_text("def short():\n    pass\n")
    return tmp_path


def test_a_package_in_order_passes(repository: Path) -> None:
    result = check("check_layout", repository)
    assert (result.returncode, result.stdout) == (0, "check_layout: no findings\n")


def test_too_many_entries_are_found(repository: Path) -> None:
    for number in range(14):
        (repository / "src" / "oncebox" / f"module{number}.py").write_text("")
    _assert_found(repository, "15 entries, at most 14")


def test_a_module_of_the_old_layout_is_found(repository: Path) -> None:
    (repository / "src" / "oncebox" / "home.py").write_text("")
    _assert_found(repository, "home.py:1: this name belongs to the old layout")


def test_a_long_source_file_is_found(repository: Path) -> None:
    (repository / "src" / "oncebox" / "model.py").write_text("pass\n" * 351)
    _assert_found(repository, "model.py:351: 351 lines, at most 350")


def test_a_long_test_file_is_found(repository: Path) -> None:
    (repository / "tests" / "test_all.py").write_text("pass\n" * 501)
    _assert_found(repository, "test_all.py:501: 501 lines, at most 500")


def test_long_functions_are_found(repository: Path) -> None:
    body = "    pass\n" * 20
    text = f"def long():\n    'Not counted.'\n{body}def longer():\n{body}"
    (repository / "src" / "oncebox" / "inbox.py").write_text(text)
    _assert_found(repository, "long() has 20 lines; the median of all functions is 20, at most 7")


def test_a_report_does_not_fail(repository: Path) -> None:
    (repository / "src" / "oncebox" / "home.py").write_text("")
    assert check("check_layout", "--report", repository).returncode == 0


def _assert_found(repository: Path, text: str) -> None:
    result = check("check_layout", repository)
    assert result.returncode == 1
    assert text in result.stdout
