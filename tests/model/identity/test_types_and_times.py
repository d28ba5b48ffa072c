"""Types, versions and times of messages."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from oncebox.model.identity.rules import Json
from oncebox.model.message import Delivery
from support.identities import BROKER_TIME, PRODUCED_AT, TIME, ULID, UUID7, as_json


@pytest.mark.parametrize(
    ("given_version", "version"),
    [
        ("2", 2),
        (2, 2),
        (None, 1),
        ("abc", 0),
        ("", 0),
        ("1.0", 0),
        (-1, 0),
        ("-1", 0),
        (0, 0),
        (2**31 - 1, 2**31 - 1),
        (2**31, 0),
        (2**40, 0),
        ("9" * 20, 0),
        (1.0, 0),
        ([], 0),
    ],
)
def test_a_version_is_a_positive_integer_or_zero(given_version: Any, version: int) -> None:
    assert Json("id", version="v")(as_json(id=1, v=given_version)).version == version


@pytest.mark.parametrize("flag", [True, False])
def test_a_boolean_is_not_a_version(flag: bool) -> None:
    version = Json("id", version="v")(as_json(id=1, v=flag)).version
    assert type(version) is int  # psycopg refuses a list of booleans and integers
    assert version == 0


def test_an_absent_version_is_one() -> None:
    assert Json("id", version="v")(as_json(id=1)).version == 1
    assert Json("id")(as_json(id=1)).version == 1


@pytest.mark.parametrize("absent", [None, 5, True, [], {}])
def test_a_type_that_is_not_text_is_not_a_type(absent: Any) -> None:
    assert Json("id", type="type")(as_json(id=1, type=absent)).type == ""


def test_a_very_long_type_is_cut_and_matches_no_real_type() -> None:
    assert Json("id", type="type")(as_json(id=1, type="x" * 300)).type == "x" * 255 + "..."
    assert Json("id", type="type")(as_json(id=1, type="x" * 255)).type == "x" * 255


def produced_at(id_: str, **fields: Any) -> datetime | None:
    body = as_json(id=id_, **fields).body
    return Json("id", time="time")(Delivery(body, timestamp=BROKER_TIME)).produced_at


@pytest.mark.parametrize("id_", [UUID7, UUID7.upper(), ULID, ULID.lower()])
def test_the_time_inside_an_id_comes_first(id_: str) -> None:
    assert produced_at(id_, time=TIME) == PRODUCED_AT


def test_the_time_field_comes_before_the_brokers_time() -> None:
    assert produced_at("order-1", time=TIME) == datetime(2024, 6, 1, 12, tzinfo=UTC)
    assert produced_at("order-1") == BROKER_TIME
    assert Json("id")(as_json(id="order-1")).produced_at is None


def test_a_time_inside_the_id_is_not_when_it_occurred() -> None:
    assert Json("id", time="time")(as_json(id=UUID7)).occurred_at is None
    assert Json("id", time="time")(as_json(id=UUID7, time=TIME)).occurred_at != PRODUCED_AT


@pytest.mark.parametrize(
    "id_",
    [
        "018fd118-947b-4000-8000-000000000000",  # version 4
        "018fd118-947b-7000-7000-000000000000",  # another variant
        "zzzzzzzz-zzzz-7000-8000-000000000000",
        "________-____-7000-8000-000000000000",
        "00000000-0000-7000-8000-000000000000",  # 1970
        "ffffffff-ffff-7000-8000-000000000000",  # the year 10889
        "00000000000000000000000000",
        "7ZZZZZZZZZZZZZZZZZZZZZZZZZ",
        "order-2024-06-01-000000017",
        "UIUIUIUIUI0000000000000000",
        UUID7[:-1],
        ULID + "0",
    ],
)
def test_an_id_that_only_looks_like_a_time_has_none(id_: str) -> None:
    assert produced_at(id_) == BROKER_TIME


@pytest.mark.parametrize(
    "id_",
    [
        "01HZ8HH53V-invoice-no-0017",
        "01700000000000000000000017",  # a number with leading zeros, not 2012
        "018fd118-947b-7000-8-order-number-17",
    ],
)
def test_an_id_is_a_ulid_or_uuid_only_as_a_whole(id_: str) -> None:
    assert produced_at(id_) == BROKER_TIME


@pytest.mark.parametrize(
    ("time", "occurred_at"),
    [
        ("2024-06-01T00:00:00.123Z", PRODUCED_AT),
        ("2024-06-01T02:00:00.123+02:00", PRODUCED_AT),
        ("2024-06-01T00:00:00.123", PRODUCED_AT),
        (1717200000.123, PRODUCED_AT),
        (1717200000123, PRODUCED_AT),
        (1717200000, datetime(2024, 6, 1, tzinfo=UTC)),
        ("yesterday", None),
        ("2024-13-01T00:00:00Z", None),
        (True, None),
        ([], None),
        (-(10**17), None),
        (10**400, None),
        (1e300, None),
    ],
)
def test_a_time_is_text_or_a_count_of_seconds_or_milliseconds(
    time: Any, occurred_at: datetime | None
) -> None:
    assert Json("id", time="time")(as_json(id="x", time=time)).occurred_at == occurred_at


@pytest.mark.parametrize("time", ["0001-01-01T00:00:00+02:00", "9999-12-31T23:59:59-02:00"])
def test_a_time_can_always_be_written_in_utc(time: str) -> None:
    """The zero of some languages' dates; asyncpg refuses what is not in the years 1 to 9999."""
    occurred_at = Json("id", time="time")(as_json(id="x", time=time)).occurred_at
    assert occurred_at is None or occurred_at.astimezone(UTC)
