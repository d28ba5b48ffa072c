"""Where archives are: a local directory, or a URL that fsspec supports."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Protocol
from urllib.parse import unquote

from oncebox.errors import ConfigurationError, MissingExtra
from oncebox.model.retention import Retention


class Folder(Protocol):
    """A place for files, which have names with slashes."""

    def create(self, name: str) -> BinaryIO:
        """Create a file for writing. It must not exist yet."""
        ...

    def finish(self, file: BinaryIO, name: str) -> None:
        """Close a complete file. From now on it survives a crash."""
        ...

    def open(self, name: str) -> BinaryIO:
        """Open a file for reading."""
        ...

    def names(self, within: str) -> list[str]:
        """The names of all files that begin with `within`, sorted."""
        ...

    def remove(self, name: str) -> None:
        """Remove a file."""
        ...


def folder_of(place: str | Path) -> Folder:
    """The folder for a local path or an fsspec URL."""
    text = os.fspath(place)
    if "://" not in text:
        return Directory(Path(text))
    if text.startswith("file://"):
        return Directory(Path(unquote(text.removeprefix("file://"))))
    return Remote(text)


def with_checked_archive(retention: Retention | None) -> Retention | None:
    """Return the retention. Raises now what its first purge would raise for a wrong location."""
    if retention is not None and retention.archive is not None:
        folder_of(retention.archive)
    return retention


class Directory:
    """A local directory."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def create(self, name: str) -> BinaryIO:
        path = self._root / f"{name}.part"
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("xb")

    def finish(self, file: BinaryIO, name: str) -> None:
        file.flush()
        os.fsync(file.fileno())
        file.close()
        path = self._root / name
        (self._root / f"{name}.part").rename(path)
        for folder in (path.parent, *path.parent.parents):
            _sync_folder(folder)
            if folder == self._root:
                break

    def open(self, name: str) -> BinaryIO:
        return (self._root / name).open("rb")

    def names(self, within: str) -> list[str]:
        start = self._root / within
        found = (path for path in start.rglob("*") if path.is_file())
        return sorted(path.relative_to(self._root).as_posix() for path in found)

    def remove(self, name: str) -> None:
        for path in (self._root / name, self._root / f"{name}.part"):
            path.unlink(missing_ok=True)


def _sync_folder(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class Remote:
    """A folder behind fsspec. A file exists there once it is closed."""

    def __init__(self, url: str) -> None:
        try:
            from fsspec.core import url_to_fs
        except ModuleNotFoundError as error:
            raise MissingExtra("fsspec", "archive") from error
        try:
            self._system, root = url_to_fs(url)
        except (ImportError, ValueError) as error:
            scheme = url.partition("://")[0]
            raise ConfigurationError(f"cannot use an archive at {scheme}://: {error}") from error
        self._root = root.rstrip("/")

    def create(self, name: str) -> BinaryIO:
        path = self._path(name)
        self._system.makedirs(path.rpartition("/")[0], exist_ok=True)
        file: BinaryIO = self._system.open(path, "wb")
        return file

    def finish(self, file: BinaryIO, name: str) -> None:
        file.close()

    def open(self, name: str) -> BinaryIO:
        file: BinaryIO = self._system.open(self._path(name), "rb")
        return file

    def names(self, within: str) -> list[str]:
        with suppress(FileNotFoundError):
            found: list[str] = self._system.find(self._path(within))
            return sorted(path[len(self._root) :].lstrip("/") for path in found)
        return []

    def remove(self, name: str) -> None:
        with suppress(FileNotFoundError):
            self._system.rm_file(self._path(name))

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"
