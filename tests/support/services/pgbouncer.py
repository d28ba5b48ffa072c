"""A real pgbouncer in front of PostgreSQL: an old one, or one that knows prepared statements."""

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg

from support.services import (
    PATIENCE,
    Unavailable,
    cache,
    dies_with_us,
    free_port,
    last_line,
    locked,
    read_lines,
    required,
    wait_until,
)
from support.services.postgres import UNPRIVILEGED, dropped_to_unprivileged, mapped_to_unprivileged

KNOWS_PREPARED = (1, 21)
"""The first version that follows prepared statements from server to server."""

CONFIGURATION = """
[databases]
* = host={host} port={port}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {own_port}
unix_socket_dir =
auth_type = trust
auth_file = {home}/users
pool_mode = {mode}
default_pool_size = {size}
server_lifetime = 3600
{more}
"""

LIBRARIES = {
    "bookworm": (
        "libc6 libc-ares2 libevent-2.1-7 libssl3 libsystemd0 libpam0g libcap2 libaudit1 libcap-ng0 "
        "libgcrypt20 libgpg-error0 liblzma5 libzstd1 liblz4-1"
    ),
    "trixie": (
        "libc6 libcares2 libevent-2.1-7t64 libssl3t64 libsystemd0 libpam0g libcap2 libaudit1 "
        "libcap-ng0 libzstd1"
    ),
}
"""The packages that pgbouncer's own needs, by release of Debian: they need not fit the system's."""


@dataclass(frozen=True)
class Program:
    """A pgbouncer: how to call it, and where it came from."""

    command: tuple[str, ...]
    origin: str

    @property
    def version(self) -> str:
        """The version as the program tells it, such as 1.18.0."""
        answer = subprocess.run([*self.command, "--version"], capture_output=True, text=True)
        found = re.search(r"PgBouncer ([\d.]+)", answer.stdout)
        if found is None:
            raise Unavailable(f"{self.command[0]} does not start: {last_line(answer.stderr)}")
        return found[1]

    @property
    def knows_prepared(self) -> bool:
        major, minor = self.version.split(".")[:2]
        return (int(major), int(minor)) >= KNOWS_PREPARED


@dataclass(frozen=True)
class Pgbouncer:
    """A pooler in front of a server; any of the server's databases can be reached through it."""

    host: str
    port: int

    def url(self, url: str) -> str:
        """The same database by way of the pooler."""
        user = urlsplit(url).netloc.rpartition("@")[0]
        return urlunsplit(urlsplit(url)._replace(netloc=f"{user}@{self.host}:{self.port}"))


def find(*, old: bool) -> Program:
    """The first pgbouncer that can be had, from before or after it knew prepared statements."""
    for program in system():
        if program.knows_prepared is not old:
            return program
    return debian("bookworm" if old else "trixie")


def system() -> Iterator[Program]:
    """The program that ONCEBOX_TEST_PGBOUNCER names, and that of the system's packages.

    No URL: each test starts a pooler of its own, with the mode and the size that it needs.
    """
    if named := os.environ.get("ONCEBOX_TEST_PGBOUNCER"):
        yield Program((named,), "ONCEBOX_TEST_PGBOUNCER")
    path = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin"))
    if found := shutil.which("pgbouncer", path=path):
        yield Program((found,), f"system, {found}")


def debian(release: str) -> Program:
    """The program of a release of Debian, unpacked outside the system; only when asked for."""
    target = cache() / f"pgbouncer-{release}"
    with locked(target.with_suffix(".lock")):
        if not target.exists():
            if not required("pgbouncer"):
                raise Unavailable(
                    f"pgbouncer of Debian {release} is not installed; "
                    "ONCEBOX_TEST_REQUIRE=pgbouncer lets apt download it"
                )
            download(release, target)
    libraries = [str(path) for path in target.glob("**/*-linux-gnu") if path.is_dir()]
    loader = next(target.glob("**/ld-linux*.so.*"))
    command = (str(loader), "--library-path", ":".join(libraries), f"{target}/usr/sbin/pgbouncer")
    return Program(command, f"apt, Debian {release}")


