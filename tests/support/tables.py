"""Read and change the tables of an inbox."""

from __future__ import annotations

from typing import Any

from support.worlds import World

TIMES = {"inbox": ("received_at", "produced_at"), "minute_counter": ("minute",)}


def make_retries_due(world: World) -> None:
    """Make every retry due."""
    now = "clock_timestamp()" if world.is_postgres else "0"
    blocked = "'infinity'" if world.is_postgres else "9223372036854775807"
    world.execute(f"UPDATE oncebox_pending SET available_at = {now} WHERE available_at < {blocked}")


def attempts(world: World) -> list[tuple[Any, ...]]:
    return world.query("SELECT message_id, number, outcome FROM oncebox_attempt ORDER BY id")


def dead_letters(world: World) -> list[tuple[Any, ...]]:
    return world.query(
        "SELECT message_id, state, reason, attempts, error FROM oncebox_dead_letter ORDER BY id"
    )


def age(world: World, days: int, where: str = "true") -> None:
    """Make every message this many days older."""
    for table, columns in TIMES.items():
        for column in columns:
            earlier = (
                f"{column} - interval '{days} days'"
                if world.is_postgres
                else f"{column} - {days} * 86400000000"
            )
            condition = where if table == "inbox" else "true"
            world.execute(f"UPDATE oncebox_{table} SET {column} = {earlier} WHERE {condition}")


def message_ids(world: World) -> list[str]:
    return sorted(row[0] for row in world.query("SELECT message_id FROM oncebox_inbox"))


def read_rows(world: World, table: str) -> int:
    """How many rows of a table were read so far, by whatever kind of scan."""
    ((rows,),) = world.query(
        "SELECT coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0) "
        "FROM pg_stat_user_tables WHERE relname = %s",
        f"oncebox_{table}",
    )
    return int(rows)


def audit_entries(world: World) -> list[tuple[Any, ...]]:
    return world.query(
        "SELECT action, by_whom, why, message_id, reason FROM oncebox_audit ORDER BY id"
    )


def set_watermark(world: World) -> None:
    """What came into being before now is too late from now on."""
    mark = "now() + interval '1 hour'" if world.is_postgres else str(4 * 10**15)
    world.execute(
        f"INSERT INTO oncebox_consumer (consumer, purged_before) VALUES ('billing', {mark})"
    )
