"""Databases and brokers for the tests, and a table of their versions at the end."""

import sqlite3
from collections.abc import Iterator
from dataclasses import astuple
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from support import worlds
from support.databases import MigratedDatabases
from support.services import Service, Unavailable, skip_or_fail
from support.services import postgres as postgresql
from support.services.kafka import Kafka
from support.services.kafka import start as start_kafka
from support.services.pgbouncer import Program, find

# The machine may be busy: how long an example takes says nothing.
hypothesis.settings.register_profile("oncebox", deadline=None)
hypothesis.settings.load_profile("oncebox")

SERVICES = pytest.StashKey[set[Service]]()


@pytest.fixture(scope="session")
def postgres(pytestconfig: pytest.Config) -> Iterator[postgresql.Postgres]:
    """One PostgreSQL server for all tests of this process."""
    try:
        server = postgresql.start()
    except Unavailable as reason:
        report(pytestconfig, Service("postgres", "none", str(reason), "skipped"))
        skip_or_fail("postgres", reason)
    report(pytestconfig, Service("postgres", server.version, server.origin, "real"))
    yield server
    server.stop()


@pytest.fixture
def postgres_url(postgres: postgresql.Postgres) -> Iterator[str]:
    """The address of an empty PostgreSQL database of this test's own."""
    url = postgres.create_database()
    yield url
    postgres.heal()
    postgres.clear_database(url)


@pytest.fixture(scope="session")
def migrated_databases(postgres: postgresql.Postgres) -> MigratedDatabases:
    return MigratedDatabases(postgres)


@pytest.fixture
def migrated_postgres_url(migrated_databases: MigratedDatabases) -> Iterator[str]:
    """The address of a PostgreSQL database of this test's own, with the tables of an inbox."""
    url = migrated_databases.lend()
    yield url
    migrated_databases.take_back(url)


@pytest.fixture(scope="session")
def kafka_server(pytestconfig: pytest.Config) -> Iterator[Kafka]:
    """One Kafka broker for all tests of this process."""
    yield from serve_kafka(pytestconfig, "kafka", nodes=1)


@pytest.fixture(scope="session")
def kafka_servers(pytestconfig: pytest.Config) -> Iterator[Kafka]:
    """Three Kafka brokers for all tests of this process."""
    yield from serve_kafka(pytestconfig, "kafka x 3", nodes=3)


def serve_kafka(config: pytest.Config, name: str, nodes: int) -> Iterator[Kafka]:
    """Start Kafka for as long as the tests run."""
    try:
        kafka = start_kafka(nodes)
    except Unavailable as reason:
        report(config, Service(name, "none", str(reason), "skipped"))
        skip_or_fail("kafka", reason)
    report(config, Service(name, kafka.version, kafka.origin, kafka.fidelity))
    yield kafka
    kafka.stop()


@pytest.fixture
def kafka(kafka_server: Kafka) -> Iterator[Kafka]:
    """A Kafka broker, well again and without topics after the test."""
    yield kafka_server
    kafka_server.heal()
    kafka_server.clear()


@pytest.fixture
def kafka_cluster(kafka_servers: Kafka) -> Iterator[Kafka]:
    """Three Kafka brokers that keep three copies of everything, well again after the test."""
    yield kafka_servers
    kafka_servers.heal()
    kafka_servers.clear()


@pytest.fixture(scope="session")
def old_pgbouncer(pytestconfig: pytest.Config) -> Program:
    """A pgbouncer that does not support prepared statements, such as that of Debian 12."""
    return find_pgbouncer(pytestconfig, "pgbouncer", old=True)


@pytest.fixture(scope="session")
def new_pgbouncer(pytestconfig: pytest.Config) -> Program:
    """A pgbouncer that supports prepared statements."""
    return find_pgbouncer(pytestconfig, "new pgbouncer", old=False)


def find_pgbouncer(config: pytest.Config, name: str, *, old: bool) -> Program:
    """The program of a pgbouncer. Debian 12 has only the old one, so only that can be required."""
    try:
        program = find(old=old)
    except Unavailable as reason:
        report(config, Service(name, "none", str(reason), "skipped"))
        skip_or_fail(name, reason)
    report(config, Service(name, program.version, program.origin, "real"))
    return program


@pytest.fixture
def sqlite_url(tmp_path: Path, pytestconfig: pytest.Config) -> str:
    """The address of a SQLite database of this test's own, not created yet."""
    report(pytestconfig, Service("sqlite", sqlite3.sqlite_version, "standard library", "real"))
    return f"sqlite:///{tmp_path}/inbox.db"


@pytest.fixture(params=worlds.ALL)
def world(request: pytest.FixtureRequest) -> Iterator[worlds.World]:
    """Each adapter in turn, on an empty database. Narrow it with `@only(...)`."""
    yield from worlds.make_world(request.param, request)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Remove the worlds that a test marked with `only` does not concern; some are slow."""
    items[:] = [item for item in items if _concerned(item)]


def _concerned(item: pytest.Item) -> bool:
    """Whether a test concerns its world; worlds that are not quick make it slow."""
    world = getattr(getattr(item, "callspec", None), "params", {}).get("world")
    if world is None:
        return True
    marker = item.get_closest_marker("only")
    concerned = marker.args[0] if marker else worlds.ALL
    quick = marker.kwargs.get("quick") if marker else None
    if world not in (worlds.quick(concerned) if quick is None else quick):
        item.add_marker("slow")
    return world in concerned


def pytest_configure(config: pytest.Config) -> None:
    config.stash[SERVICES] = set()


def report(config: pytest.Config, service: Service) -> None:
    """Note a service for the table."""
    config.stash[SERVICES].add(service)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Hand a worker's notes to the process that prints the table."""
    output: dict[str, Any] | None = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["services"] = [astuple(service) for service in session.config.stash[SERVICES]]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take over the services of an xdist worker that ends; a crashed one has none."""
    for values in getattr(node, "workeroutput", {}).get("services", []):
        report(node.config, Service(*values))


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Print what the tests ran against."""
    rows = sorted(astuple(service) for service in config.stash[SERVICES])
    if rows:
        terminalreporter.section("services")
        print_table(terminalreporter, [("service", "version", "origin", "fidelity"), *rows])


def print_table(reporter: pytest.TerminalReporter, rows: list[tuple[str, ...]]) -> None:
    """Print rows in columns as wide as their widest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        reporter.write_line("  ".join(cells).rstrip())
