"""An inbox with an archive."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

from oncebox import Delivery, Inbox, Reject, Retention, Retry
from oncebox.operations.archive.format import Manifest, manifests, records
from oncebox.operations.archive.location import folder_of
from support.inboxes import produced, purge
from support.tables import age
from support.worlds import World, write_effect

LONG_AGO = "'2020-02-03T04:05:06.789123+00:00'"
AT_ONCE = Retry(max_attempts=2, initial_delay=timedelta(0), max_delay=timedelta(0))


class ArchiveHarness:
    """An inbox with an archive, in a world."""

    def __init__(self, world: World, place: Path | str, **options: Any) -> None:
        self.world = world
        self.place = str(place)
        self.bad: set[str] = set()
        self.mood: Exception | None = None
        self.prefix: str = options.get("prefix", "oncebox_")
        self.inbox = self.another(**options)

    def another(self, **options: Any) -> Inbox:
        """An inbox of the same name and database."""
        retention = Retention(days=7, archive=self.place)
        inbox = self.world.inbox(retry=AT_ONCE, retention=retention, **options)
        self.world.on(inbox, "order", self.handle)
        return inbox

    def handle(self, payload: dict[str, Any], tx: Any) -> Iterator[Any]:
        yield from write_effect(payload, tx)
        if payload["id"] in self.bad:
            self.bad.remove(payload["id"])
            raise ValueError(f"the secret of {payload['id']}")
        if self.mood is not None:
            raise self.mood
        if payload["id"].startswith("rejected"):
            raise Reject("a secret")

    # -- what is done with it ---------------------------------------------------------------------

    def call(self, part: str, method: str, *args: Any, **options: Any) -> Any:
        owner = getattr(self.inbox, part)
        if self.world.is_async:
            return self.world.run(getattr(owner, f"a{method}")(*args, **options))
        return getattr(owner, method)(*args, **options)

    def process(self, *deliveries: Delivery, inbox: Inbox | None = None) -> list[str]:
        return self.world.kinds(inbox or self.inbox, deliveries)

    def purge(self) -> Any:
        return purge(self.world, self.inbox)

    def restore(self, **options: Any) -> Any:
        return self.call("archives", "restore", **{"why": "to look at it", **options})

    def erase(self, **options: Any) -> Any:
        return self.call("messages", "erase", **{"why": "they asked", "by": "ada", **options})

    def files(self) -> list[Manifest]:
        found: list[Manifest] = self.call("archives", "find")
        return found

    def replay(self, *message_ids: str, run: bool = True) -> None:
        """Run messages once more; or only note that they are to run."""
        self.call("replays", "start", f"r{message_ids}", why="a mistake", ids=message_ids)
        if run:
            assert self.world.drain(self.inbox) == {"done": len(message_ids)}

    def process_and_purge(self, *old: str) -> list[str]:
        """Process messages, and let the purge archive and delete them."""
        assert set(self.process(*(produced(id) for id in old))) == {"done"}
        age(self.world, 8)
        self.process(produced("new"))
        assert self.purge().purged == len(old)
        return sorted(old)

    # -- what can be seen of it -------------------------------------------------------------------

    def archived(self) -> Counter[str]:
        """How often each message is in a finished file, whatever the time."""
        folder = folder_of(self.place)
        return Counter(
            record.id
            for manifest in manifests(folder, "billing")
            for batch in records(folder, manifest, at_once=1_000)
            for record in batch
        )

    def rows(self, table: str, where: str = "true") -> list[tuple[Any, ...]]:
        """Every column of every row but its internal number, exactly."""
        name = f"{self.prefix}{table}"
        if self.world.is_postgres:
            found = self.world.query(
                "SELECT column_name || '::text' FROM information_schema.columns "
                "WHERE table_name = %s ORDER BY 1",
                name,
            )
        else:
            found = self.world.query("SELECT name FROM pragma_table_info(%s) ORDER BY 1", name)
        columns = [row[0] for row in found if row[0] not in ("id", "id::text")]
        assert len(columns) > 5
        return self.world.query(
            f"SELECT {', '.join(columns)} FROM {name} WHERE {where} "
            f"ORDER BY message_id, {'seq' if table == 'inbox' else 'id'}"
        )

    def truth(self, where: str = "message_id <> 'new'") -> tuple[list[Any], list[Any]]:
        return self.rows("inbox", where), self.rows("attempt", where)

    def attempts(self, id: str) -> list[tuple[Any, ...]]:
        return self.world.query(
            f"SELECT outcome, error FROM {self.prefix}attempt WHERE message_id = %s ORDER BY id", id
        )

    def actions(self) -> list[tuple[Any, ...]]:
        return self.world.query(
            f"SELECT action, by_whom, why, message_id FROM {self.prefix}audit ORDER BY id"
        )


def insert(world: World, id: str, **columns: Any) -> None:
    """A finished message from long ago, as it may be found in the table."""
    values: dict[str, Any] = {
        "consumer": "billing",
        "origin": "shop",
        "message_id": id,
        "type": "order",
        "version": 1,
        **columns,
    }
    if world.is_postgres:
        seq, long_ago = "nextval('oncebox_seq')", f"{LONG_AGO}::timestamptz"
    else:
        world.execute("UPDATE sqlite_sequence SET seq = seq + 1 WHERE name = 'oncebox_inbox'")
        drawn = "(SELECT seq FROM sqlite_sequence WHERE name = 'oncebox_inbox')"
        seq, long_ago = drawn, "1580702706789123"
    world.execute(
        f"INSERT INTO oncebox_inbox (seq, received_at, {', '.join(values)}) "
        f"VALUES ({seq}, {long_ago}, {', '.join(['%s'] * len(values))})",
        *values.values(),
    )


def insert_many(world: World, count: int, size: int = 1_500) -> list[str]:
    """Finished messages from long ago, many to a window."""
    if world.is_postgres:
        world.execute(
            "INSERT INTO oncebox_inbox (consumer, origin, message_id, seq, type, version, payload, "
            "  produced_at, received_at) "
            "SELECT 'billing', 'test', 'old' || n, nextval('oncebox_seq'), 'order', 1, "
            f"  convert_to(repeat(md5(n::text), {size // 32}), 'UTF8'), t, t "
            f"FROM generate_series(1, {count}) n, "
            f"LATERAL (SELECT {LONG_AGO}::timestamptz + n * interval '1 second') AS l (t)"
        )
    else:
        world.execute(
            "WITH RECURSIVE c (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c "
            f"WHERE n < {count}) INSERT INTO oncebox_inbox (consumer, origin, message_id, seq, "
            "  type, version, payload, produced_at, received_at) "
            "SELECT 'billing', 'test', 'old' || n, seq + n, 'order', 1, "
            f"  CAST(hex(randomblob({size // 2})) AS BLOB), "
            "  1580702706789123 + n * 1000000, 1580702706789123 + n * 1000000 "
            "FROM c, sqlite_sequence WHERE name = 'oncebox_inbox'"
        )
    return sorted(f"old{n}" for n in range(1, count + 1))
