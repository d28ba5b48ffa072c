"""All commands share one grammar: the same option has the same meaning everywhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import defaultdict

import click
import pytest

from oncebox.cli import SECTIONS, main

SHOWN = {name: command for name, command in main.commands.items() if not command.hidden}
CHANGING = ("retry", "discard", "replay", "gaps", "purge", "erase", "archive")
SELECTING = ("list", "tail", "dead-letters", "retry", "discard", "replay", "erase")
OTHER_MEANING = {
    ("migrate", "--dry-run"),  # it prints statements
    ("run", "--processes"),  # consumers and workers
    ("archive", "--check"),  # of files; `status --check` is about the inbox
    ("demo", "--keep"),  # databases; `archive --keep` is a time
}


def options(name: str) -> dict[str, click.Option]:
    """The options of a command by their long names."""
    return {max(p.opts, key=len): p for p in SHOWN[name].params if isinstance(p, click.Option)}


def test_an_option_has_one_help_text_and_one_type_everywhere() -> None:
    found = defaultdict(set)
    for name in SHOWN:
        for option, defined in options(name).items():
            text = re.sub(r"; default: .*|(?<=The)( \w+)? with", "", str(defined.help)).rstrip(".")
            if (name, option) not in OTHER_MEANING:
                kind = type(defined.type).__name__
                found[option].add((text.split(";")[0], kind, defined.metavar))
    assert {option: uses for option, uses in found.items() if len(uses) > 1} == {}


@pytest.mark.parametrize("name", SELECTING)
def test_commands_about_messages_have_the_same_filters(name: str) -> None:
    expected = {"--id", "--type", "--key", "--origin", "--state", "--since", "--until"}
    if name not in ("replay", "erase"):  # finished messages have no error
        expected |= {"--reason", "--fingerprint"}
    assert expected <= set(options(name))


@pytest.mark.parametrize("name", CHANGING)
def test_commands_that_change_messages_preview_ask_and_record_why(name: str) -> None:
    assert {"--why", "--by", "--dry-run", "--yes", "--json"} <= set(options(name))
    assert not isinstance(options(name)["--why"].default, str)


@pytest.mark.parametrize("name", SHOWN)
def test_the_app_comes_first(name: str) -> None:
    arguments = [p.name for p in SHOWN[name].params if isinstance(p, click.Argument)]
    assert name == "demo" or arguments[0] == "app"


def test_every_command_is_listed_by_its_task() -> None:
    assert sorted(name for names in SECTIONS.values() for name in names) == sorted(SHOWN)
    context = click.Context(main, info_name="oncebox")
    text = main.get_help(context)
    for section, names in SECTIONS.items():
        block = text.split(f"\n{section}:\n")[1].split("\n\n")[0]
        assert [line.split()[0] for line in block.splitlines()] == list(names)
    assert "Exit codes: 0 success, 1 failure, 2 wrong usage" in text


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("oncebox list app:inbox --state dea", ["dead"]),
        ("oncebox retry app:inbox --state ", ["dead", "quarantined"]),
        ("oncebox replay app:inbox --state ", ["done", "discarded"]),
        ("oncebox discard app:inbox --reason unk", ["unknown_type", "unknown_version"]),
        ("oncebox dead-le", ["dead-letters"]),
    ],
)
def test_a_shell_completes_commands_states_and_reasons(words: str, expected: list[str]) -> None:
    environment = {
        **os.environ,
        "_ONCEBOX_COMPLETE": "bash_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split(" ")) - 1),
    }
    command = [sys.executable, "-m", "oncebox"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert [line.partition(",")[2] for line in done.stdout.splitlines()] == expected
