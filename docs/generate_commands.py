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

Data goes to standard output; progress, logs and errors go to standard error. Colors appear on a
terminal, unless `NO_COLOR` is set. Tables are never cut: on a narrow terminal, each row becomes a
list of its values; in a pipe, each row is one line.

All commands share one grammar:

- `APP` comes first, then what the command is about: a dead letter by its number, or a message by
  its id. If a name has two meanings, the error lists them. `--number` and `--id` choose.
- Filters have the same meaning everywhere, and all that are given must match: `--id`, `--type`,
  `--key`, `--origin`, `--state`, `--since`, `--until`, `--reason`, `--fingerprint`. `--since` and
  `--until` are about the time when a message was received.
- A fingerprint is equal for equal errors. Eight characters are shown; every command accepts as many
  as make it unique.
- Commands that change messages show how many match, with examples, and ask. `--dry-run` only shows
  them, `--yes` does not ask. They need `--why`, and the audit log records it. `retry` and `discard`
  need a name, a filter or `--all`.

`--json` prints one JSON object; commands that list print one per line. A field has the same name
in every command: `message_id`, `dead_letter_id`, `consumer`, `key`, `origin`, `type`, `error`. Ids
of 64 bits (`dead_letter_id`, `seq`, `replay_id`) are texts: many programs round large numbers.
Times are in UTC: `2026-07-14T09:30:00Z`. A payload is in `payload`, or in `payload_base64` if it is
not UTF-8. Actions print `action`, `dry_run`, `matching`, `done` and `left`.

The value of an option comes from the first of these that sets it: the command line, the
environment, the table `[tool.oncebox]` of the nearest `pyproject.toml`, the default. That table
takes `app` and the long names of the options below. Unknown names and wrong types are errors.

| exit code | meaning |
|---|---|
| 0 | success |
| 1 | failure |
| 2 | wrong usage or configuration |
| 3 | nothing matches |
| 4 | `status --check`: no worker runs, a source fails, or dead letters block keys |
| 5 | `retry`, `discard`, `erase`, `gaps --skip`: not all matching messages were changed |

To complete commands, options, states and reasons with the Tab key, add one line to the start file
of your shell:

<!-- not executed: it changes the shell of the reader -->
```sh
eval "$(_ONCEBOX_COMPLETE=bash_source oncebox)"  # bash 4.4 and newer: ~/.bashrc
eval "$(_ONCEBOX_COMPLETE=zsh_source oncebox)"   # zsh: ~/.zshrc
_ONCEBOX_COMPLETE=fish_source oncebox | source   # fish: ~/.config/fish/config.fish
```
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
