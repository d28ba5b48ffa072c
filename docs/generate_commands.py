"""Print the command reference, made of what the commands say of themselves.

python docs/generate_commands.py > docs/commands.md
"""

from __future__ import annotations

import click

from oncebox.cli import main

WIDTH = 80

OPENING = """\
# Commands

This page is made by `python docs/generate_commands.py > docs/commands.md`. Do not edit it by hand.

Data goes to standard output; progress, logs and errors go to standard error. `--json` prints one
JSON object per line instead of a table. The commands that change dead letters show what they are
about to change, and ask; `--dry-run` only shows, `--yes` does not ask.

A setting is taken from the first place that has it: the option, the environment, the table
`[tool.oncebox]` of the nearest `pyproject.toml`, the default. That table knows `app` and the long
names of the options below; a name that it does not know, or a value of another type, is refused.

| exit code | what it means |
|---|---|
| 0 | it went well |
| 1 | it failed |
| 2 | it was called or configured wrongly |
| 3 | nothing was found that matches |
| 4 | `status --check`: a worker is overdue, or dead letters hold keys |
| 5 | `retry`, `discard`: not all of what matched was changed |
"""


def reference() -> str:
    """The whole page."""
    top = click.Context(
        main, info_name="oncebox", terminal_width=WIDTH, max_content_width=WIDTH, color=False,
        **main.context_settings,
    )  # fmt: skip
    shown = [command for command in main.commands.values() if not command.hidden]
    return "\n".join([OPENING, _section(top), *(_section(_below(top, c)) for c in shown)])


def _below(top: click.Context, command: click.Command) -> click.Context:
    return click.Context(command, info_name=command.name, parent=top)


def _section(context: click.Context) -> str:
    """A heading, the help, and which environment variables stand in for arguments and options."""
    lines = [f"## {context.command_path}", "", "```text", context.get_help().strip(), "```", ""]
    variables = [
        f"`{parameter.envvar}` for `{_name(parameter)}`"
        for parameter in context.command.params
        if isinstance(parameter.envvar, str)
    ]
    if variables:
        lines += [f"From the environment: {', '.join(variables)}.", ""]
    return "\n".join(lines)


def _name(parameter: click.Parameter) -> str:
    is_argument = isinstance(parameter, click.Argument)
    return parameter.human_readable_name if is_argument else parameter.opts[0]


if __name__ == "__main__":
    print(reference(), end="")
