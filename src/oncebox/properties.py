"""Properties: what an id, origin, key, type, version or time of a message may be."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from oncebox.errors import Unidentified

LIMIT: Final = 255
"""Bytes of an id, origin or key: longer ones overflow a page of a database index."""


def name(value: Any, what: str) -> str:
    """A value that may be an id, origin or key: 1 to 255 bytes that every database stores."""
    if type(value) is str and 0 < len(value) <= LIMIT and value.isascii() and "\0" not in value:
        return value  # nearly always
    if value is None or value == "":
        raise Unidentified(f"the {what} is missing or empty")
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise Unidentified(f"the {what} is neither text nor an integer")
    text = _storable(value if isinstance(value, str) else _digits(value), what)
    if len(text) > LIMIT or len(text.encode()) > LIMIT:
        raise Unidentified(f"the {what} is longer than {LIMIT} bytes")
    return text


def _digits(value: int) -> str:
    try:
        return str(value)
    except ValueError as error:  # Python refuses to print integers of more than 4300 digits
        raise Unidentified(f"a number of the identity is longer than {LIMIT} digits") from error


def _storable(text: str, what: str) -> str:
    """No database stores lone surrogates; PostgreSQL stores no NUL."""
    if "\0" in text:
        raise Unidentified(f"the {what} contains a NUL character")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise Unidentified(f"the {what} is not valid Unicode") from error
    return text


def utf8(value: bytes, what: str) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise Unidentified(f"the {what} is not UTF-8") from error


def type_name(value: Any) -> str:
    """A type; where there is none the message is a dead letter, not a quarantined one."""
    text = _storable(value, "type") if isinstance(value, str) else ""
    return text if len(text) <= LIMIT else text[:LIMIT] + "..."


def version_number(value: Any) -> int:
    if value is None or (type(value) is int and value == 1):
        return 1
    if isinstance(value, bool):
        return 0
    if isinstance(value, str):
        value = int(value) if value.isdecimal() and len(value) < 10 else 0
    return value if isinstance(value, int) and 0 < value < 2**31 else 0


def sequence_number(value: Any) -> int:
    """A number by which messages of a key are put in order."""
    if isinstance(value, str) and value.isdecimal() and len(value) < 20:
        value = int(value)
    if value is None or value == "":
        raise Unidentified("the sequence number is missing or empty")
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63 - 1:
        raise Unidentified("the sequence number is no integer from 0 to 2^63 - 2")
    return value


def instant(value: Any) -> datetime | None:
    """An instant from RFC 3339 text or a count of (milli)seconds; None if unreadable."""
    try:
        if isinstance(value, str):
            return in_utc(msgspec.convert(value, datetime))
        if isinstance(value, int | float) and not isinstance(value, bool):
            return datetime.fromtimestamp(value / 1000 if value > 1e11 else value, UTC)
    except (msgspec.ValidationError, ValueError, OverflowError, OSError):
        pass
    return None


def in_utc(time: datetime | None) -> datetime | None:
    """The same instant in UTC, which a time without a zone is taken to be in already."""
    if time is None or time.tzinfo is None:
        return time and time.replace(tzinfo=UTC)
    try:
        return time.astimezone(UTC)
    except OverflowError:  # the edges of the calendar
        return None


_UUID7: Final = re.compile(
    r"([0-9a-f]{8})-([0-9a-f]{4})-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", re.IGNORECASE
)
_ULID: Final = re.compile(r"(?=.*[A-Z])[0-7][0-9A-HJKMNP-TV-Z]{25}", re.IGNORECASE)
_CROCKFORD: Final = {c: i for i, c in enumerate("0123456789ABCDEFGHJKMNPQRSTVWXYZ")}
_PLAUSIBLE: Final = range(1_262_304_000_000, 4_102_444_800_000)  # the years 2010 to 2099


def time_in_id(id_: str) -> datetime | None:
    """The time inside a UUIDv7 or ULID."""
    milliseconds = 0
    if len(id_) == 36 and (match := _UUID7.fullmatch(id_)):
        milliseconds = int(match[1] + match[2], 16)
    elif len(id_) == 26 and _ULID.fullmatch(id_):
        for character in id_[:10].upper():
            milliseconds = milliseconds * 32 + _CROCKFORD[character]
    if milliseconds not in _PLAUSIBLE:
        return None
    return datetime.fromtimestamp(milliseconds / 1000, UTC)
