"""The environment of a benchmark: servers, started when they are needed, databases and folders."""

from __future__ import annotations

import os
import tempfile
import time
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Self

import psycopg

from bench import business
from support.services import kafka, postgres


class Environment:
    """A PostgreSQL server with fsync on, a folder for SQLite files on the same disk, and Kafka."""

    def __init__(self) -> None:
        self.batch = 100
        """Messages per transaction."""
        self._stack = ExitStack()
        self._folder = Path(
            self._stack.enter_context(tempfile.TemporaryDirectory(prefix="oncebox-bench-"))
        )
        self._numbers = count(1)
        self._server: postgres.Postgres | None = None
        self._broker: kafka.Kafka | None = None

    @property
    def server(self) -> postgres.Postgres:
        if self._server is None:
            self._server = postgres.start(fsync=True)
            self._stack.callback(self._server.stop)
        return self._server

    @property
    def broker(self) -> kafka.Kafka:
        if self._broker is None:
            self._broker = kafka.start()
            self._stack.callback(self._broker.stop)
        return self._broker

    def database(self) -> str:
        """The URL of a new, empty database."""
        url = self.server.create_database()
        self._stack.callback(self.server.drop_database, url)
        return url

    def postgres(self) -> str:
        """The URL of a new database with the business tables."""
        url = self.database()
        business.create_on_postgres(url)
        return url

    def set_autovacuum_interval(self, seconds: str) -> bool:
        """Set how often autovacuum runs. Returns False if the server is not ours."""
        if self.server.cluster is None:
            return False
        with psycopg.connect(self.server.url(), autocommit=True) as connection:
            connection.execute(f"ALTER SYSTEM SET autovacuum_naptime = '{seconds}'")
            connection.execute("SELECT pg_reload_conf()")
        return True

    def sqlite(self) -> str:
        """The URL of a new file with the business tables."""
        path = str(self._folder / f"{next(self._numbers)}.db")
        business.create_on_sqlite(path)
        return f"sqlite:///{path}"

    def folder(self) -> Path:
        """A new, empty folder."""
        folder = self._folder / str(next(self._numbers))
        folder.mkdir()
        return folder

    def fsync(self, times: int = 50) -> float:
        """Seconds that the disk takes to write a page of a log for good, as every commit does."""
        with (self._folder / "probe").open("wb", buffering=0) as file:
            file.write(bytes(8192))
            os.fsync(file.fileno())
            started = time.perf_counter()
            for _ in range(times):
                os.pwrite(file.fileno(), bytes(8192), 0)
                os.fdatasync(file.fileno())
            return (time.perf_counter() - started) / times

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stack.close()
