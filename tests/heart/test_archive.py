"""What is forgotten is archived before, comes back as it was, and stays erased if it was erased."""

from __future__ import annotations

import gzip
import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from test_retention import age, ids, minted, purge

import oncebox.archive
import oncebox.folder
import oncebox.forgetting
import oncebox.housekeeping
from oncebox import CloudEvents, Delivery, Drainer, Inbox, Reject, Retention, Retry, RetryAfter
from oncebox.archive import Manifest, Writer, manifests, records
from oncebox.errors import ArchiveError, ConfigurationError, NotFound
from oncebox.folder import folder_of
from oncebox.store.records import Archived
from worlds import BOTH, SOME, World, order, write_effect

pytestmark = pytest.mark.only((*BOTH, "sqlalchemy-asyncpg"), quick=BOTH)

LONG_AGO = "'2020-02-03T04:05:06.789123+00:00'"
AT_ONCE = Retry(max_attempts=2, first=timedelta(0), cap=timedelta(0))


class Shop:
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
            raise Reject("the secret of somebody")

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
        return self.call("housekeeping", "erase", **{"why": "they asked", "by": "ada", **options})

    def files(self) -> list[Manifest]:
        found: list[Manifest] = self.call("archives", "find")
        return found

    def replay(self, *ids: str, run: bool = True) -> None:
        """Run messages once more; or only note that they are to run."""
        self.call("replays", "start", f"r{ids}", why="a mistake", ids=ids)
        if run:
            assert self.world.drain(self.inbox) == {"done": len(ids)}

    def forget(self, *old: str) -> list[str]:
        """Let messages be processed, archived and forgotten."""
        assert set(self.process(*(minted(id) for id in old))) == {"done"}
        age(self.world, 8)
        self.process(minted("new"))
        assert self.purge().forgotten == len(old)
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
            f"SELECT act, by_whom, why, message_id FROM {self.prefix}action ORDER BY id"
        )


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "archive"


@pytest.fixture
def shop(world: World, place: Path) -> Shop:
    return Shop(world, place)


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
        world.execute("UPDATE oncebox_seq SET last = last + 1")
        seq, long_ago = "(SELECT last FROM oncebox_seq)", "1580702706789123"
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
            "  minted_at, received_at) "
            "SELECT 'billing', 'test', 'old' || n, nextval('oncebox_seq'), 'order', 1, "
            f"  convert_to(repeat(md5(n::text), {size // 32}), 'UTF8'), t, t "
            f"FROM generate_series(1, {count}) n, "
            f"LATERAL (SELECT {LONG_AGO}::timestamptz + n * interval '1 second') AS l (t)"
        )
    else:
        world.execute(
            "WITH RECURSIVE c (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c "
            f"WHERE n < {count}) INSERT INTO oncebox_inbox (consumer, origin, message_id, seq, "
            "  type, version, payload, minted_at, received_at) "
            "SELECT 'billing', 'test', 'old' || n, last + n, 'order', 1, "
            f"  CAST(hex(randomblob({size // 2})) AS BLOB), "
            "  1580702706789123 + n * 1000000, 1580702706789123 + n * 1000000 "
            "FROM c, oncebox_seq"
        )
        world.execute(f"UPDATE oncebox_seq SET last = last + {count}")
    return sorted(f"old{n}" for n in range(1, count + 1))


# -- there and back -------------------------------------------------------------------------------


def fill(shop: Shop) -> None:
    """Messages with every kind of past."""
    shop.bad |= {"failed"}
    assert shop.process(
        order("inline", key="k", time="2026-01-02T03:04:05.678901Z"),
        order("failed", data={"id": "failed", "text": "Grüße \U0001f600 \x00"}),
    ) == ["done", "failed"]
    assert shop.world.receive(shop.inbox, [minted("drained")]) == ["stored"]
    assert shop.world.drain(shop.inbox) == {"done": 2}
    shop.process(order("replayed", key="r"))
    shop.replay("replayed")
    shop.process(minted("unkept"), inbox=shop.another(keep_payload=False))
    shop.process(order("rejected"))
    letter = shop.call("dead", "find")[0]
    shop.call("dead", "discard", letter.id, why="noise")
    insert(shop.world, "bare")
    insert(shop.world, "empty", payload=b"", content_hash=b"", key="", source="", coordinates="")
    headers = '{"b":  1, "a": "\\u00e9",\n "a": null}'
    insert(shop.world, "binary", payload=bytes(range(256)), headers=headers, version=-3)
    age(shop.world, 8)


