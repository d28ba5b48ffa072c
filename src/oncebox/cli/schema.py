"""Commands `migrate` and `sql`: create the tables, or print their statements."""

from __future__ import annotations

import click

from oncebox.cli.app import Reference, app_argument, called

claims_only_option = click.option(
    "--claims-only", is_flag=True, help="Only the tables that inbox.claim() needs."
)


@click.command()
@app_argument
@claims_only_option
@click.option("--dry-run", is_flag=True, help="Print the statements, and execute nothing.")
def migrate(app: Reference, claims_only: bool, dry_run: bool) -> None:
    """Create or update the tables. Running it twice is harmless."""
    inbox = app.load()
    if dry_run:
        click.echo(inbox.sql(claims_only=claims_only), nl=False)
        return
    applied = called(inbox, inbox.migrate, claims_only=claims_only)
    for name in applied:
        click.echo(f"applied {name}")
    if not applied:
        click.echo("the tables are up to date")


@click.command()
@app_argument
@claims_only_option
@click.option(
    "--grants",
    metavar="ROLE",
    help="Instead, print the grants for a role that does not own the tables.",
)
def sql(app: Reference, claims_only: bool, grants: str | None) -> None:
    """Print every statement that `migrate` executes, for review."""
    click.echo(app.load().sql(claims_only=claims_only, grants_to=grants), nl=False)
