"""Files of JSON lines: one file, or all files of a folder. Each file is a partition."""

from __future__ import annotations

import logging
import os
import stat
import time
from collections.abc import Sequence
from datetime import timedelta
from hashlib import blake2b
from io import SEEK_SET
from pathlib import Path
from typing import IO

from oncebox.brokers.contract import Batch, Features
from oncebox.brokers.lines import LIMIT, stripped
from oncebox.errors import ConfigurationError
from oncebox.model.message import Delivery
from oncebox.model.outcome import Outcome
from oncebox.model.position import Gauge, Position

logger = logging.getLogger("oncebox")

SAMPLE = 256
"""Bytes at the beginning of a file, and before the end of the latest batch, that identify it."""

POLL_INTERVAL = 0.1
"""Seconds between two checks of files without new lines."""


class FileSource:
    """`file:///path/to/events.jsonl`, or a folder of such files.

    With `follow`, it also waits for lines that are appended later. A rotated file is read to its
    end before the new one. A truncated or replaced file is read from its beginning.
    """

    def __init__(self, path: str | Path, *, follow: bool = False) -> None:
        self.path = Path(os.path.abspath(path))
        if not self.path.exists() and not follow:
            raise ConfigurationError(
                f"file or folder {self.path} does not exist: check the path, or add ?follow=1 to "
                "wait for it"
            )
        self.name = f"file:{self.path}"
        self.features = Features(order="partition", durable=True, ends=not follow)
        self._follow = follow
        self._readers: dict[str, _Reader] = {}

    def partitions(self) -> Sequence[str]:
        if self.path.is_dir():
            files = (entry for entry in os.scandir(self.path) if entry.is_file())
            return sorted(entry.name for entry in files if not entry.name.startswith("."))
        return [self.path.name] if self.path.exists() else []

    def is_reassigned(self) -> bool:
        return False

    def start_position(self, partition: str) -> Position:
        return Position(partition, 0)

    def open(self, position: Position) -> None:
        self.release(position.partition)
        self._readers[position.partition] = _Reader(
            self._path(position.partition), position, self._follow
        )

    def read(self, limit: int, seconds: float) -> Batch | None:
        deadline = time.monotonic() + seconds
        while True:
            for partition, reader in list(self._readers.items()):
                batch = reader.read(limit, self.name)
                if batch is not None:
                    # The next call starts with the other partitions.
                    self._readers[partition] = self._readers.pop(partition)
                    return batch
            if time.monotonic() + POLL_INTERVAL > deadline:
                return None
            time.sleep(POLL_INTERVAL)

    def ack(self, batch: Batch, outcomes: Sequence[Outcome]) -> None:
        """The position is committed with the work."""

    def nack(self, batch: Batch) -> None:
        self.release(batch.partition)

    def extend(self, batch: Batch) -> None:
        """Lines of a file have no lease."""

    def gauge(self, partition: str) -> Gauge:
        reader = self._readers.get(partition)
        return reader.gauge() if reader is not None else Gauge()

    def trouble(self) -> None:
        """A file that cannot be read raises OSError."""

    def release(self, partition: str) -> None:
        reader = self._readers.pop(partition, None)
        if reader is not None:
            reader.close()

    def is_finished(self, partition: str, position: Position | None) -> bool:
        if self._follow:
            return False
        if partition in self._readers:
            return self._readers[partition].is_at_end
        return position is not None and self._is_read_to_its_end(position)

    def _is_read_to_its_end(self, position: Position) -> bool:
        """False also for another file at this path: it is read from its beginning."""
        path = self._path(position.partition)
        if position.log_id is None or path.stat().st_size > position.next:
            return path.stat().st_size <= position.next
        with path.open("rb") as file:
            return _has_log_id(file, position)

    def retention(self) -> timedelta | None:
        return None

    def close(self) -> None:
        for partition in list(self._readers):
            self.release(partition)

    def _path(self, partition: str) -> Path:
        return self.path / partition if self.path.is_dir() else self.path


class _Reader:
    """Reads one file line by line."""

    def __init__(self, path: Path, position: Position, follow: bool) -> None:
        self._path = path
        self._partition = position.partition
        self._follow = follow
        self._old = position.next
        """The position after the last delivery that was read."""
        self._file = self._open(position)
        self.is_at_end = False

    def read(self, limit: int, source: str) -> Batch | None:
        deliveries: list[Delivery] = []
        while len(deliveries) < limit:
            offset = self._file.tell()
            line = self._line()
            if line is None:
                if deliveries or not self._reopen():
                    break
                continue
            if body := stripped(line):
                place = f"{self._partition}/{self._inode}/{offset}"
                deliveries.append(Delivery(body, source=source, coordinates=place))
        self.is_at_end = not deliveries
        if not deliveries:
            return None
        old, self._old = self._old, self._file.tell()
        return Batch(deliveries, self._partition, old, self._old, self._log_id())

    def gauge(self) -> Gauge:
        """Return the bytes that were not read yet as the lag."""
        return Gauge(lag=max(0, os.fstat(self._file.fileno()).st_size - self._old))

    def _line(self) -> bytes | None:
        """Return the next line; None at the end, or while the line is not complete."""
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

    def _reopen(self) -> bool:
        """Continue after the end: in a new file of this name, or again in a truncated one.

        Returns False if there is neither.
        """
        try:
            status = self._path.stat()
        except FileNotFoundError:  # the rotation is not complete
            return False
        if status.st_ino != self._inode:
            if self._file.readline(1):  # its writer appended before it switched files
                self._file.seek(-1, os.SEEK_CUR)
                return False
            self._file.close()
            self._file = self._path.open("rb")
            return True
        if self._follow and status.st_size < self._file.tell():
            logger.warning(
                "%s was truncated to %d bytes, %d were read; reading it from its beginning",
                self._path,
                status.st_size,
                self._file.tell(),
            )
            self._file.seek(0, SEEK_SET)
            return True
        return False

    def _open(self, position: Position) -> IO[bytes]:
        """Open the file of the position, also under a new name; else the one at the path."""
        if position.next == 0 or position.log_id is None:
            return self._path.open("rb")
        for path in (self._path, *self._siblings(position.log_id)):
            file = path.open("rb")
            if _has_log_id(file, position):
                file.seek(position.next, SEEK_SET)
                return file
            file.close()
        logger.warning(
            "%s is not the file that was read up to byte %d; reading it from its beginning. Unread "
            "lines of the old file are not read",
            self._path,
            position.next,
        )
        return self._path.open("rb")

    def _siblings(self, log_id: str) -> list[Path]:
        """Return the files of the folder that may be the old file under a new name."""
        inode = int(log_id.split(":")[0])
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

    def _log_id(self) -> str:
        length = min(self._old, SAMPLE)
        head = _sample(self._file, length)
        tail = _sample(self._file, length, self._old - length)
        return f"{self._inode}:{length}:{head}:{self._old}:{tail}"

    def close(self) -> None:
        self._file.close()


def _has_log_id(file: IO[bytes], position: Position) -> bool:
    """Return True if this is the file that was read up to the position.

    If a batch was stored in parts, the position may be before the place where the batch ended.
    """
    _, length, head, end, tail = (position.log_id or "").split(":")
    if os.fstat(file.fileno()).st_size < max(position.next, int(end)):
        return False
    if _sample(file, int(length)) != head:
        return False
    return _sample(file, int(length), int(end) - int(length)) == tail


def _sample(file: IO[bytes], length: int, offset: int = 0) -> str:
    return blake2b(os.pread(file.fileno(), length, offset), digest_size=8).hexdigest()
