"""The format of archives: files of messages that are to be purged.

A file has compressed JSON lines and a manifest beside it. A file without a manifest is incomplete
and is ignored. Each file is read back and compared before its manifest is written; only then are
its messages purged.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from hashlib import sha256
from typing import BinaryIO, TypeVar, cast
from urllib.parse import quote
from uuid import uuid4

import msgspec

from oncebox.errors import ArchiveError
from oncebox.operations.archive.location import Folder
from oncebox.storage.records import ArchivedMessage

T = TypeVar("T")

FORMAT = 1
LINES = ".jsonl.gz"
MANIFEST = ".manifest.json"
LEVEL = 5
BLOCK = 1 << 20

LONGEST = 150
"""The most characters of a consumer's name in the name of its folder."""

MESSAGES = 50_000
BYTES = 256 << 20
"""A file ends after about this many messages, or bytes before compression."""


class Manifest(msgspec.Struct, frozen=True):
    """The contents of a file."""

    format: int
    consumer: str
    file: str
    """Its name in the archive."""
    count: int
    size: int
    sha256: str
    """The checksum of the compressed file."""
    first_received_at: datetime
    last_received_at: datetime
    last_seq: int
    made_at: datetime


class _Format(msgspec.Struct):
    """The field that every version of the manifest has."""

    format: int


class Writer:
    """Writes one file, with a new unique name."""

    def __init__(self, folder: Folder, consumer: str, first: datetime) -> None:
        self._folder = folder
        self._consumer = consumer
        self._first = self._last = first
        self._last_seq = 0
        self._sum = sha256()
        self.count = 0
        self._size = 0
        day = f"{first.astimezone(UTC):%Y-%m-%d}"
        self._stem = f"{_folder_name(consumer)}/{day}/{first.astimezone(UTC):%H%M%S}-{uuid4().hex}"
        self._file = folder.create(self._stem + LINES)
        self._zip = gzip.GzipFile(fileobj=self._file, mode="wb", compresslevel=LEVEL, mtime=0)

    def add(self, records: Sequence[ArchivedMessage]) -> None:
        """Add messages to the file."""
        lines = msgspec.json.Encoder().encode_lines(records)
        self._zip.write(lines)
        self._sum.update(lines)
        self.count += len(records)
        self._size += len(lines)
        for record in records:
            self._first = min(self._first, record.received_at)
            self._last = max(self._last, record.received_at)
            self._last_seq = max(self._last_seq, record.seq)

    @property
    def is_full(self) -> bool:
        """True if the next message should go into another file."""
        return self.count >= MESSAGES or self._size >= BYTES

    def finish(self) -> Manifest:
        """Complete the file, read it back, and write its manifest. Raises ArchiveError."""
        self._zip.close()
        name = self._stem + LINES
        self._folder.finish(self._file, name)
        size, digest = self._read_back(name)
        manifest = Manifest(
            format=FORMAT,
            consumer=self._consumer,
            file=name,
            count=self.count,
            size=size,
            sha256=digest,
            first_received_at=self._first,
            last_received_at=self._last,
            last_seq=self._last_seq,
            made_at=datetime.now(UTC),
        )
        wanted = self._stem + MANIFEST
        self._file = self._folder.create(wanted)
        self._file.write(msgspec.json.format(msgspec.json.encode(manifest)))
        self._folder.finish(self._file, wanted)
        if read_manifest(self._folder, wanted) != manifest:
            raise ArchiveError(f"{wanted} differs from what was written")
        check(self._folder, manifest)  # an operator may have deleted it as an incomplete file
        return manifest

    def _read_back(self, name: str) -> tuple[int, str]:
        """The size and checksum of the file. Raises ArchiveError if its content has changed."""
        with self._folder.open(name) as file:
            raw = _Summed(file)
            sum_, lines = sha256(), 0
            with gzip.GzipFile(fileobj=cast(BinaryIO, raw), mode="rb") as opened:
                while block := opened.read(BLOCK):
                    sum_.update(block)
                    lines += block.count(b"\n")
        if sum_.digest() != self._sum.digest() or lines != self.count:
            raise ArchiveError(f"{name} differs from what was written")
        return raw.size, raw.sum.hexdigest()

    def give_up(self) -> None:
        """Remove the file. The manifest goes first: a file without a manifest is ignored."""
        for close in (self._zip.close, self._file.close):
            with suppress(Exception):
                close()
        for ending in (MANIFEST, LINES):
            with suppress(Exception):
                self._folder.remove(self._stem + ending)