def download(release: str, target: Path) -> None:
    """Let apt download packages and unpack them, all of them or nothing."""
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        folder = Path(scratch)
        for name in ("lists/partial", "cache/archives/partial", "debs", "root"):
            (folder / name).mkdir(parents=True)
        sources = folder / "debian.list"
        keys = "/usr/share/keyrings/debian-archive-keyring.gpg"
        sources.write_text(f"deb [signed-by={keys}] http://deb.debian.org/debian {release} main\n")
        settings = {
            "Dir::Etc::SourceList": sources,
            "Dir::Etc::SourceParts": "/dev/null",
            "Dir::State::Lists": folder / "lists",
            "Dir::Cache": folder / "cache",
            "APT::Sandbox::User": "root",
        }
        options = [f"-o{name}={value}" for name, value in settings.items()]
        run(folder, "apt-get", *options, "-q", "update")
        packages = ["pgbouncer", *LIBRARIES[release].split()]
        run(folder / "debs", "apt-get", *options, "-q", "download", *packages)
        for package in sorted((folder / "debs").glob("*.deb")):
            run(folder, "dpkg-deb", "-x", str(package), "root")
        (folder / "root").rename(target)


def run(folder: Path, *command: str) -> None:
    """Run a program of Debian to its end."""
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)
    except (FileNotFoundError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"cannot download pgbouncer: {error}") from error
    if done.returncode:
        raise Unavailable(f"{command[0]} failed: {last_line(done.stderr)}")


@contextmanager
def serve(
    program: Program, url: str, *, mode: str = "transaction", size: int = 2, more: str = ""
) -> Iterator[Pgbouncer]:
    """Run a pgbouncer in front of the server of a URL."""
    home = Path(tempfile.mkdtemp(prefix="oncebox-pgbouncer-"))
    parts = urlsplit(url)
    pooler = Pgbouncer("127.0.0.1", free_port())
    values = {"host": parts.hostname, "port": parts.port, "own_port": pooler.port}
    text = CONFIGURATION.format(**values, home=home, mode=mode, size=size, more=more)
    (home / "pgbouncer.ini").write_text(text)
    (home / "users").write_text(f'"{parts.username}" "{parts.password or ""}"\n')
    prefix = unprivileged(program, home)
    with (home / "log").open("wb") as log:
        process = subprocess.Popen(
            [*prefix, *dies_with_us(), *program.command, str(home / "pgbouncer.ini")],
            cwd=home,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )

    def ready() -> bool:
        if process.poll() is not None:
            raise Unavailable("pgbouncer did not start: " + " / ".join(read_lines(home / "log")))
        try:
            psycopg.connect(pooler.url(url), autocommit=True, connect_timeout=5).close()
        except psycopg.OperationalError:
            return False
        return True

    try:
        wait_until(ready, "pgbouncer accepts no connections")
        yield pooler
    finally:
        process.kill()
        process.wait(PATIENCE)
        shutil.rmtree(home, ignore_errors=True)


def unprivileged(program: Program, home: Path) -> list[str]:
    """The command prefix under which pgbouncer, which refuses root, agrees to run."""
    if os.geteuid() != 0:
        return []
    for path in (home, *home.iterdir()):
        path.chmod(0o755)
    command = [*program.command, "--version"]
    for prefix in (mapped_to_unprivileged(), dropped_to_unprivileged()):
        found = shutil.which(prefix[0]) is not None
        if (
            found
            and subprocess.run([*prefix, *command], cwd="/", capture_output=True).returncode == 0
        ):
            if prefix == dropped_to_unprivileged():
                os.chown(home, UNPRIVILEGED, UNPRIVILEGED)
            return prefix
    raise Unavailable("pgbouncer refuses root, and neither unshare nor setpriv can shed it")
