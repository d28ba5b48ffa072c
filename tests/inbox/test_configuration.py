"""Bad configuration fails at once and says what to do."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import create_async_engine

from oncebox import CloudEvents, Consumer, Inbox, Ordering, Worker
from oncebox.brokers.memory import MemorySource
from oncebox.errors import ConfigurationError, HandlerError, OnceboxError
from support.worlds import order

URL = "sqlite:///inbox.db"


@pytest.mark.parametrize("limit", [0, -1, True, "16 MB", None])
def test_a_payload_limit_is_a_number_of_bytes(limit: Any) -> None:
    with pytest.raises(ConfigurationError, match="payload_limit must be a number of bytes"):
        Inbox("billing", URL, payload_limit=limit)


@pytest.mark.parametrize(
    ("url", "remedy"),
    [
        ("postgre://localhost/x", "did you mean 'postgres"),
        ("sqllite:///x.db", "did you mean 'sqlite'"),
        ("mongodb://localhost/x", "oncebox supports SQLite"),
        ("inbox.db", "oncebox supports SQLite"),
        ("postgresql://localhost/x?nonsense=1", "cannot be parsed"),
        ("sqlite:///:memory:", "names no file"),
    ],
)
def test_a_wrong_url_is_refused(url: str, remedy: str) -> None:
    with pytest.raises(ConfigurationError, match=remedy):
        Inbox("billing", url)


def test_a_password_is_never_part_of_the_message() -> None:
    with pytest.raises(ConfigurationError) as caught:
        Inbox("billing", "postgressql://user:hunter2@localhost/x")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("database", [None, 7, object(), {"url": URL}])
def test_an_object_that_is_not_a_database_is_refused(database: Any) -> None:
    with pytest.raises(ConfigurationError, match="a URL, a psycopg pool, a SQLAlchemy Engine"):
        Inbox("billing", database)


def test_an_engine_of_another_database_is_refused() -> None:
    engine = sqlalchemy.create_engine("sqlite://")
    engine.dialect.name = "oracle"
    with pytest.raises(ConfigurationError, match="not oracle"):
        Inbox("billing", engine)


@pytest.mark.parametrize(
    ("options", "remedy"),
    [
        ({"retires": None}, "unknown option 'retires', did you mean 'retry'"),
        ({"zzz": None}, "known: name, database, identity"),
        ({"unknown_type": "drop"}, "'dead' or 'ignore'"),
        ({"transaction_timeout": timedelta(0)}, "at least one second"),
        ({"transaction_timeout": 300}, "must be a timedelta"),
        ({"identity": CloudEvents}, "such as CloudEvents()"),
        ({"identity": "id"}, "such as CloudEvents()"),
        ({"retry": 5}, "must be Retry(max_attempts=...)"),
    ],
)
def test_a_wrong_option_is_refused(options: dict[str, Any], remedy: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(remedy)):
        Inbox("billing", URL, **options)


@pytest.mark.parametrize("name", ["", "x" * 256, "a\0b", 7])
def test_a_wrong_name_is_refused(name: Any) -> None:
    with pytest.raises(ConfigurationError, match="1 to 255 bytes"):
        Inbox(name, URL)


def test_an_ordering_may_be_given_as_text() -> None:
    assert Inbox("billing", URL, ordering="skip_dead")._engine.ordering is Ordering.skip_dead  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="sideways"):
        Inbox("billing", URL, ordering="sideways")  # type: ignore[arg-type]


def test_handlers_are_sync_or_async_as_the_database_is() -> None:
    asynchronous = Inbox("billing", create_async_engine("sqlite+aiosqlite:///x.db"))
    with pytest.raises(HandlerError, match="but the database is async"):
        asynchronous.on("order")(lambda payload: None)
    synchronous = Inbox("billing", sqlalchemy.create_engine(URL))

    async def handler(payload: dict[str, Any]) -> None: ...

    with pytest.raises(HandlerError, match="but the database is sync"):
        synchronous.on("order")(handler)
    with pytest.raises(ConfigurationError, match=r"await inbox\.amigrate"):
        asynchronous.migrate()
    with pytest.raises(ConfigurationError, match=r"inbox\.migrate"):
        asyncio.run(synchronous.amigrate())


def test_processing_is_sync_or_async_as_the_handlers_are() -> None:
    inbox = Inbox("billing", URL)
    inbox.on("order")(lambda payload: None)
    with pytest.raises(HandlerError, match=r"handler .* is sync: call inbox\.process\(\)"):
        asyncio.run(inbox.aprocess([order("a")]))


async def asynchronous(payload: dict[str, Any]) -> None: ...


SYNC_CALLS: list[tuple[str, Callable[[Inbox], object]]] = [
    ("await inbox.aprocess()", lambda inbox: inbox.process([order("a")])),
    ("await inbox.areceive()", lambda inbox: inbox.receive([order("a")])),
    ("await inbox.adrain()", lambda inbox: inbox.drain()),
    ("await Worker(inbox).arun()", lambda inbox: Worker(inbox).run()),
    (
        "await Consumer(inbox, source).arun()",
        lambda inbox: Consumer(inbox, MemorySource([])).run(),
    ),
]


@pytest.mark.parametrize(("right", "call"), SYNC_CALLS)
def test_a_sync_call_of_an_async_inbox_names_the_right_call(
    right: str, call: Callable[[Inbox], object]
) -> None:
    inbox = Inbox("billing", URL)
    inbox.on("order")(asynchronous)
    with pytest.raises(HandlerError) as caught:
        call(inbox)
    assert str(caught.value) == f"handler asynchronous is async: call {right}"


def test_an_async_inbox_refuses_a_sync_with_block() -> None:
    inbox = Inbox("billing", URL)
    inbox.on("order")(asynchronous)
    with pytest.raises(ConfigurationError, match="is async: use async with"), inbox:
        pytest.fail("entered")


def test_an_inbox_without_handlers_does_not_process() -> None:
    with pytest.raises(ConfigurationError, match="has no handlers"):
        Inbox("billing", URL).process([order("a")])


@pytest.mark.parametrize("batch", [order("a"), b"bytes", "text", [b"bytes"], [order("a"), None]])
def test_an_object_that_is_not_a_list_of_deliveries_is_refused(batch: Any) -> None:
    inbox = Inbox("billing", URL)
    inbox.on("order")(lambda payload: None)
    with pytest.raises(OnceboxError, match="list"):
        inbox.process(batch)


def test_an_empty_batch_touches_nothing() -> None:
    inbox = Inbox("billing", "postgresql://unknown@127.0.0.1:1/nothing")
    inbox.on("order")(lambda payload: None)
    assert inbox.process([]) == []


def test_an_option_of_a_policy_is_explained() -> None:
    with pytest.raises(ConfigurationError) as caught:
        Inbox("billing", URL, max_attempts=3)  # type: ignore[call-arg]
    text = "unknown option 'max_attempts', write retry=Retry(max_attempts=3)"
    assert str(caught.value) == text
    with pytest.raises(ConfigurationError, match=r"write retention=Retention\(days=3\)"):
        Inbox("billing", URL, days=3)  # type: ignore[call-arg]


def test_an_unknown_option_of_a_handler_is_refused_with_a_suggestion() -> None:
    inbox: Any = Inbox("billing", URL)
    with pytest.raises(ConfigurationError, match="unknown option 'retries', did you mean 'retry'"):
        inbox.on("order", retries=3)
    with pytest.raises(ConfigurationError, match=r"write retry=Retry\(max_attempts=3\)"):
        inbox.on("order", max_attempts=3)