class _Summed:
    """A file that counts and hashes the bytes that are read from it."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.sum = sha256()
        self.size = 0

    def read(self, size: int = -1) -> bytes:
        block = self._file.read(size)
        self.sum.update(block)
        self.size += len(block)
        return block


def manifests(
    folder: Folder,
    consumer: str,
    *,
    since: datetime | None = None,
    until: datetime | None = None,
) -> list[Manifest]:
    """The manifests of a consumer with messages of a time span, oldest first."""
    found = [read_manifest(folder, name) for name in manifest_names(folder, consumer)]
    return within(found, since, until)


def manifest_names(folder: Folder, consumer: str) -> list[str]:
    """The names of all manifests of a consumer."""
    return [name for name in folder.names(_folder_name(consumer)) if name.endswith(MANIFEST)]


def within(
    found: Sequence[Manifest], since: datetime | None, until: datetime | None
) -> list[Manifest]:
    """The manifests with messages of a time span, oldest first."""
    wanted = [
        manifest
        for manifest in found
        if (since is None or manifest.last_received_at >= since)
        and (until is None or manifest.first_received_at < until)
    ]
    return sorted(wanted, key=lambda manifest: (manifest.first_received_at, manifest.file))


def unfinished(folder: Folder, consumer: str) -> list[str]:
    """Incomplete files, without a manifest: their writer crashed or is still writing."""
    names = folder.names(_folder_name(consumer))
    finished = {name.removesuffix(MANIFEST) for name in names if name.endswith(MANIFEST)}
    files = (name for name in names if not name.endswith(MANIFEST))
    return [
        name for name in files if name.removesuffix(".part").removesuffix(LINES) not in finished
    ]


def read_manifest(folder: Folder, name: str) -> Manifest:
    """Read a manifest. Raises ArchiveError if it is damaged, or newer than this code."""
    with folder.open(name) as file:
        text = file.read()
    try:
        # Check the format first: a newer one may have other fields.
        format = msgspec.json.decode(text, type=_Format).format
        if format > FORMAT:
            raise ArchiveError(f"{name} has format {format}: upgrade oncebox to read it")
        return msgspec.json.decode(text, type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ArchiveError(f"{name} is damaged: {error}") from error


def check(folder: Folder, manifest: Manifest) -> None:
    """Raise ArchiveError unless a file has the checksum of its manifest."""
    sum_, size = sha256(), 0
    try:
        with folder.open(manifest.file) as file:
            while block := file.read(BLOCK):
                sum_.update(block)
                size += len(block)
    except FileNotFoundError as error:
        raise ArchiveError(f"{manifest.file} is missing, but its manifest exists") from error
    if sum_.hexdigest() != manifest.sha256:
        raise ArchiveError(
            f"{manifest.file} is damaged: its checksum does not match its manifest (it has "
            f"{size:,} bytes, {manifest.size:,} were written)"
        )


def records(folder: Folder, manifest: Manifest, *, at_once: int) -> Iterator[list[ArchivedMessage]]:
    """The messages of a file, `at_once` at a time. Call check() first."""
    decoder = msgspec.json.Decoder(ArchivedMessage)
    batch: list[ArchivedMessage] = []
    with folder.open(manifest.file) as file, gzip.GzipFile(fileobj=file, mode="rb") as lines:
        for line in lines:
            batch.append(decoder.decode(line))
            if len(batch) == at_once:
                yield batch
                batch = []
    if batch:
        yield batch


def reading(work: Callable[[], T]) -> T:
    """Call `work`, which reads an archive. Raises ArchiveError if that fails."""
    try:
        return work()
    except ArchiveError:
        raise
    except Exception as error:  # fsspec raises the errors of many libraries
        text = f"{type(error).__name__}: {error}"
        raise ArchiveError(f"the archive cannot be read ({text})") from error


def _folder_name(consumer: str) -> str:
    """The folder name of a consumer, short enough for every file system."""
    name = quote(consumer, safe="").replace(".", "%2E")
    return name if len(name) <= LONGEST else f"{name[:LONGEST]}-{sha256(name.encode()).hexdigest()}"
