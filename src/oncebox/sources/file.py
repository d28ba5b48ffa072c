"""Files of JSON lines: one, or all of a folder. Each file is a part that one worker reads."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Sequence
from datetime import timedelta
from hashlib import blake2b
from io import SEEK_SET
from pathlib import Path
from typing import IO

from oncebox import reports
from oncebox.errors import ConfigurationError
from oncebox.message import Delivery
from oncebox.outcome import Outcome
from oncebox.sources.contract import Batch, Features
from oncebox.sources.lines import LIMIT, stripped
from oncebox.store.records import Gauge, Position

SAMPLE = 256
"""Bytes at a file's beginning by which it is recognised."""

LOOK_EVERY = 0.1
"""Seconds between two looks at files that have nothing new."""


class FileSource:
    """`file:///path/to/events.jsonl` or a folder of such; with `follow`, also what is still coming.

    A file that was rotated is read to its end before the new one; one that was truncated or
    replaced is read from its beginning.
    """

    def __init__(self, path: str | Path, *, follow: bool = False) -> None:
        self.path = Path(os.path.abspath(path))
        if not self.path.exists() and not follow:
            raise ConfigurationError(f"there is no file or folder {self.path}")
        self.name = f"file:{self.path}"
        self.features = Features(ordered=True, durable=True, positions=True, ends=not follow)
        self._follow = follow
        self._readers: dict[str, _Reader] = {}

    def parts(self) -> Sequence[str]:
        if self.path.is_dir():
            files = (entry for entry in os.scandir(self.path) if entry.is_file())
            return sorted(entry.name for entry in files if not entry.name.startswith("."))
        return [self.path.name] if self.path.exists() else []

    def is_reassigned(self) -> bool:
        return False

    def beginning(self, part: str) -> Position:
        return Position(part, 0)

    def open(self, position: Position) -> None:
        self.release(position.part)
        self._readers[position.part] = _Reader(self._path(position.part), position, self._follow)

    def read(self, limit: int, seconds: float) -> Batch | None:
        deadline = time.monotonic() + seconds
        while True:
            for part, reader in list(self._readers.items()):
                batch = reader.read(limit, self.name)
                if batch is not None:
                    # Whoever had his turn goes to the end of the line.
                    self._readers[part] = self._readers.pop(part)
                    return batch
            if time.monotonic() + LOOK_EVERY > deadline:
                return None
            time.sleep(LOOK_EVERY)

    def settle(self, batch: Batch, outcomes: Sequence[Outcome]) -> None:
        """The position is committed with the work."""

    def gauge(self, part: str) -> Gauge:
        reader = self._readers.get(part)
        return reader.gauge() if reader is not None else Gauge()

    def release(self, part: str) -> None:
        reader = self._readers.pop(part, None)
        if reader is not None:
            reader.close()

    def is_finished(self, part: str, position: Position | None) -> bool:
        if self._follow:
            return False
        if part in self._readers:
            return self._readers[part].is_at_end
        return position is not None and position.next >= self._path(part).stat().st_size

    def keeps(self) -> timedelta | None:
        return None

    def close(self) -> None:
        for part in list(self._readers):
            self.release(part)

    def _path(self, part: str) -> Path:
        return self.path / part if self.path.is_dir() else self.path


class _Reader:
    """A file that is read line by line."""

    def __init__(self, path: Path, position: Position, follow: bool) -> None:
        self._path = path
        self._part = position.part
        self._follow = follow
        self._old = position.next
        """The position that is committed, or will be once what was read is."""
        self._file = self._open(position)
        self.is_at_end = False

    def read(self, limit: int, source: str) -> Batch | None:
        deliveries: list[Delivery] = []
        while len(deliveries) < limit:
            offset = self._file.tell()
            line = self._line()
            if line is None:
                if deliveries or not self._turn_over():
                    break
                continue
            if body := stripped(line):
                place = f"{self._part}/{self._inode}/{offset}"
                deliveries.append(Delivery(body, source=source, coordinates=place))
        self.is_at_end = not deliveries
        if not deliveries:
            return None
        old, self._old = self._old, self._file.tell()
        return Batch(deliveries, self._part, old, self._old, self._mark())

    def gauge(self) -> Gauge:
        """The bytes that are there and were not read."""
        return Gauge(lag=max(0, os.fstat(self._file.fileno()).st_size - self._old))

    def _line(self) -> bytes | None:
        """The next line; None if there is none, or none that is whole yet."""
        offset = self._file.tell()
        line = self._file.readline(LIMIT)
        if line.endswith(b"\n"):
            return line
        if len(line) == LIMIT:
            while not (rest := self._file.readline(LIMIT)).endswith(b"\n") and rest:
                pass
            return line
        if not line or self._follow:
            self._file.seek(offset, SEEK_SET)
            return None
        return line

    def _turn_over(self) -> bool:
        """At the end: whether there is a new file in this one's place, or a new beginning."""
        if not self._follow:
            return False
        try:
            status = self._path.stat()
        except FileNotFoundError:  # between two files
            return False
        if status.st_ino != self._inode:
            if self._file.readline(1):  # somebody wrote on before he let go
                self._file.seek(-1, os.SEEK_CUR)
                return False
            self._file.close()
            self._file = self._path.open("rb")
            return True
        if status.st_size < self._file.tell():
            reports.logger.warning("%s was truncated: it is read from its beginning", self._path)
            self._file.seek(0, SEEK_SET)
            return True
        return False

    def _open(self, position: Position) -> IO[bytes]:
        """The file that the position is in, wherever it is by now; else the one that is there."""
        if position.next == 0 or position.mark is None:
            return self._path.open("rb")
        for path in (self._path, *self._siblings(position.mark)):
            file = path.open("rb")
            if _is_marked(file, position):
                file.seek(position.next, SEEK_SET)
                return file
            file.close()
        reports.logger.warning(
            "%s is another file than the one that was read before: it is read from its beginning",
            self._path,
        )
        return self._path.open("rb")

    def _siblings(self, mark: str) -> list[Path]:
        """The files beside it that may be the old one under a new name."""
        inode = int(mark.split(":")[0])
        if self._path.stat().st_ino == inode:
            return []
        return [
            Path(entry.path)
            for entry in os.scandir(self._path.parent)
            if entry.inode() == inode and stat.S_ISREG(entry.stat().st_mode)
        ]

    @property
    def _inode(self) -> int:
        return os.fstat(self._file.fileno()).st_ino

    def _mark(self) -> str:
        length = min(self._old, SAMPLE)
        return f"{self._inode}:{length}:{_sample(self._file, length)}"

    def close(self) -> None:
        self._file.close()


def _is_marked(file: IO[bytes], position: Position) -> bool:
    """Whether this is the file that was read up to the position."""
    _, length, sample = (position.mark or "").split(":")
    size = os.fstat(file.fileno()).st_size
    return size >= position.next and _sample(file, int(length)) == sample


def _sample(file: IO[bytes], length: int) -> str:
    return blake2b(os.pread(file.fileno(), length, 0), digest_size=8).hexdigest()
