"""Files as a source: lines, positions, rotation and truncation."""

from __future__ import annotations

from pathlib import Path

import pytest

from oncebox.brokers.file import FileSource
from oncebox.model.position import Position


def open_all(source: FileSource) -> None:
    for partition in source.partitions():
        source.open(source.start_position(partition))


def lines(source: FileSource) -> list[bytes]:
    """Read all lines that the source has."""
    found: list[bytes] = []
    while (batch := source.read(3, 0.2)) is not None:
        found += [delivery.body for delivery in batch.deliveries]
    return found


def test_blank_lines_and_line_ends_are_not_messages(tmp_path: Path) -> None:
    path = tmp_path / "events"
    path.write_bytes(b"\n  \r\na\r\n\nb\n")
    source = FileSource(path)
    open_all(source)
    assert lines(source) == [b"a", b"b"]
    source.close()


def test_an_incomplete_last_line_is_read_where_nothing_follows(tmp_path: Path) -> None:
    path = tmp_path / "events"
    path.write_bytes(b"a\nhalf")
    source = FileSource(path)
    open_all(source)
    assert lines(source) == [b"a", b"half"]
    source.close()


def test_an_incomplete_last_line_is_waited_for_where_more_may_come(tmp_path: Path) -> None:
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
    again.open(Position("events", batch.new, batch.log_id))
    assert lines(again) == [b"b", b"c"]
    again.close()


@pytest.mark.parametrize("now", [b"x\n", b"other\nlonger than before\n"])
def test_a_file_that_was_truncated_or_replaced_is_read_from_its_beginning(
    tmp_path: Path, now: bytes, caplog: pytest.LogCaptureFixture
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
    again.open(Position("events", batch.new, batch.log_id))
    assert lines(again) == now.splitlines()
    assert f"{path} is not the file that was read up to byte 4; reading it" in caplog.text
    again.close()


@pytest.mark.parametrize("moved", [False, True])
@pytest.mark.parametrize("now", [b"x\ny\n", b"x\n", b"", b"a\nb\n"])
def test_a_replaced_file_is_not_finished(tmp_path: Path, now: bytes, moved: bool) -> None:
    path, before = tmp_path / "events", b"a\nb\n"
    path.write_bytes(before)
    source = FileSource(path)
    open_all(source)
    batch = source.read(9, 0.2)
    assert batch is not None
    source.close()
    target = tmp_path / "new" if moved else path
    target.write_bytes(now)
    target.rename(path)
    position = Position("events", batch.new, batch.log_id)
    assert FileSource(path).is_finished("events", position) is (now == before)


def test_a_file_that_differs_only_before_the_position_is_read_again(tmp_path: Path) -> None:
    path, head = tmp_path / "events", b"x" * 300 + b"\n"
    path.write_bytes(head + b"y" * 300 + b"\n")
    source = FileSource(path)
    open_all(source)
    batch = source.read(9, 0.2)
    assert batch is not None
    source.close()
    path.write_bytes(head + b"z" * 300 + b"\n")
    again = FileSource(path)
    again.open(Position("events", batch.new, batch.log_id))
    assert len(lines(again)) == 2
    again.close()


def test_the_position_of_a_part_of_a_batch_is_a_position_in_the_same_file(tmp_path: Path) -> None:
    path = tmp_path / "events"
    path.write_bytes(b"".join(b"%d\n" % number for number in range(400)))
    source = FileSource(path)
    open_all(source)
    first, second = source.read(100, 0.2), source.read(100, 0.2)
    assert first is not None and second is not None  # noqa: PT018
    source.close()
    again = FileSource(path)
    again.open(Position("events", first.new, second.log_id))
    batch = again.read(1, 0.2)
    assert batch is not None
    assert batch.deliveries[0].body == b"100"
    again.close()


def test_a_file_that_was_rotated_before_a_run_is_followed_by_the_new_one(tmp_path: Path) -> None:
    path = tmp_path / "events"
    path.write_bytes(b"a\n")
    source = FileSource(path)
    open_all(source)
    batch = source.read(9, 0.2)
    assert batch is not None
    source.close()
    path.rename(tmp_path / "events.1")
    path.write_bytes(b"c\n")
    again = FileSource(path)
    position = Position("events", batch.new, batch.log_id)
    assert not again.is_finished("events", position)
    again.open(position)
    assert lines(again) == [b"c"]
    again.close()


def test_a_file_that_is_truncated_while_it_is_followed_is_read_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "events"
    path.write_bytes(b"a\nb\n")
    source = FileSource(path, follow=True)
    open_all(source)
    assert lines(source) == [b"a", b"b"]
    path.write_bytes(b"c\n")
    assert lines(source) == [b"c"]
    assert f"{path} was truncated to 2 bytes, 4 were read; reading it" in caplog.text
    source.close()


def test_a_line_over_the_limit_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oncebox.brokers.file.LIMIT", 8)
    path = tmp_path / "events"
    path.write_bytes(b"a" * 50 + b"\nb\n")
    source = FileSource(path)
    open_all(source)
    assert lines(source) == [b"a" * 8, b"b"]
    source.close()
