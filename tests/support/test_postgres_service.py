"""The PostgreSQL service of the tests works as its docstrings say."""

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from support.services.postgres import Postgres


def test_the_server_has_the_version_it_reports(postgres: Postgres) -> None:
    with psycopg.connect(postgres.url()) as connection:
        assert connection.info.parameter_status("server_version") == postgres.version


def test_the_server_writes_a_commit_before_it_confirms_it(postgres: Postgres) -> None:
    with psycopg.connect(postgres.url()) as connection:
        assert connection.execute("show synchronous_commit").fetchone() == ("on",)


def test_two_databases_are_separate(postgres: Postgres, postgres_url: str) -> None:
    other = postgres.create_database()
    with psycopg.connect(postgres_url) as connection:
        connection.execute("create table invoices (id int)")
    with psycopg.connect(other) as connection:
        assert connection.execute("select to_regclass('invoices')").fetchone() == (None,)
    postgres.drop_database(other)


def test_a_cleared_database_is_empty_and_has_no_connections(postgres: Postgres) -> None:
    url = postgres.create_database()
    other = psycopg.connect(url)
    other.execute("create table invoices (id int)")
    other.execute("create schema other")
    other.execute("alter database {} set lock_timeout = '9s'".format(url.rpartition("/")[2]))
    other.commit()
    postgres.clear_database(url)
    assert postgres.create_database() == url
    with pytest.raises(psycopg.OperationalError):
        other.execute("select 1")
    with psycopg.connect(url) as connection:
        assert connection.execute("select to_regclass('invoices')").fetchone() == (None,)
        assert connection.execute("select to_regnamespace('other')").fetchone() == (None,)
        assert connection.execute("show lock_timeout").fetchone() == ("0",)
    postgres.drop_database(url)


@pytest.mark.crash
def test_a_crash_keeps_committed_rows_and_nothing_else(
    postgres: Postgres, postgres_url: str
) -> None:
    with psycopg.connect(postgres_url) as connection:
        connection.execute("create table invoices (id int)")
        connection.execute("insert into invoices values (1)")
        connection.commit()
        connection.execute("insert into invoices values (2)")
        postgres.crash()
        with pytest.raises(psycopg.OperationalError):
            connection.execute("select 1")
    postgres.restart()
    with psycopg.connect(postgres_url) as connection:
        assert connection.execute("select id from invoices").fetchall() == [(1,)]


@pytest.mark.crash
def test_a_crashed_server_is_down_until_it_is_restarted(
    postgres: Postgres, postgres_url: str
) -> None:
    postgres.crash()
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(postgres_url)
    postgres.restart()
    psycopg.connect(postgres_url).close()


@pytest.mark.crash
def test_a_paused_server_responds_after_it_is_resumed(
    postgres: Postgres, postgres_url: str
) -> None:
    impatient = make_conninfo(postgres_url, connect_timeout="2")
    postgres.pause()
    with pytest.raises(psycopg.errors.ConnectionTimeout):
        psycopg.connect(impatient)
    postgres.resume()
    psycopg.connect(impatient).close()


@pytest.mark.crash
def test_healing_brings_back_a_server_that_a_failed_test_left_down(
    postgres: Postgres, postgres_url: str
) -> None:
    postgres.crash()
    postgres.heal()
    psycopg.connect(postgres_url).close()
    postgres.pause()
    postgres.heal()
    psycopg.connect(postgres_url).close()
