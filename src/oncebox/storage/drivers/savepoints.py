"""Names of the savepoints that oncebox sets."""

from __future__ import annotations

from secrets import token_hex

_PREFIX = f"oncebox_{token_hex(6)}"


def savepoint_name(depth: int) -> str:
    """The name of the savepoint at this depth; random, so that no handler can roll back to it.

    The random part is the same for the whole process, because drivers cache statements by text.
    """
    return f"{_PREFIX}_{depth}"
