"""The operation of Django's migrations that applies one migration of oncebox."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.db.migrations.operations.base import Operation

from oncebox.storage.drivers.django.database import DIALECTS, DjangoWork
from oncebox.storage.sql.migrations import executed, written
from oncebox.storage.sql.names import Names
from oncebox.storage.sql.statements import Migration, migrations, statements
from oncebox.storage.steps import run
from oncebox.storage.stores import store_for


class ApplyMigration(Operation):
    """Apply one migration of oncebox, in the SQL of the database.

    The settings ONCEBOX_PREFIX and ONCEBOX_SCHEMA name the tables, like `prefix` and `schema` of an
    Inbox. `sqlmigrate` prints the statements.
    """

    reversible = True
    reduces_to_sql = True

    def __init__(self, version: int) -> None:
        self.version = version

    def state_forwards(self, app_label: str, state: Any) -> None:
        """Nothing changes: oncebox has no models."""

    def database_forwards(
        self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any
    ) -> None:
        if not self._is_allowed(app_label, schema_editor):
            return
        names = _names()
        dialect = DIALECTS[schema_editor.connection.vendor]
        step = self._step(dialect, names)
        if self._is_applied(schema_editor, dialect, names):
            return  # inbox.migrate() has created the tables
        for sql in executed([step], statements(dialect, names)):
            schema_editor.execute(sql, params=None)

    def _is_applied(self, schema_editor: Any, dialect: str, names: Names) -> bool:
        if schema_editor.collect_sql:
            return False
        found = run(store_for(dialect, names).version(DjangoWork(schema_editor.connection)))
        return found is not None and found[0] >= self.version

    def database_backwards(
        self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any
    ) -> None:
        if not self._is_allowed(app_label, schema_editor):
            return
        names = _names()
        dialect = DIALECTS[schema_editor.connection.vendor]
        for sql in self._step(dialect, names).undone():
            schema_editor.execute(sql, params=None)
        earlier = [m for m in migrations(dialect, names) if m.version < self.version]
        if earlier:
            for sql in written(earlier[-1], statements(dialect, names)):
                schema_editor.execute(sql, params=None)
        else:
            schema_editor.execute(f"DROP TABLE {names.quoted('schema_version')}", params=None)

    def describe(self) -> str:
        return f"Migrate the oncebox tables to version {self.version}"

    def _step(self, dialect: str, names: Names) -> Migration:
        return next(m for m in migrations(dialect, names) if m.version == self.version)

    def _is_allowed(self, app_label: str, schema_editor: Any) -> bool:
        from django.db import router

        allowed: bool = router.allow_migrate(schema_editor.connection.alias, app_label)
        return allowed


def _names() -> Names:
    return Names(
        getattr(settings, "ONCEBOX_PREFIX", "oncebox_"), getattr(settings, "ONCEBOX_SCHEMA", None)
    )