OLD = sorted(
    ["inline", "failed", "drained", "replayed", "unkept", "rejected", "bare", "empty", "binary"]
)


@pytest.mark.only(SOME, quick=BOTH)
def test_messages_come_back_byte_for_byte_with_their_attempts(world: World, shop: Shop) -> None:
    fill(shop)
    shop.process(minted("new"))
    before, states = shop.truth(), world.states()
    assert {row[0] for row in world.query("SELECT outcome FROM oncebox_attempt")} > {"failed"}
    purged = shop.purge()
    assert (purged.forgotten, list(purged.held_by)) == (len(OLD), [])
    assert ids(world) == ["new"]
    assert shop.truth() == ([], [])
    assert shop.archived() == dict.fromkeys(OLD, 1)
    (manifest,) = shop.files()
    assert (manifest.consumer, manifest.count) == ("billing", len(OLD))
    restored = shop.restore(by="ada")
    assert (restored.files, restored.messages, restored.known) == (1, len(OLD), 0)
    assert shop.truth() == before
    assert world.states() == states
    assert ("restore", "ada", "to look at it", None) in shop.actions()
    # What is known again is a duplicate again.
    assert shop.process(order("inline", key="k", time="2026-01-02T03:04:05.678901Z")) == [
        "duplicate"
    ]
    assert world.effects().count("inline") == 1


def test_a_message_that_came_back_can_be_replayed(world: World, shop: Shop) -> None:
    shop.forget("a", "b")
    shop.restore()
    shop.replay("a")
    assert world.effects() == ["a", "a", "b", "new"]


