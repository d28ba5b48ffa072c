"""Failures of the temp folder and of the server, as errors in one line."""

from __future__ import annotations

import errno
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from oncebox.errors import DatabaseUnavailable, OnceboxError
from oncebox.storage.drivers import error_codes

NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
NOT_ALLOWED = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT)


@contextmanager
def explained(database: str | None) -> Iterator[None]:
    """Raise OnceboxError with what happened, why, and what to do, instead of a system's error."""
    try:
        yield
    except BrokenPipeError:  # the output goes to `head`: click ends quietly
        raise
    except OSError as error:
        raise OnceboxError(_system_failed(error)) from error
    except DatabaseUnavailable as error:
        if database is not None or not _is_disk_full(error.__cause__):
            raise
        raise OnceboxError(_folder_failed("the disk is full", is_full=True)) from error
    except sqlite3.Error as error:
        raise OnceboxError(_folder_failed(str(error), is_full="full" in str(error))) from error
    except Exception as error:
        if database is None or type(error).__module__.split(".")[0] != "psycopg":
            raise
        raise OnceboxError(_server_failed(database, error)) from error


def _is_disk_full(cause: BaseException | None) -> bool:
    return cause is not None and error_codes.is_disk_full(cause)


def _system_failed(error: OSError) -> str:
    why = error.strerror or str(error)
    if error.errno in (*NO_SPACE, *NOT_ALLOWED):
        return _folder_failed(why, is_full=error.errno in NO_SPACE)
    return f"the demo cannot run: {why}. Check the limits of this shell with `ulimit -a`"


def _folder_failed(why: str, *, is_full: bool) -> str:
    remedy = "Free some space there" if is_full else "Check its permissions"
    return (
        f"the demo cannot write to the temp folder {_temp_folder()}: {why}. {remedy}, or set "
        "TMPDIR to another folder"
    )


def _temp_folder() -> str:
    try:
        return tempfile.gettempdir()
    except OSError:  # no folder is writable
        return "of this system"


def _server_failed(url: str, error: Exception) -> str:
    why = (str(error).splitlines() or ["no reason given"])[0].rstrip(".")
    return (
        f"the demo cannot use {_without_password(url)}: {why}. Check that the server runs and the "
        "role may create schemas, or omit --database: then the demo uses SQLite"
    )


def _without_password(url: str) -> str:
    split = urlsplit(url)
    return f"{split.scheme}://{split.netloc.rpartition('@')[2]}{split.path}"
