"""migrate and sql: the tables."""

from __future__ import annotations

import click

from oncebox.cli.app import Reference, app_argument, called


@click.command()
@app_argument
@click.option("--dry-run", is_flag=True, help="Print the statements, and execute nothing.")
def migrate(app: Reference, dry_run: bool) -> None:
    """Make or update the tables. Harmless when done twice."""
    inbox = app.load()
    if dry_run:
        click.echo(inbox.sql(), nl=False)
        return
    applied = called(inbox, inbox.migrate)
    for name in applied:
        click.echo(f"applied {name}")
    if not applied:
        click.echo("the tables are up to date")


@click.command()
@app_argument
def sql(app: Reference) -> None:
    """Print every statement that `migrate` executes, for review."""
    click.echo(app.load().sql(), nl=False)
