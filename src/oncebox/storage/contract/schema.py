"""Schema: the tables of oncebox and their version."""

from __future__ import annotations

from typing import Protocol

from oncebox.storage.contract.connection import Connection
from oncebox.storage.sql.statements import Migration
from oncebox.storage.steps import Steps


class SchemaStore(Protocol):
    """The tables of oncebox and their version."""

    migrations: list[Migration]

    def version(self, connection: Connection) -> Steps[tuple[int, int] | None]:
        """The version of the schema, and the oldest version of the code that can use it.

        None if there are no tables.
        """
        ...

    def migrate(self, connection: Connection, *, claims_only: bool = False) -> Steps[list[str]]:
        """Bring the schema up to date. Returns the names of the applied migrations.

        With `claims_only`, a new schema gets only the tables of claim_one() and claim_many().
        """
        ...

    def script(self, *, claims_only: bool = False) -> str:
        """The statements of migrate(), for review."""
        ...

    def grants(self, role: str, *, claims_only: bool = False) -> str:
        """The GRANT statements for a role that uses the tables and does not own them.

        Raises ConfigurationError if the database has no roles.
        """
        ...
