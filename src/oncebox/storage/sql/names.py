"""Names of tables, built from a prefix and a schema, checked and quoted."""

from __future__ import annotations

import re

from oncebox.errors import ConfigurationError

_IDENTIFIER = re.compile(r"[a-z_][a-z0-9_]{0,62}")
_PLACEHOLDER = re.compile(r"(INDEX )?\{([a-z_]+)\}")
_ROOM = 24
"""Length of the longest name that follows a prefix."""


class Names:
    """Fills in `{inbox}`, `{pending}`, ... in the .sql files."""

    def __init__(self, prefix: str = "oncebox_", schema: str | None = None) -> None:
        check_identifier("prefix", prefix, 63 - _ROOM)
        if schema is not None:
            check_identifier("schema", schema)
        self.prefix = prefix
        self.schema = schema

    def quoted(self, name: str) -> str:
        """The quoted name of a table."""
        table = f'"{self.prefix}{name}"'
        return f'"{self.schema}".{table}' if self.schema else table

    def fill(self, sql: str) -> str:
        """Replace placeholders such as `{inbox}` by names."""
        return _PLACEHOLDER.sub(self._fill_one, sql)

    def _fill_one(self, match: re.Match[str]) -> str:
        # An index is in the schema of its table, and CREATE INDEX must not name the schema.
        return f'INDEX "{self.prefix}{match[2]}"' if match[1] else self.quoted(match[2])


def check_identifier(what: str, value: str, limit: int = 63) -> str:
    """Return a name that needs no quotes. Raises ConfigurationError."""
    if not _IDENTIFIER.fullmatch(value) or len(value) > limit:
        raise ConfigurationError(
            f"{what} {value!r} is not a plain SQL identifier: use a-z, 0-9 and _, "
            f"not beginning with a digit, at most {limit} characters"
        )
    return value
