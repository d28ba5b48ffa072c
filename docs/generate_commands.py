"""Print the command reference from the help texts of the commands.

python docs/generate_commands.py > docs/commands.md
"""

from __future__ import annotations

import click

from oncebox.cli import main

WIDTH = 80

OPENING = """\
# Commands

`python docs/generate_commands.py > docs/commands.md` generates this page. Do not edit it by hand.

Data goes to standard output; progress, logs and errors go to standard error. `--json` prints one
JSON object per line instead of a table. Commands that change data show what they will change and
ask for confirmation; `--dry-run` only shows it, `--yes` does not ask.

The value of an option comes from the first of these that sets it: the command line, the
environment, the table `[tool.oncebox]` of the nearest `pyproject.toml`, the default. That table
takes `app` and the long names of the options below. Unknown names and wrong types are errors.

| exit code | meaning |
|---|---|
| 0 | success |
| 1 | failure |
| 2 | wrong usage or configuration |
| 3 | nothing matches |
| 4 | `status --check`: a worker is lost, a source fails, or dead letters block keys |
| 5 | `retry`, `discard`, `erase`, `gaps --skip`: not all matching messages were changed |
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
    """A heading, the help text, and the environment variables of arguments and options."""
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
