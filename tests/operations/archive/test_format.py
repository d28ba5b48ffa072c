"""Archive files: records are read back unchanged, or the file is reported as damaged."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO

import fsspec
import msgspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import given
from hypothesis import strategies as st

import oncebox.operations.archive.format
from oncebox import Inbox, Retention
from oncebox.errors import ArchiveError, ConfigurationError, MissingExtra
from oncebox.operations.archive.format import (
    Manifest,
    Writer,
    check,
    manifests,
    read_manifest,
    reading,
    records,
    unfinished,
)
from oncebox.operations.archive.location import Directory, Folder, Remote, folder_of
from oncebox.storage.records import ArchivedMessage, Run

NOON = datetime(2026, 3, 10, 12, 0, 0, 123456, tzinfo=UTC)
DAY = timedelta(days=1)
PAYLOADS = (
    b'{"id": "1"}',
    "Grüße \U0001f600".encode(),
    b"",
    None,
    b"\xff\xfe\x00",
    b"\xef\xbb\xbfBOM",
    b"a\x00b\r\n\xe2\x80\xa8",
    b"\xed\xa0\x80",  # half of a surrogate pair, as no UTF-8 has it
)


def record(n: int = 1, *, payload: bytes | None = b"{}", **more: Any) -> ArchivedMessage:
    usual = {
        "seq": n,
        "origin": "shop",
        "id": f"m{n}",
        "type": "order",
        "version": 1,
        "received_at": NOON + timedelta(seconds=n),
    }
    return ArchivedMessage.of(payload, **{**usual, **more})


def write(folder: Folder, *some: ArchivedMessage, consumer: str = "billing") -> Manifest:
    writer = Writer(folder, consumer, some[0].received_at)
    writer.add(some)
    return writer.finish()


def read(folder: Folder, manifest: Manifest, at_once: int = 500) -> list[ArchivedMessage]:
    return [one for batch in records(folder, manifest, at_once=at_once) for one in batch]


@pytest.fixture(params=["directory", "file", "memory"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Folder]:
    """Every place in turn that is to be had without a network."""
    if request.param == "memory":
        yield folder_of("memory://archive/of/mine")
        MemoryFileSystem.store.clear()
        MemoryFileSystem.pseudo_dirs[:] = [""]
    else:
        scheme = "file://" if request.param == "file" else ""
        yield folder_of(f"{scheme}{tmp_path}/archive/of/mine")


@pytest.fixture
def directory(tmp_path: Path) -> Directory:
    return Directory(tmp_path)


# -- what is written ------------------------------------------------------------------------------


def test_archived_messages_read_back_unchanged(folder: Folder) -> None:
    runs = [
        Run(1, "failed", "host:1:0", NOON, error="ValueError: \x00 no", fingerprint="f"),
        Run(2, "done", "host:1:0", NOON + DAY, replay=7, duration=0.1 + 0.2),
    ]
    whole = record(
        99,
        version=3,
        key="k\n",
        content_hash=b"\x00\xff" * 8,
        headers='{"b":  1, "a": "\\u00e9",\n"a": 2}',
        source="orders",
        coordinates="3/10427",
        occurred_at=datetime(1, 1, 1, tzinfo=UTC),
        produced_at=datetime.max.replace(tzinfo=UTC),
        runs=runs,
    )
    some = [record(n, payload=payload) for n, payload in enumerate(PAYLOADS)]
    manifest = write(folder, whole, *some)
    check(folder, manifest)
    found = read(folder, manifest)
    assert found == [whole, *some]
    assert [one.body for one in found[1:]] == list(PAYLOADS)
    assert found[0].headers == whole.headers


@given(st.none() | st.binary() | st.text().map(str.encode))
def test_a_payload_of_any_bytes_survives(payload: bytes | None) -> None:
    line = msgspec.json.encode(record(payload=payload))
    assert b"\n" not in line
    assert msgspec.json.decode(line, type=ArchivedMessage).body == payload


def test_a_text_payload_is_archived_as_text(tmp_path: Path) -> None:
    manifest = write(Directory(tmp_path), record(1, payload='{"größe": 1}'.encode()), record(2))
    lines = gzip.decompress((tmp_path / manifest.file).read_bytes()).decode().splitlines()
    assert [json.loads(line)["payload"] for line in lines] == ['{"größe": 1}', "{}"]


def test_a_manifest_describes_its_file(folder: Folder) -> None:
    manifest = write(folder, record(2), record(9), record(1))
    with folder.open(manifest.file) as file:
        raw = file.read()
    assert (manifest.format, manifest.consumer, manifest.count) == (1, "billing", 3)
    assert (manifest.size, manifest.sha256) == (len(raw), sha256(raw).hexdigest())
    assert manifest.first_received_at == NOON + timedelta(seconds=1)
    assert manifest.last_received_at == NOON + timedelta(seconds=9)
    assert manifest.last_seq == 9
    assert manifest.made_at.tzinfo is not None
    assert manifest.file.startswith("billing/2026-03-10/120002-")
    assert manifests(folder, "billing") == [manifest]
    assert unfinished(folder, "billing") == []


def test_two_files_of_one_moment_are_two(folder: Folder) -> None:
    one, two = write(folder, record(1)), write(folder, record(1))
    assert one.file != two.file
    assert {m.file for m in manifests(folder, "billing")} == {one.file, two.file}


def test_a_file_is_full_by_its_messages_or_its_bytes(
    directory: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oncebox.operations.archive.format, "MESSAGES", 3)
    monkeypatch.setattr(oncebox.operations.archive.format, "BYTES", 2_000)
    many = Writer(directory, "billing", NOON)
    many.add([record(1), record(2)])
    assert not many.is_full
    many.add([record(3)])
    assert many.is_full
    large = Writer(directory, "billing", NOON)
    large.add([record(1, payload=b"x" * 2_000)])
    assert large.is_full
    many.give_up()
    large.give_up()


def test_messages_are_read_in_chunks(directory: Directory) -> None:
    manifest = write(directory, *(record(n) for n in range(5)))
    sizes = [len(batch) for batch in records(directory, manifest, at_once=2)]
    assert sizes == [2, 2, 1]


# Archives must stay readable: this was written by the first version.
LINE = (
    b'{"seq":7,"origin":"shop","id":"m7","type":"order","version":2,'
    b'"received_at":"2026-03-10T12:00:00.123456Z","key":"k","payload_base64":"//4A",'
    b'"content_hash":"AP8=","headers":"{\\"a\\": 1}","source":"orders","coordinates":"3/1",'
    b'"occurred_at":"2026-03-10T11:00:00Z","produced_at":"2026-03-10T10:00:00Z",'
    b'"runs":[{"number":1,"outcome":"failed","worker":"host:1:0",'
    b'"ended_at":"2026-03-10T12:00:00Z","replay":3,"error":"E: x","fingerprint":"f",'
    b'"duration":0.5}]}\n'
)


def test_the_first_format_can_be_read(tmp_path: Path) -> None:
    name, raw = "billing/2026-03-10/120000-0123", gzip.compress(LINE)
    text = {
        "format": 1,
        "consumer": "billing",
        "file": f"{name}.jsonl.gz",
        "count": 1,
        "size": len(raw),
        "sha256": sha256(raw).hexdigest(),
        "first_received_at": "2026-03-10T12:00:00.123456Z",
        "last_received_at": "2026-03-10T12:00:00.123456Z",
        "last_seq": 7,
        "made_at": "2026-03-18T12:00:00Z",
    }
    (tmp_path / name).parent.mkdir(parents=True)
    (tmp_path / f"{name}.jsonl.gz").write_bytes(raw)
    (tmp_path / f"{name}.manifest.json").write_text(json.dumps(text))
    directory = Directory(tmp_path)
    (manifest,) = manifests(directory, "billing")
    check(directory, manifest)
    assert read(directory, manifest) == [
        record(
            7,
            version=2,
            received_at=NOON,
            key="k",
            payload=b"\xff\xfe\x00",
            content_hash=b"\x00\xff",
            headers='{"a": 1}',
            source="orders",
            coordinates="3/1",
            occurred_at=datetime(2026, 3, 10, 11, tzinfo=UTC),
            produced_at=datetime(2026, 3, 10, 10, tzinfo=UTC),
            runs=[
                Run(
                    1,
                    "failed",
                    "host:1:0",
                    datetime(2026, 3, 10, 12, tzinfo=UTC),
                    replay=3,
                    error="E: x",
                    fingerprint="f",
                    duration=0.5,
                )
            ],
        )
    ]


# -- what is found --------------------------------------------------------------------------------


def test_files_are_found_by_the_time_of_their_messages(folder: Folder) -> None:
    made = [write(folder, record(1, received_at=NOON + n * DAY)) for n in (2, 0, 1)]
    zero, one, two = made[1], made[2], made[0]
    assert manifests(folder, "billing") == [zero, one, two]
    assert manifests(folder, "billing", since=NOON + DAY) == [one, two]
    assert manifests(folder, "billing", until=NOON + DAY) == [zero]
    assert manifests(folder, "billing", since=NOON + DAY, until=NOON + 2 * DAY) == [one]
    assert manifests(folder, "billing", since=NOON + 3 * DAY) == []


STRANGE = ("../x", "a/b", "a", "ab", ".", "..", "/", "~", "%2E", "a b", "é" * 127, "x" * 255, "X\n")


def test_every_consumer_has_a_folder_of_its_own_whatever_its_name(
    folder: Folder, tmp_path: Path
) -> None:
    made = {name: write(folder, record(1), consumer=name) for name in STRANGE}
    assert len({m.file for m in made.values()}) == len(STRANGE)
    for name, manifest in made.items():
        assert manifests(folder, name) == [manifest], name
        assert unfinished(folder, name) == [], name
        assert len(manifest.file.split("/")) == 3, name
        assert ".." not in manifest.file.split("/"), name
    assert {path.name for path in tmp_path.iterdir()} <= {"archive"}, "nothing is elsewhere"


def test_an_archive_that_was_never_written_is_empty(folder: Folder) -> None:
    assert manifests(folder, "billing") == []
    assert unfinished(folder, "billing") == []


# -- what is not finished -------------------------------------------------------------------------


def test_a_file_without_a_manifest_is_ignored(folder: Folder) -> None:
    """Its writer crashed before or after the file was complete."""
    whole, begun = write(folder, record(1)), Writer(folder, "billing", NOON)
    folder.remove(whole.file.replace(".jsonl.gz", ".manifest.json"))
    begun.add([record(2)])
    begun._file.close()  # as the end of its process does
    assert manifests(folder, "billing") == []
    assert len(unfinished(folder, "billing")) == 2
    begun.give_up()
    assert unfinished(folder, "billing") == [whole.file]


def test_a_file_is_not_seen_before_it_is_complete(directory: Directory, tmp_path: Path) -> None:
    writer = Writer(directory, "billing", NOON)
    writer.add([record(1)])
    assert [path.suffix for path in tmp_path.rglob("*") if path.is_file()] == [".part"]
    writer.finish()
    ends = sorted(path.suffixes[-1] for path in tmp_path.rglob("*") if path.is_file())
    assert ends == [".gz", ".json"]


def test_a_cancelled_writer_leaves_no_file_behind(folder: Folder) -> None:
    writer = Writer(folder, "billing", NOON)
    writer.add([record(1)])
    writer.give_up()
    assert folder.names("billing") == []


class Forgetful(Directory):
    """A disk that returns other bytes than were written."""

    def __init__(self, root: Path, ending: str, raw: bytes) -> None:
        super().__init__(root)
        self._ending = ending
        self._raw = raw

    def open(self, name: str) -> BinaryIO:
        if name.endswith(self._ending):
            (self._root / name).write_bytes(self._raw)
        return super().open(name)


OTHER = gzip.compress(b'{"other": 1}\n', mtime=0)
SPOILT = OTHER[:10] + b"\xff" + OTHER[11:]


@pytest.mark.parametrize(
    "raw",
    [OTHER, OTHER[:-9], SPOILT, b"no zip", b""],
    ids=["other", "cut", "spoilt", "no zip", "empty"],
)
def test_a_file_that_does_not_read_as_it_was_written_gets_no_manifest(
    tmp_path: Path, raw: bytes
) -> None:
    folder = Forgetful(tmp_path, ".jsonl.gz", raw)
    writer = Writer(folder, "billing", NOON)
    writer.add([record(1)])
    with pytest.raises(ArchiveError):
        reading(writer.finish)
    assert manifests(folder, "billing") == []
    writer.give_up()
    assert folder.names("billing") == []


def test_a_manifest_that_reads_back_differently_is_reported(tmp_path: Path) -> None:
    folder = Forgetful(tmp_path, ".manifest.json", b"{}")
    writer = Writer(folder, "billing", NOON)
    writer.add([record(1)])
    with pytest.raises(ArchiveError, match="manifest"):
        writer.finish()
    writer.give_up()
    assert folder.names("billing") == []


# -- what is damaged ------------------------------------------------------------------------------


def path_of(root: Path, manifest: Manifest) -> Path:
    return root / manifest.file


def test_a_file_with_another_byte_is_damaged(directory: Directory, tmp_path: Path) -> None:
    manifest = write(directory, *(record(n) for n in range(50)))
    path = path_of(tmp_path, manifest)
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)
    with pytest.raises(ArchiveError, match=f"{manifest.file} is damaged: .*checksum"):
        check(directory, manifest)
    with pytest.raises(ArchiveError, match="cannot be read"):
        reading(lambda: read(directory, manifest))


@pytest.mark.parametrize("keep", [0, 5, -1])
def test_a_file_that_was_cut_is_damaged(directory: Directory, tmp_path: Path, keep: int) -> None:
    manifest = write(directory, *(record(n) for n in range(50)))
    path = path_of(tmp_path, manifest)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ArchiveError, match=f"it has {path.stat().st_size} bytes"):
        check(directory, manifest)


def test_a_file_that_is_gone_is_missing(folder: Folder) -> None:
    manifest = write(folder, record(1))
    folder.remove(manifest.file)
    with pytest.raises(ArchiveError, match=f"{manifest.file} is missing"):
        check(folder, manifest)


@pytest.mark.parametrize(
    "text",
    [b"", b"{", b"[]", b"{}", b"\xff", b'{"format": "one"}', b'{"format": 1, "file": "\xff"}'],
)
def test_a_damaged_manifest_is_named(directory: Directory, tmp_path: Path, text: bytes) -> None:
    manifest = write(directory, record(1))
    name = manifest.file.replace(".jsonl.gz", ".manifest.json")
    (tmp_path / name).write_bytes(text)
    with pytest.raises(ArchiveError, match=f"{name} is damaged"):
        reading(lambda: manifests(directory, "billing"))


def test_a_newer_format_asks_for_newer_code(directory: Directory, tmp_path: Path) -> None:
    """Whatever else it has that this code does not know."""
    manifest = write(directory, record(1))
    name = manifest.file.replace(".jsonl.gz", ".manifest.json")
    text = {**json.loads((tmp_path / name).read_bytes()), "format": 2, "sha256": {"new": 1}}
    for newer in (text, {"format": 2}):
        (tmp_path / name).write_text(json.dumps(newer))
        with pytest.raises(ArchiveError, match=f"{name} has format 2: upgrade oncebox"):
            read_manifest(directory, name)


def test_a_line_that_is_not_a_message_is_reported(directory: Directory, tmp_path: Path) -> None:
    manifest = write(directory, record(1))
    path_of(tmp_path, manifest).write_bytes(gzip.compress(b'{"seq": "one"}\n'))
    with pytest.raises(ArchiveError, match="cannot be read"):
        reading(lambda: read(directory, manifest))


# -- where it is ----------------------------------------------------------------------------------


def test_an_archive_location_is_a_directory_or_a_url(tmp_path: Path) -> None:
    spaced = tmp_path / "a b"
    manifest = write(folder_of(f"file://{tmp_path}/a%20b"), record(1))
    assert manifests(folder_of(str(spaced)), "billing") == [manifest]
    assert manifests(folder_of(spaced), "billing") == [manifest]
    assert manifests(folder_of(f"local://{spaced}"), "billing") == [manifest]
    assert isinstance(folder_of(f"local://{spaced}"), Remote)


def test_a_relative_directory_is_where_the_process_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for place in ("archive", "./archive/", "."):
        manifest = write(folder_of(place), record(1), consumer=place)
        assert (tmp_path / place / manifest.file).exists()


def test_without_fsspec_an_archive_must_be_a_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(os.sys.modules, "fsspec.core", None)  # type: ignore[attr-defined]
    write(folder_of(f"file://{tmp_path}"), record(1))
    with pytest.raises(MissingExtra, match=r"pip install 'oncebox\[archive\]'"):
        folder_of("memory://archive")


def inbox(tmp_path: Path, archive: Any) -> Inbox:
    return Inbox("billing", f"sqlite:///{tmp_path}/x.db", retention=Retention(archive=archive))


@pytest.mark.parametrize("place", ["nowhere://archive", "needy://archive"])
def test_an_unusable_archive_location_is_refused_by_the_constructor(
    tmp_path: Path, place: str
) -> None:
    fsspec.register_implementation("needy", "no_such_module.FileSystem", clobber=True)
    scheme = place.partition(":")[0]
    with pytest.raises(ConfigurationError, match=f"cannot use an archive at {scheme}://"):
        inbox(tmp_path, place)


@pytest.mark.parametrize("place", ["", 7, Path("archive")])
def test_an_archive_is_named_by_text(place: Any) -> None:
    with pytest.raises(ConfigurationError, match="archive must be a directory or a URL"):
        Retention(archive=place)