def test_an_archive_is_restored_into_an_empty_database(
    world: World, shop: Shop, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """File by file, however many there are; what arrives then has numbers of its own."""
    fill(shop)
    before = shop.truth()
    shop.process(minted("new"))
    shop.purge()
    insert_many(world, 3)
    shop.purge()
    assert len(shop.files()) == 2
    fresh = Shop(world, place, prefix="fresh_")
    assert fresh.restore().messages == len(OLD) + 3
    assert fresh.truth("message_id NOT LIKE 'old%%'" if world.is_postgres else OLDER) == before
    assert fresh.restore().known == len(OLD) + 3
    fresh.process(minted("next"), minted("another"))
    last = world.query("SELECT max(seq) FROM fresh_inbox WHERE message_id <> 'another'")[0][0]
    seqs = world.query("SELECT seq FROM fresh_inbox ORDER BY seq")
    assert len(seqs) == len(set(seqs)) == len(OLD) + 5
    assert last > max(manifest.last_seq for manifest in shop.files())


OLDER = "message_id NOT LIKE 'old%'"


@pytest.mark.only(BOTH)
def test_a_database_that_is_in_use_refuses_the_archive_of_another_one(
    world: World, shop: Shop, place: Path
) -> None:
    shop.forget("a", "b", "c")
    other = Shop(world, place, prefix="other_")
    other.process(minted("mine"))
    with pytest.raises(ArchiveError, match="comes from another database"):
        other.restore()
    assert world.query("SELECT message_id FROM other_inbox") == [("mine",)]
    assert other.actions() == []
    assert world.query("SELECT hold_until FROM other_consumer WHERE hold_until IS NOT NULL") == []


@pytest.mark.only(("sqlite3",))
def test_numbers_that_others_have_are_the_mark_of_another_database(
    world: World, shop: Shop, place: Path
) -> None:
    shop.forget("a", "b")
    other = Shop(world, place, prefix="other_")
    other.process(*(minted(f"mine{n}") for n in range(9)))
    with pytest.raises(ArchiveError, match="comes from another database"):
        other.restore()
    assert len(world.query("SELECT message_id FROM other_inbox")) == 9


def test_restoring_twice_changes_nothing(world: World, shop: Shop) -> None:
    shop.forget("a", "b")
    shop.restore()
    before = shop.truth()
    restored = shop.restore()
    assert (restored.messages, restored.known) == (0, 2)
    assert shop.truth() == before


@pytest.mark.only(BOTH)
def test_what_is_there_stays_as_it_is(world: World, shop: Shop) -> None:
    """It may have been released from the quarantine, and run once more, since it was archived."""
    shop.forget("a", "b")
    insert(world, "a", origin="test", payload=b"other", key="other")
    insert(world, "b", origin="test", payload=b"other")
    before = shop.truth()
    restored = shop.restore()
    assert (restored.messages, restored.known) == (0, 2)
    assert shop.truth() == before


@pytest.mark.only(BOTH)
def test_files_are_chosen_by_time(world: World, shop: Shop, place: Path) -> None:
    shop.forget("recent")
    insert_many(world, 2)
    assert shop.purge().forgotten == 2
    recent = shop.files()[-1].first_received_at
    assert shop.restore(since=recent - timedelta(days=1)).messages == 1
    assert ids(world) == ["new", "recent"]
    assert shop.restore(until=recent).messages == 2
    with pytest.raises(NotFound, match="no such file"):
        shop.restore(since=recent + timedelta(days=1))
    with pytest.raises(ConfigurationError, match="time zone"):
        shop.restore(since=datetime(2026, 1, 1))
    with pytest.raises(ConfigurationError, match="say why"):
        shop.restore(why=" ")


@pytest.mark.only(BOTH)
def test_without_an_archive_there_is_nothing_to_find(world: World, place: Path) -> None:
    inbox = world.inbox()
    with pytest.raises(ConfigurationError, match="has no archive"):
        inbox.archives.find()
    assert inbox.archives.find(place=str(place)) == []
    with pytest.raises(NotFound, match="no such file"):
        inbox.archives.restore(place=str(place), why="to see")


# -- what came back is kept for a while -----------------------------------------------------------


def test_what_was_restored_is_kept_for_a_while_and_forgotten_then(world: World, shop: Shop) -> None:
    old = shop.forget("a", "b")
    shop.restore()
    purged = shop.purge()
    assert (purged.mark, purged.forgotten) == (None, 0)
    assert "messages were restored, and are kept until" in purged.held_by[0]
    assert ids(world) == [*old, "new"]
    world.execute(
        "UPDATE oncebox_consumer SET hold_until = "
        + ("clock_timestamp()" if world.is_postgres else "hold_until - 86400000000")
    )
    assert shop.purge().forgotten == 2
    assert ids(world) == ["new"]
    assert shop.archived() == dict.fromkeys(old, 2)


@pytest.mark.only(BOTH)
def test_a_longer_hold_is_not_shortened(world: World, shop: Shop) -> None:
    shop.forget("a")
    shop.restore(keep=timedelta(days=3))
    held = world.query("SELECT hold_until FROM oncebox_consumer")
    shop.restore(keep=timedelta(0))
    assert world.query("SELECT hold_until FROM oncebox_consumer") == held


@pytest.mark.only(BOTH)
def test_a_purge_without_archive_respects_the_hold_of_one_that_began_later(
    world: World, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both kinds of purge look again in the statement that forgets."""
    shop.forget("a")
    plain = world.inbox(retention=Retention(days=7))
    old_windows = plain._store.old_windows

    def restoring(*args: Any) -> Any:
        shop.restore()
        return (yield from old_windows(*args))

    monkeypatch.setattr(plain._store, "old_windows", restoring)
    assert purge(world, plain).forgotten == 0
    assert ids(world) == ["a", "new"]


def test_what_was_erased_stays_erased_when_its_file_is_restored(world: World, shop: Shop) -> None:
    shop.bad |= {"a"}
    shop.process(minted("a"), minted("b"))
    assert world.drain(shop.inbox) == {"done": 1}
    age(world, 8)
    shop.process(minted("new"))
    assert shop.purge().forgotten == 2
    shop.restore(keep=timedelta(0))
    assert len([error for _, error in shop.attempts("a") if "secret" in (error or "")]) == 1
    kept = shop.truth("message_id = 'b'")
    assert shop.erase(ids=["a"]).done == 1
    erased = shop.truth()
    assert purge(world, world.inbox()).forgotten == 2
    assert shop.archived() == {"a": 1, "b": 1}, "only as they were before"
    shop.restore()
    assert shop.truth() == erased
    assert shop.truth("message_id = 'b'") == kept
    assert [error for _, error in shop.attempts("a")] == [None, None]
    assert shop.rows("inbox", "message_id = 'a' AND payload IS NOT NULL") == []


# -- nothing is forgotten that is not archived ----------------------------------------------------


@pytest.fixture
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file for each window."""
    monkeypatch.setattr(oncebox.archive, "MESSAGES", 1)


@pytest.mark.usefixtures("small_files")
def test_many_messages_go_into_several_files_and_are_forgotten_file_by_file(
    world: World, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = insert_many(world, 1_200)
    shop.process(minted("new"))
    forget, seen = shop.inbox._store.forget_these, []

    def watched(connection: Any, consumer: str, messages: list[Archived]) -> Any:
        archived = shop.archived()
        assert all(archived[message.id] for message in messages)
        seen.append((len(shop.files()) if not world.is_async else 0, len(messages)))
        return (yield from forget(connection, consumer, messages))

    monkeypatch.setattr(shop.inbox._store, "forget_these", watched)
    assert shop.purge().forgotten == 1_200
    monkeypatch.undo()
    files = shop.files()
    assert len(files) > 2
    assert sum(manifest.count for manifest in files) == sum(count for _, count in seen) == 1_200
    assert shop.archived() == dict.fromkeys(old, 1)
    assert ids(world) == ["new"]
    if not world.is_async:
        assert seen[0][0] == 1, "the first are forgotten before the second file is written"
    told: list[int] = []
    assert shop.restore(progress=told.append).messages == told[-1] == 1_200
    assert ids(world) == ["new", *old]


def test_large_messages_are_read_a_few_at_a_time(
    world: World, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oncebox.forgetting, "PORTION", 50)
    read, seen = shop.inbox._store.old_messages, []

    def watched(*args: Any, **options: Any) -> Any:
        found = yield from read(*args, **options)
        seen.append(len(found))
        return found

    monkeypatch.setattr(shop.inbox._store, "old_messages", watched)
    old = shop.forget(*(f"m{n:02}" for n in range(20)))
    assert sum(seen) == 20
    assert max(seen) < 10
    assert shop.archived() == dict.fromkeys(old, 1)


@pytest.mark.usefixtures("small_files")
def test_nothing_is_forgotten_before_its_manifest_is_written(
    world: World, shop: Shop, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.process(minted("a"), minted("b"))
    age(world, 8)
    shop.process(minted("new"))

    class Ill(oncebox.folder.Directory):
        def create(self, name: str) -> Any:
            if name.endswith(oncebox.archive.MANIFEST):
                raise OSError("no room for manifests")
            return super().create(name)

    monkeypatch.setattr(oncebox.folder, "Directory", Ill)
    with pytest.raises(ArchiveError, match=r"no room for manifests\); nothing of it was forgotten"):
        shop.purge()
    assert ids(world) == ["a", "b", "new"]
    assert [path for path in place.rglob("*") if path.is_file()] == []
    monkeypatch.undo()
    assert shop.purge().forgotten == 2
    assert shop.archived() == {"a": 1, "b": 1}


@pytest.mark.only(BOTH)
def test_a_file_that_reads_as_something_else_is_not_relied_on(
    world: World, shop: Shop, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.process(minted("a"))
    age(world, 8)
    shop.process(minted("new"))

    class Ill(oncebox.folder.Directory):
        def open(self, name: str) -> Any:
            (self._root / name).write_bytes(gzip.compress(b"")[:10] + b"\xff" * 20)
            return super().open(name)

    monkeypatch.setattr(oncebox.folder, "Directory", Ill)
    with pytest.raises(ArchiveError, match="cannot be written"):
        shop.purge()
    assert ids(world) == ["a", "new"]
    assert [path for path in place.rglob("*") if path.is_file()] == []


# -- what changes meanwhile -----------------------------------------------------------------------

Change = Callable[[Shop], Any]


def run_again(shop: Shop) -> None:
    shop.replay("a")


def be_replayed(shop: Shop) -> None:
    shop.replay("a", run=False)


def be_erased(shop: Shop) -> None:
    assert shop.erase(ids=["a"]).done == 1


def be_restored(shop: Shop) -> None:
    shop.restore()


def during_finish(monkeypatch: pytest.MonkeyPatch, change: Callable[[], Any]) -> None:
    """Let something happen between the archiving and the forgetting, once."""
    finish = Writer.finish

    def changing(writer: Writer) -> Manifest:
        made = finish(writer)
        monkeypatch.setattr(Writer, "finish", finish)
        change()
        return made

    monkeypatch.setattr(Writer, "finish", changing)


@pytest.mark.only(BOTH)
@pytest.mark.parametrize(
    ("change", "left"),
    [
        (run_again, ["a"]),
        (be_replayed, ["a"]),
        (be_erased, ["a"]),
        (be_restored, ["a", "b"]),
    ],
)
def test_a_message_that_changed_after_it_was_archived_is_not_forgotten(
    world: World, shop: Shop, monkeypatch: pytest.MonkeyPatch, change: Change, left: list[str]
) -> None:
    shop.process(minted("a"), minted("b"))
    age(world, 8)
    shop.process(minted("new"))
    during_finish(monkeypatch, lambda: change(shop))
    assert shop.purge().forgotten == 2 - len(left)
    assert ids(world) == [*left, "new"]
    assert shop.archived() == {"a": 1, "b": 1}


@pytest.mark.only(BOTH)
def test_of_a_message_that_was_archived_twice_the_last_comes_back(
    world: World, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the names of the files."""
    for id in ("a", "b", "c", "d"):
        shop.process(minted(id))
        age(world, 8, f"message_id = '{id}'")
        shop.process(minted(f"new {id}"))
        during_finish(monkeypatch, partial(shop.replay, id))
        shop.purge()
        before = shop.truth(f"message_id = '{id}'")
        assert [len(rows) for rows in before] == [1, 1]
        shop.purge()
        assert shop.truth(f"message_id = '{id}'") == ([], [])
        assert shop.archived()[id] == 2
        shop.restore(keep=timedelta(0))
        assert shop.truth(f"message_id = '{id}'") == before


# -- what is damaged ------------------------------------------------------------------------------


def spoil(place: Path, file: str) -> None:
    raw = bytearray((place / file).read_bytes())
    raw[len(raw) // 2] ^= 1
    (place / file).write_bytes(raw)


def test_of_a_damaged_file_nothing_is_restored(world: World, shop: Shop, place: Path) -> None:
    shop.forget("a", "b")
    (first,) = shop.files()
    shop.process(minted("c"))
    age(world, 8, "message_id = 'c'")
    shop.process(minted("newer"))
    assert shop.purge().forgotten == 1
    spoil(place, first.file)
    checked = shop.call("archives", "check")
    assert (checked.files, checked.messages, len(checked.damaged)) == (2, 3, 1)
    assert first.file in checked.damaged[0]
    with pytest.raises(ArchiveError, match=f"{first.file} is damaged"):
        shop.restore()
    assert not {"a", "b"} & set(ids(world))
    shop.restore(since=first.last_received_at + timedelta(microseconds=1))
    assert ids(world) == ["c", "new", "newer"], "the other one is sound"


@pytest.mark.only(BOTH)
def test_a_check_names_everything_that_is_wrong(world: World, shop: Shop, place: Path) -> None:
    for id in ("a", "b", "c", "d"):
        shop.process(minted(id))
        age(world, 8, f"message_id = '{id}'")
        shop.process(minted(f"new {id}"))
        shop.purge()
    sound, spoilt, missing, torn = shop.files()
    spoil(place, spoilt.file)
    (place / missing.file).unlink()
    manifest = torn.file.replace(".jsonl.gz", ".manifest.json")
    (place / manifest).write_bytes(b"{")
    begun = place / sound.file.replace(".jsonl.gz", "0.jsonl.gz.part")
    begun.touch()
    told: list[int] = []
    checked = shop.call("archives", "check", progress=told.append)
    assert (checked.files, told[-1]) == (4, 4)
    assert list(checked.unfinished) == [begun.relative_to(place).as_posix()]
    assert sorted(sentence.split()[0] for sentence in checked.damaged) == sorted(
        [spoilt.file, missing.file, manifest]
    )
    for method in ("find", "restore"):
        with pytest.raises(ArchiveError, match=f"{manifest} is damaged"):
            shop.call("archives", method, **({"why": "x"} if method == "restore" else {}))


# -- an archive that cannot be written ------------------------------------------------------------


def test_an_archive_that_cannot_be_written_costs_nothing_and_is_written_later(
    world: World, shop: Shop, place: Path
) -> None:
    place.write_text("a file where a directory should be")
    shop.process(minted("a"))
    age(world, 8)
    shop.process(minted("new"))
    with pytest.raises(ArchiveError, match="nothing of it was forgotten"):
        shop.purge()
    assert ids(world) == ["a", "new"]
    place.unlink()
    assert shop.purge().forgotten == 1
    assert shop.archived() == {"a": 1}


class Whimsical(MemoryFileSystem):  # type: ignore[misc]
    """Somebody else's file system, which raises whatever its library raises."""

    protocol = "whimsical"
    is_ill = False

    def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        if self.is_ill:
            raise RuntimeError("the token has expired")
        return super()._open(path, mode, **options)


@pytest.mark.only(("sqlite3", "sqlalchemy-asyncpg"))
def test_whatever_a_file_system_raises_is_an_error_of_the_archive(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsspec.register_implementation("whimsical", Whimsical, clobber=True)
    shop = Shop(world, "whimsical://archive")
    monkeypatch.setattr(Whimsical, "store", {})
    monkeypatch.setattr(Whimsical, "pseudo_dirs", [""])
    shop.process(minted("a"))
    age(world, 8)
    shop.process(minted("new"))
    monkeypatch.setattr(Whimsical, "is_ill", True)
    with pytest.raises(ArchiveError, match=r"cannot be written \(RuntimeError: the token has"):
        shop.purge()
    monkeypatch.setattr(Whimsical, "is_ill", False)
    assert shop.purge().forgotten == 1
    monkeypatch.setattr(Whimsical, "is_ill", True)
    with pytest.raises(ArchiveError, match="cannot be read"):
        shop.restore()
    monkeypatch.setattr(Whimsical, "is_ill", False)
    assert shop.restore().messages == 1


@pytest.mark.only(BOTH)
def test_a_purge_that_is_interrupted_leaves_no_file_behind(
    world: World, shop: Shop, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = insert_many(world, 1_200)
    shop.process(minted("new"))
    read, calls = shop.inbox._store.old_messages, []

    def interrupted(*args: Any, **options: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return (yield from read(*args, **options))

    monkeypatch.setattr(shop.inbox._store, "old_messages", interrupted)
    with pytest.raises(KeyboardInterrupt):
        shop.purge()
    assert [path for path in place.rglob("*") if path.is_file()] == []
    assert ids(world) == ["new", *old]


# -- those who keep house -------------------------------------------------------------------------


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drainers keep house at once, and again."""
    monkeypatch.setattr(oncebox.housekeeping, "ASK_EVERY", 0.02)
    monkeypatch.setattr(oncebox.housekeeping, "EVERY", 0.02)


def drain_until(world: World, inbox: Inbox, condition: Callable[[], bool]) -> None:
    """Let a drainer run until a condition holds."""
    drainer = Drainer(inbox, poll=0.01)
    drainer.on_beat = lambda waits: drainer.stop() if condition() else None
    world.run(drainer.arun()) if world.is_async else drainer.run()


@pytest.mark.usefixtures("eager")
def test_a_drainer_archives_what_it_forgets(world: World, shop: Shop) -> None:
    shop.process(minted("a"), minted("b"))
    age(world, 8)
    shop.process(minted("new"))
    drain_until(world, shop.inbox, lambda: ids(world) == ["new"])
    assert shop.archived() == {"a": 1, "b": 1}


@pytest.mark.usefixtures("eager")
def test_a_drainer_goes_on_where_the_archive_cannot_be_written(
    world: World, shop: Shop, place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place.write_text("a file where a directory should be")
    shop.process(minted("a"))
    age(world, 8)
    shop.process(minted("new"))

    def complaints() -> list[str]:
        errors = [r.getMessage() for r in caplog.records if r.levelno == logging.ERROR]
        return [error for error in errors if "the archive cannot be written" in error]

    drain_until(world, shop.inbox, lambda: len(complaints()) > 1)
    assert complaints()[0].startswith("billing: ")
    assert complaints()[0].endswith("it is tried again later")
    assert ids(world) == ["a", "new"]
    place.unlink()
    world.receive(shop.inbox, [minted("later")])
    drain_until(world, shop.inbox, lambda: ids(world) == ["later", "new"])
    assert shop.archived() == {"a": 1}
    assert world.effects() == ["a", "later", "new"]


@pytest.mark.only(BOTH)
@pytest.mark.usefixtures("eager")
def test_a_drainer_that_is_stopped_in_the_middle_leaves_no_file_behind(
    world: World, shop: Shop, place: Path
) -> None:
    insert_many(world, 1_200)
    shop.process(minted("new"))
    parts = lambda: list(place.rglob("*.part"))  # noqa: E731
    drain_until(world, shop.inbox, lambda: bool(parts()))
    assert parts() == []
    assert len(ids(world)) == 1_201


@pytest.mark.only(BOTH)
@pytest.mark.usefixtures("small_files")
def test_two_purges_at_once_lose_nothing(world: World, shop: Shop) -> None:
    old = insert_many(world, 2_400)
    shop.process(minted("new"))
    inboxes = [shop.another(migrate=False) for _ in range(3)]
    start, forgotten = threading.Barrier(len(inboxes)), []

    def work(inbox: Inbox) -> None:
        start.wait(20)
        forgotten.append(inbox.housekeeping.purge().forgotten)

    threads = [threading.Thread(target=work, args=(inbox,)) for inbox in inboxes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(forgotten) == len(inboxes)
    assert sum(forgotten) == 2_400
    assert ids(world) == ["new"]
    archived = shop.archived()
    assert sorted(archived) == old
    shop.restore()
    assert ids(world) == ["new", *old]


# -- erasing --------------------------------------------------------------------------------------


def test_what_is_erased_is_gone_and_its_id_is_known_for_ever(world: World, shop: Shop) -> None:
    shop.bad |= {"a"}
    shop.process(minted("a", key="k"), minted("b"))
    assert world.drain(shop.inbox) == {"done": 1}
    assert "secret" in shop.attempts("a")[0][1]
    secrets = "payload IS NOT NULL OR headers IS NOT NULL"
    before = shop.truth("message_id = 'b'")
    count = shop.call("housekeeping", "count_erasable", key="k")
    told: list[int] = []
    erased = shop.erase(key="k", progress=told.append)
    assert (count, told, erased.done, erased.left) == (1, [1], 1, 0)
    assert shop.rows("inbox", f"message_id = 'a' AND ({secrets})") == []
    assert shop.attempts("a") == [("failed", None), ("done", None)]
    assert shop.truth("message_id = 'b'") == before
    assert shop.actions() == [("erase", "ada", "they asked", "a")]
    assert world.states() == {"a": "done", "b": "done"}
    again = shop.erase(key="k")
    assert (again.done, again.left) == (0, 0)
    assert len(shop.actions()) == 1
    with pytest.raises(AssertionError):
        shop.replay("a")
    # The same is a duplicate, other bytes under its id are quarantined: as before.
    assert shop.process(order("a", key="k", data={"id": "a"})) == ["duplicate"]
    assert shop.process(order("a", key="k", data={"id": "a", "more": 1})) == ["quarantined"]
    assert world.effects() == ["a", "b"]


@pytest.mark.only(BOTH)
def test_what_was_not_kept_is_erased_as_far_as_it_was(world: World, shop: Shop) -> None:
    """Without a payload there are headers, and what errors have told."""
    shop.bad |= {"a"}
    unkept = shop.another(keep_payload=False)
    shop.process(minted("a"), minted("b"), inbox=unkept)
    erased = shop.erase(ids=["a", "b"])
    assert (erased.done, erased.left) == (1, 1), "one is pending, with its payload"
    assert world.drain(shop.inbox) == {"done": 1}
    erased = shop.erase(ids=["a", "b"])
    assert (erased.done, erased.left) == (1, 0)
    assert shop.rows("inbox", "headers IS NOT NULL") == []
    assert [error for _, error in shop.attempts("a")] == [None, None]


# -- what is not finished -------------------------------------------------------------------------


def make_pending(shop: Shop) -> None:
    assert shop.world.receive(shop.inbox, [order("x", key="k")]) == ["stored"]


def make_dead(shop: Shop) -> None:
    assert shop.process(order("rejected", key="k")) == ["dead"]


def make_early(shop: Shop) -> None:
    inbox = shop.another(identity=CloudEvents(sequence="number"))
    assert shop.process(order("x", key="k", number=5), inbox=inbox) == ["parked"]
    assert shop.world.states() == {"x": "early"}


def make_wanted(shop: Shop) -> None:
    """It is to be replayed."""
    shop.process(order("x", key="k"))
    shop.replay("x", run=False)


def make_retried(shop: Shop) -> None:
    """Its replay failed, and will be tried again."""
    make_wanted(shop)
    shop.mood = RetryAfter(timedelta(hours=1))
    assert shop.world.drain(shop.inbox) == {"failed": 1}


def make_dead_again(shop: Shop) -> None:
    """Its replay is a dead letter."""
    make_wanted(shop)
    shop.mood = Reject("not again")
    assert shop.world.drain(shop.inbox) == {"dead": 1}


Make = Callable[[Shop], None]
unfinished = pytest.mark.parametrize(
    "make", [make_pending, make_dead, make_early, make_wanted, make_retried, make_dead_again]
)


@pytest.mark.only(BOTH)
@unfinished
def test_what_is_not_finished_is_not_erased_but_counted(
    world: World, shop: Shop, make: Make
) -> None:
    make(shop)
    tables = ("inbox", "pending", "dead", "early", "attempt")
    before = [world.query(f"SELECT * FROM oncebox_{table}") for table in tables]
    acted = shop.actions()
    assert any(before)
    erased = shop.erase(key="k")
    assert (erased.done, erased.left) == (0, 1)
    assert [world.query(f"SELECT * FROM oncebox_{table}") for table in tables] == before
    assert shop.actions() == acted


@pytest.mark.only(BOTH)
def test_what_is_quarantined_under_an_erased_id_is_counted(world: World, shop: Shop) -> None:
    shop.process(order("x", key="k"))
    assert shop.process(order("x", key="k", data={"id": "other"})) == ["quarantined"]
    for which in ({"key": "k"}, {"ids": ["x"]}):
        assert shop.erase(**which).left == 1
    (letter,) = shop.call("dead", "find")
    shop.call("dead", "discard", letter.id, why="they asked")
    assert shop.erase(key="k").left == 0


@pytest.mark.only(BOTH)
def test_what_is_erased_must_be_named(world: World, shop: Shop) -> None:
    for which, complaint in (
        ({}, "say which messages are meant"),
        ({"ids": "x"}, "ids is a list"),
        ({"kye": "k"}, "unknown filter 'kye'"),
        ({"key": "k", "why": ""}, "say why"),
    ):
        with pytest.raises(ConfigurationError, match=complaint):
            shop.erase(**which)


@pytest.mark.only(BOTH)
def test_many_are_erased_a_little_at_a_time(
    world: World, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oncebox.housekeeping, "AT_ONCE", 2)
    shop.process(*(minted(f"m{n}", key="k") for n in range(5)), minted("other", key="o"))
    told: list[int] = []
    assert shop.erase(key="k", progress=told.append).done == 5
    assert told == [2, 4, 5]
    assert world.query("SELECT message_id FROM oncebox_inbox WHERE payload IS NOT NULL") == [
        ("other",)
    ]


@pytest.mark.only(BOTH)
@unfinished
def test_what_is_not_finished_is_neither_archived_nor_forgotten(
    world: World, shop: Shop, make: Make
) -> None:
    make(shop)
    shop.mood = None
    shop.process(minted("old"))
    age(world, 8)
    shop.process(minted("new"))
    left = [id for id in ids(world) if id != "old"]
    assert shop.purge().forgotten == 1
    assert ids(world) == left
    assert shop.archived() == {"old": 1}
