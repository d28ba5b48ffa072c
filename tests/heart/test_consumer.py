"""The consumer: from a source into an inbox, settled after the commit."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from oncebox import Consumer, Inbox
from oncebox.errors import ConfigurationError, NotOwner
from oncebox.sources import FileSource, MemorySource
from oncebox.store.records import Advance
from services import wait_until
from worlds import World, order, write_effect

FILES = ("sqlite3", "psycopg", "psycopg-async", "sqlalchemy-aiosqlite", "django-postgres")


def line(id: str, *, key: str | None = None) -> bytes:
    event = {"specversion": "1.0", "id": id, "source": "shop", "type": "order", "data": {"id": id}}
    return json.dumps({**event, "partitionkey": key}).encode() + b"\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "in" / "events.jsonl"
    path.parent.mkdir()
    return path


@pytest.fixture
def inbox(world: World) -> Inbox:
    made = world.inbox()
    world.on(made, "order", write_effect)
    return made


def consume(world: World, inbox: Inbox, source: Any, **options: Any) -> None:
    consumer = Consumer(inbox, source, **options)
    world.run(consumer.arun()) if world.is_async else consumer.run()


def positions(world: World) -> list[tuple[Any, ...]]:
    return world.query("SELECT part, next, owner, suspects FROM oncebox_position ORDER BY part")


@pytest.mark.only(FILES)
def test_a_file_is_read_once_however_often_it_is_read(
    world: World, inbox: Inbox, file: Path
) -> None:
    file.write_bytes(line("1") + line("2") + line("1"))
    for _ in range(2):
        consume(world, inbox, FileSource(file), batch=2)
    assert world.effects() == ["1", "2"]
    assert positions(world) == [(file.name, file.stat().st_size, None, 0)]
    world.execute("DELETE FROM oncebox_position")
    consume(world, inbox, FileSource(file))
    assert world.effects() == ["1", "2"], "a rewind is harmless"


@pytest.mark.only(FILES)
def test_a_folder_is_read_file_by_file(world: World, inbox: Inbox, file: Path) -> None:
    for number in range(3):
        (file.parent / f"{number}.jsonl").write_bytes(line(f"{number}a") + line(f"{number}b"))
    consume(world, inbox, FileSource(file.parent))
    assert world.effects() == ["0a", "0b", "1a", "1b", "2a", "2b"]
    assert len(positions(world)) == 3


@pytest.mark.only(("sqlite3", "psycopg"))
def test_stored_mode_leaves_the_work_to_a_drainer(world: World, inbox: Inbox, file: Path) -> None:
    file.write_bytes(line("1") + line("2"))
    consume(world, inbox, FileSource(file), mode="stored")
    assert world.effects() == []
    assert world.drain(inbox) == {"done": 2}


@pytest.mark.only(("sqlite3", "psycopg"))
def test_lines_that_are_no_messages_do_not_stop_the_rest(
    world: World, file: Path, tmp_path: Path
) -> None:
    inbox = world.inbox(payload_limit=200)
    world.on(inbox, "order", write_effect)
    no_id = b'{"specversion": "1.0", "source": "shop", "type": "order", "data": {}}\n'
    big = line("big").replace(b'{"id": "big"}', b'{"id": "' + b"x" * 300 + b'"}')
    file.write_bytes(b"nonsense\n" + no_id + b'{"id": "\xff"}\n' + big + line("good"))
    consume(world, inbox, FileSource(file))
    assert world.effects() == ["good"]
    found = world.query("SELECT reason, count(*) FROM oncebox_dead GROUP BY reason ORDER BY reason")
    assert found == [("too large", 1), ("unidentified", 3)]


@pytest.mark.only(("sqlite3", "psycopg"))
def test_messages_of_an_owner_that_vanished_are_run_alone(
    world: World, inbox: Inbox, file: Path
) -> None:
    file.write_bytes(b"".join(line(str(number)) for number in range(6)))
    consume(world, inbox, FileSource(file), batch=2)
    world.execute("DELETE FROM effects")
    world.execute("DELETE FROM oncebox_inbox")
    world.execute(
        "UPDATE oncebox_position SET next = 0, owner = 'x.y.z', owner_name = 'elsewhere:1:0', "
        f"batch = 2, until = {'now()' if world.is_postgres else 0}"
    )
    consume(world, inbox, FileSource(file), batch=4)
    assert world.effects() == ["2", "3", "4", "5"]
    assert sorted(row[0] for row in world.pending()) == ["0", "1"]
    assert world.drain(inbox) == {"done": 2}


@pytest.mark.only(("sqlite3", "psycopg"))
def test_one_who_is_alive_is_not_replaced(world: World, inbox: Inbox, file: Path) -> None:
    file.write_bytes(line("1"))
    first, second = (Consumer(inbox, FileSource(file, follow=True)) for _ in range(2))
    threads = [threading.Thread(target=consumer.run) for consumer in (first, second)]
    threads[0].start()
    wait_until(lambda: world.effects() == ["1"], "the first reads nothing")
    owner = positions(world)[0][2]
    threads[1].start()
    with file.open("ab") as more:
        more.write(line("2"))
    wait_until(lambda: world.effects() == ["1", "2"], "nobody reads on")
    assert positions(world)[0][2] == owner
    first.stop()
    threads[0].join()
    with file.open("ab") as more:
        more.write(line("3"))
    wait_until(lambda: "3" in world.effects(), "the second does not take over")
    assert positions(world)[0][2] != owner
    second.stop()
    threads[1].join()
    assert positions(world)[0][2] is None


@pytest.mark.only(("sqlite3", "psycopg", "sqlalchemy-psycopg", "aiosqlite"))
def test_a_reader_that_lost_its_part_commits_nothing(
    world: World, inbox: Inbox, file: Path
) -> None:
    file.write_bytes(line("1"))
    consume(world, inbox, FileSource(file))
    step = Advance("file:x", "p", "me", old=0, new=9, patience=10)
    with pytest.raises(NotOwner):
        if world.is_async:
            from oncebox.database.steps import arun

            world.run(arun(inbox._process([order("2")], is_async=True, advance=step)))
        else:
            from oncebox.database.steps import run

            run(inbox._process([order("2")], is_async=False, advance=step))
    assert world.effects() == ["1"]


@pytest.mark.only(("sqlite3", "psycopg-async"))
def test_a_badly_behaved_source_changes_nothing(world: World, inbox: Inbox) -> None:
    deliveries = [order(str(number)) for number in range(30)]
    source = MemorySource(deliveries, seed=3, duplicated=0.4, reordered=0.5, lost_acks=0.4)
    consume(world, inbox, source, batch=7)
    world.drain(inbox)
    assert world.effects() == sorted(str(number) for number in range(30))


@pytest.mark.only(("sqlite3",))
def test_a_wrong_mode_is_refused(world: World, inbox: Inbox, file: Path) -> None:
    file.touch()
    with pytest.raises(ConfigurationError, match="mode is 'inline' or 'stored'"):
        Consumer(inbox, FileSource(file), mode="both")  # type: ignore[arg-type]
