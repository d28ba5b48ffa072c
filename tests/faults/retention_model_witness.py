"""Witnesses: tables of triggers that record what was replayed and what was purged."""

from __future__ import annotations

from collections.abc import Sequence

from support.worlds import World

WITNESSES = {
    "wanted": ("INSERT", "replay_item", "replay, seq, message_id"),
    "purged": ("DELETE", "inbox", "message_id"),
    "purged_run": ("DELETE", "attempt", "message_id, replay, number, outcome"),
}
"""What the triggers record, of which actions on which tables."""

TYPES = {"seq": "bigint", "replay": "integer", "number": "integer"}

IS_OVER = (
    "EXISTS (SELECT 1 FROM ledger l WHERE l.message_id = {id} AND l.replay = 0) "
    "OR EXISTS (SELECT 1 FROM oncebox_audit a WHERE a.message_id = {id} "
    "AND a.action = 'discard' AND a.replay = 0)"
)


def call_witnesses(world: World) -> None:
    """From now on everything is written down, in the transaction that it is done in."""
    for table, (audit, on, columns) in WITNESSES.items():
        _call(world, table, audit, on, columns.split(", "))
    world.execute("CREATE INDEX wanted_message ON wanted (message_id, replay)")


def _call(world: World, table: str, audit: str, on: str, columns: Sequence[str]) -> None:
    """A table of actions, and whether the message was finished by then."""
    row = "NEW" if audit == "INSERT" else "OLD"
    made = [*(f"{column} {TYPES.get(column, 'text')}" for column in columns), "is_finished boolean"]
    values = [*(f"{row}.{column}" for column in columns), IS_OVER.format(id=f"{row}.message_id")]
    world.execute(f"CREATE TABLE {table} ({', '.join(made)})")
    note = f"INSERT INTO {table} SELECT {', '.join(values)};"
    call = f"BEGIN {note} END"
    if world.is_postgres:
        call = f"EXECUTE FUNCTION note_{table}()"
        world.execute(
            f"CREATE FUNCTION note_{table}() RETURNS trigger LANGUAGE plpgsql AS "
            f"$$ BEGIN {note} RETURN NULL; END $$"
        )
    when = f"AFTER {audit} ON oncebox_{on} FOR EACH ROW"
    world.execute(f"CREATE TRIGGER note_{table} {when} {call}")
