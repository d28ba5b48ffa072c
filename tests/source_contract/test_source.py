"""What every source must do, whatever it is."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from oncebox import Delivery
from oncebox.errors import ConfigurationError
from oncebox.sources import FileSource, MemorySource, Source, StdinSource, source_of
from oncebox.store.records import Position

Make = Callable[[list[bytes]], Source]


def file(tmp_path: Path) -> Make:
    def make(bodies: list[bytes]) -> Source:
        path = tmp_path / "events.jsonl"
        path.write_bytes(b"".join(body + b"\n" for body in bodies))
        return FileSource(path)

    return make


def folder(tmp_path: Path) -> Make:
    def make(bodies: list[bytes]) -> Source:
        for number, body in enumerate(bodies):
            with (tmp_path / f"{number % 2}.jsonl").open("ab") as part:
                part.write(body + b"\n")
        return FileSource(tmp_path)

    return make


def stdin(tmp_path: Path) -> Make:
    def make(bodies: list[bytes]) -> Source:
        read, write = os.pipe()
        os.write(write, b"".join(body + b"\n" for body in bodies))
        os.close(write)
        return StdinSource(read)

    return make


def memory(tmp_path: Path) -> Make:
    return lambda bodies: MemorySource([Delivery(body) for body in bodies])


@pytest.fixture(params=[file, folder, stdin, memory], ids=lambda kind: kind.__name__)
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    made: Make = request.param(tmp_path)
    return made


def open_all(source: Source) -> None:
    for part in source.parts():
        source.open(source.beginning(part))


def read_all(source: Source, limit: int = 3) -> Iterator[Any]:
    """Everything, settled as it comes."""
    while (batch := source.read(limit, 0.2)) is not None:
        yield batch
        source.settle(batch, [])


BODIES = [b'{"n": %d}' % number for number in range(10)]


def test_everything_is_delivered_once_and_in_order_within_a_part(make: Make) -> None:
    source = make(BODIES)
    open_all(source)
    parts: dict[str, list[bytes]] = {}
    for batch in read_all(source):
        parts.setdefault(batch.part, []).extend(d.body for d in batch.deliveries)
    assert sorted(body for bodies in parts.values() for body in bodies) == BODIES
    if source.features.ordered:
        assert all(bodies == sorted(bodies) for bodies in parts.values())
    source.close()


def test_no_batch_is_larger_than_asked_for(make: Make) -> None:
    source = make(BODIES)
    open_all(source)
    assert max(len(batch.deliveries) for batch in read_all(source, 4)) <= 4
    source.close()


def test_a_source_that_ends_says_so(make: Make) -> None:
    source = make(BODIES)
    assert source.features.ends
    open_all(source)
    assert not all(source.is_finished(part, None) for part in source.parts())
    for _ in read_all(source):
        pass
    assert all(source.is_finished(part, None) for part in source.parts())
    source.close()


def test_an_empty_source_has_nothing(make: Make) -> None:
    source = make([])
    open_all(source)
    assert source.read(10, 0.2) is None
    source.close()


@pytest.mark.parametrize("kind", [file, folder])
def test_a_part_is_read_on_from_a_position(kind: Any, tmp_path: Path) -> None:
    source = kind(tmp_path)(BODIES)
    open_all(source)
    first = source.read(2, 0.2)
    assert first is not None
    source.close()
    again = FileSource(source.path)
    again.open(Position(first.part, first.new, first.mark))
    rest = [d.body for batch in read_all(again) for d in batch.deliveries]
    assert not set(rest) & {d.body for d in first.deliveries}
    whole = (
        BODIES if kind is file else [b for b in BODIES if int(b[6:-1]) % 2 == int(first.part[0])]
    )
    assert [d.body for d in first.deliveries] + rest == whole
    again.close()


def test_coordinates_are_unique(tmp_path: Path) -> None:
    source = folder(tmp_path)(BODIES)
    open_all(source)
    places = [d.coordinates for batch in read_all(source) for d in batch.deliveries]
    assert len(set(places)) == len(BODIES)
    assert None not in places
    source.close()


# -- files ----------------------------------------------------------------------------------------


def lines(source: FileSource) -> list[bytes]:
    return [d.body for batch in read_all(source) for d in batch.deliveries]


def test_blank_lines_and_line_ends_are_no_messages(tmp_path: Path) -> None:
    path = tmp_path / "events"
    path.write_bytes(b"\n  \r\na\r\n\nb\n")
    source = FileSource(path)
    open_all(source)
    assert lines(source) == [b"a", b"b"]
    source.close()


def test_a_line_that_is_cut_by_the_end_is_read_where_nothing_follows(tmp_path: Path) -> None:
    path = tmp_path / "events"
    path.write_bytes(b"a\nhalf")
    source = FileSource(path)
    open_all(source)
    assert lines(source) == [b"a", b"half"]
    source.close()


def test_a_line_that_is_cut_is_waited_for_where_more_may_come(tmp_path: Path) -> None:
    path = tmp_path / "events"
    path.write_bytes(b"a\nhalf")
    source = FileSource(path, follow=True)
    open_all(source)
    assert lines(source) == [b"a"]
    with path.open("ab") as file:
        file.write(b" and half\n")
    assert lines(source) == [b"half and half"]
    assert not source.is_finished("events", None)
    source.close()


def test_a_rotated_file_is_read_to_its_end_before_the_new_one(tmp_path: Path) -> None:
    path = tmp_path / "log" / "events"
    path.parent.mkdir()
    path.write_bytes(b"a\n")
    source = FileSource(path, follow=True)
    open_all(source)
    assert lines(source) == [b"a"]
    with path.open("ab") as file:
        file.write(b"b\n")
    path.rename(path.with_name("events.1"))
    path.write_bytes(b"c\n")
    assert lines(source) == [b"b", b"c"]
    source.close()


def test_a_file_that_was_rotated_meanwhile_is_found_under_its_new_name(tmp_path: Path) -> None:
    path = tmp_path / "events"
    path.write_bytes(b"a\nb\n")
    source = FileSource(path, follow=True)
    open_all(source)
    batch = source.read(1, 0.2)
    assert batch is not None
    source.close()
    path.rename(tmp_path / "events.1")
    path.write_bytes(b"c\n")
    again = FileSource(path, follow=True)
    again.open(Position("events", batch.new, batch.mark))
    assert lines(again) == [b"b", b"c"]
    again.close()


@pytest.mark.parametrize("now", [b"x\n", b"other\nlonger than before\n"])
def test_a_file_that_was_truncated_or_replaced_is_read_from_its_beginning(
    tmp_path: Path, now: bytes
) -> None:
    path = tmp_path / "events"
    path.write_bytes(b"a\nb\n")
    source = FileSource(path)
    open_all(source)
    batch = source.read(9, 0.2)
    assert batch is not None
    source.close()
    path.write_bytes(now)
    again = FileSource(path)
    again.open(Position("events", batch.new, batch.mark))
    assert lines(again) == now.splitlines()
    again.close()


def test_a_file_that_is_truncated_while_it_is_followed_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "events"
    path.write_bytes(b"a\nb\n")
    source = FileSource(path, follow=True)
    open_all(source)
    assert lines(source) == [b"a", b"b"]
    path.write_bytes(b"c\n")
    assert lines(source) == [b"c"]
    source.close()


def test_of_a_line_without_end_the_beginning_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oncebox.sources.file.LIMIT", 8)
    path = tmp_path / "events"
    path.write_bytes(b"a" * 50 + b"\nb\n")
    source = FileSource(path)
    open_all(source)
    assert lines(source) == [b"a" * 8, b"b"]
    source.close()


# -- memory ---------------------------------------------------------------------------------------


def test_mischief_follows_its_seed() -> None:
    def bodies(seed: int) -> list[bytes]:
        deliveries = [Delivery(body) for body in BODIES]
        source = MemorySource(deliveries, seed=seed, duplicated=0.5, reordered=0.5)
        return [d.body for batch in read_all(source) for d in batch.deliveries]

    assert bodies(1) == bodies(1) != bodies(2)
    assert set(bodies(1)) == set(BODIES)
    assert len(bodies(1)) > len(BODIES)


# -- URLs -----------------------------------------------------------------------------------------


def test_a_url_names_a_source(tmp_path: Path) -> None:
    (tmp_path / "a b.jsonl").write_text("")
    source = source_of(f"file://{tmp_path}/a%20b.jsonl?follow=1")
    assert isinstance(source, FileSource)
    assert source.path.name == "a b.jsonl"
    assert not source.features.ends


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("flie:///x", "did you mean 'file'"),
        ("amqp://x/y", "unknown source scheme 'amqp'"),
        ("events.jsonl", "is no source URL"),
        ("file:///nowhere", "there is no file or folder"),
        ("file:///tmp?folow=1", "did you mean 'follow'"),
        ("file:///tmp?follow=maybe", "follow is 1 or 0"),
        ("file://tmp/x", "three slashes"),
    ],
)
def test_a_wrong_url_is_met_with_a_remedy(url: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        source_of(url)
