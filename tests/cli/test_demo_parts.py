"""The parts of the demo: its stream, its books, the naive consumer, the view and the errors."""

from __future__ import annotations

import errno
import json
import sqlite3
import sys
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from oncebox.cli.demo import naive
from oncebox.cli.demo.books import (
    Balance,
    SqliteBooks,
    balance,
    books_at,
    create_tables,
    write_sent,
)
from oncebox.cli.demo.failures import explained
from oncebox.cli.demo.state import State
from oncebox.cli.demo.stream import Stream
from oncebox.cli.demo.view import render
from oncebox.errors import DatabaseUnavailable, MissingExtra, OnceboxError

PICTURE = Path(__file__).parents[2] / "docs" / "demo.svg"

CLICK = {"id": "evt-1", "order": "order-1", "account": "account-01", "cents": 250}
SECOND_CLICK = {**CLICK, "id": "evt-2"}
DROPPED = {"id": "evt-3", "order": "order-2", "account": "account-99", "cents": 100}


@pytest.fixture
def books(tmp_path: Path) -> Iterator[SqliteBooks]:
    books = SqliteBooks(tmp_path / "naive.db")
    create_tables(books, naive=True)
    yield books
    books.close()


@pytest.fixture
def consumer(books: SqliteBooks) -> Iterator[Any]:
    connection = naive.connect(books.url)
    yield connection
    connection.close()


def sent(books: SqliteBooks, folder: Path, *events: dict[str, Any]) -> Balance:
    """The balance after these events were sent."""
    stream = folder / "stream"
    stream.write_text("".join(json.dumps(event) + "\n" for event in events))
    write_sent(books, stream)
    return balance(books)


def test_the_stream_counts_the_expected_payments() -> None:
    stream = Stream(1)
    lines = [*stream.lines(1000), *stream.late_account(3)]
    expected = stream.expected
    assert len(lines) == expected.deliveries == 1003
    assert expected.payments + expected.repeated + expected.doubled == 1003
    assert len({json.loads(line)["order"] for line in lines}) == expected.payments
    assert len(set(lines)) == expected.payments + expected.doubled
    assert expected.repeated > 100
    assert expected.doubled > 5


def test_a_crash_before_the_record_makes_the_naive_consumer_book_twice(
    books: SqliteBooks, consumer: Any, tmp_path: Path
) -> None:
    naive.book(consumer, CLICK)  # kill -9 here: the event is not recorded
    naive.handle(consumer, CLICK)
    naive.handle(consumer, CLICK)
    assert sent(books, tmp_path, CLICK) == Balance(1, 1, twice_after_kill=1, cents_off=250)


def test_a_double_click_is_not_counted_as_a_crash(
    books: SqliteBooks, consumer: Any, tmp_path: Path
) -> None:
    naive.handle(consumer, CLICK)
    naive.handle(consumer, SECOND_CLICK)
    found = sent(books, tmp_path, CLICK, SECOND_CLICK)
    assert found == Balance(1, 1, twice_by_click=1, cents_off=250)


def test_the_naive_consumer_drops_a_payment_that_fails(
    books: SqliteBooks, consumer: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    naive.handle(consumer, DROPPED)
    naive.handle(consumer, CLICK)
    assert capsys.readouterr().err.count("order-2: attempt") == 3
    found = sent(books, tmp_path, DROPPED, CLICK)
    assert found == Balance(2, 1, lost=1, cents_off=-100)
    assert not found.is_right


def test_the_naive_consumer_books_a_payment_once_without_crashes_and_double_clicks(
    books: SqliteBooks, consumer: Any, tmp_path: Path
) -> None:
    naive.handle(consumer, CLICK)
    naive.handle(consumer, CLICK)
    assert sent(books, tmp_path, CLICK) == Balance(1, 1)


@pytest.mark.parametrize(("width", "height"), [(80, 24), (140, 40)])
def test_the_view_fits_on_the_terminal(width: int, height: int) -> None:
    state = State(phase="sending payments, kill -9 at random moments", is_over=True)
    for _ in range(50):
        state.note("kill -9: naive consumer, oncebox consumer")
    for over in (True, False):
        state.is_over = over
        console = Console(width=width, height=height, file=StringIO(), record=True)
        console.print(render(state, console))
        lines = console.export_text().splitlines()
        assert len(lines) < height
        assert "kill -9: naive consumer, oncebox consumer" in lines[-1]
        assert "…" not in "".join(lines)


def test_the_picture_in_the_readme_is_light_and_shows_this_view() -> None:
    shown = PICTURE.read_text().replace("&#160;", " ")
    assert PICTURE.stat().st_size < 60_000
    assert "booked twice after kill -9" in shown
    assert "oncebox booked each of" in shown


@pytest.mark.parametrize(
    ("error", "named"),
    [
        (OSError(errno.EROFS, "Read-only file system"), "Read-only file system. Check its"),
        (OSError(errno.ENOSPC, "No space left on device"), "No space left on device. Free some"),
        (sqlite3.OperationalError("database or disk is full"), "disk is full. Free some space"),
        (sqlite3.OperationalError("unable to open database file"), "file. Check its permissions"),
    ],
)
def test_a_temp_folder_that_cannot_be_written_is_explained(error: Exception, named: str) -> None:
    with pytest.raises(OnceboxError, match="cannot write to the temp folder") as raised:
        with explained(None):
            raise error
    assert named in str(raised.value)
    assert "TMPDIR" in str(raised.value)


def test_a_limit_of_the_system_is_not_blamed_on_the_folder() -> None:
    with pytest.raises(OnceboxError, match="ulimit") as raised, explained(None):
        raise OSError(errno.EAGAIN, "Resource temporarily unavailable")
    assert "folder" not in str(raised.value)


def test_other_errors_are_passed_on() -> None:
    for error in (DatabaseUnavailable("gone"), BrokenPipeError(), ZeroDivisionError()):
        with pytest.raises(type(error)) as raised, explained(None):
            raise error
        assert raised.value is error


def test_an_unreachable_server_is_explained_without_the_password() -> None:
    url = "postgresql://me:secret@127.0.0.1:1/shop"
    with pytest.raises(OnceboxError) as raised, explained(url):
        books_at(url, "oncebox")
    text = str(raised.value)
    assert text.startswith("the demo cannot use postgresql://127.0.0.1:1/shop: connection failed")
    assert "secret" not in text
    assert "\n" not in text


def test_a_missing_driver_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(MissingExtra, match=r"pip install 'oncebox\[postgres\]'"):
        books_at("postgresql://127.0.0.1:1/shop", "oncebox")
