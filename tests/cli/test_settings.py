"""The table [tool.oncebox]: what is misspelt or of another type is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from oncebox.cli import main
from oncebox.cli.settings import Settings, read_settings
from oncebox.errors import ConfigurationError


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "pyproject.toml"


def settings(file: Path, text: str) -> Settings:
    file.write_text(f"[tool.oncebox]\n{text}\n")
    return read_settings(main.commands.values())


def test_settings_are_those_of_the_options_however_they_are_dashed(file: Path) -> None:
    found = settings(file, 'app = "billing:inbox"\nlog_level = "INFO"\ndry-run = true\nseconds = 9')
    assert found.of(main.commands["run"]) == {"log_level": "INFO"}
    assert found.of(main.commands["migrate"]) == {"dry_run": True}
    assert found.of(main.commands["demo"]) == {"seconds": 9}
    assert found.names(main.commands["run"]) == ["app", "log-level"]


def test_a_missing_settings_table_means_no_settings(file: Path) -> None:
    file.write_text("[project]\n")
    assert read_settings(main.commands.values()).values == {}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("process = 2", "unknown setting 'process' in {}, did you mean 'processes'?"),
        ("log_levle = 'INFO'", "unknown setting 'log_levle' in {}, did you mean 'log-level'?"),
        ("zzz = 'red'", "unknown setting 'zzz' in {}, known: all, app, at, batch, "),
        ("run = {batch = 3}", "unknown setting 'run' in {}, "),
        ("beat = 3", "unknown setting 'beat' in {}, "),
        ("numbers = 3", "unknown setting 'numbers' in {}, "),
        ("n = 3", "unknown setting 'n' in {}, "),
        ("batch = 'many'", "'batch' in {} must be a whole number, got 'many'"),
        ("limit = true", "'limit' in {} must be a whole number, got True"),
        ("limit = 1.5", "'limit' in {} must be a whole number, got 1.5"),
        ("seconds = '9'", "'seconds' in {} must be a number, got '9'"),
        ("json = 'yes'", "'json' in {} must be true or false, got 'yes'"),
        ("from = 7", "'from' in {} must be text in quotes, got 7"),
        ("app = 'billing'", "'app' in {} must be \"module:attribute\""),
        ("app = 1", "'app' in {} must be \"module:attribute\""),
    ],
)
def test_a_wrong_setting_is_named_with_its_file(file: Path, text: str, says: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        settings(file, text)
    assert says.format(f"[tool.oncebox] of {file}") in str(refused.value)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"[tool]\noncebox = 3\n", "'oncebox' in {} is not a table: write [tool.oncebox]"),
        (b"tool = 3\n", "'tool' in {} is not a table: "),
        (b"[tool\n", "{} cannot be read: "),
        (b"\xff", "{} cannot be read: "),
    ],
)
def test_a_file_that_cannot_be_read_is_named(file: Path, content: bytes, says: str) -> None:
    file.write_bytes(content)
    with pytest.raises(ConfigurationError) as refused:
        read_settings(main.commands.values())
    assert says.format(file) in str(refused.value)
