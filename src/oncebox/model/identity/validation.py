"""Validates the id, origin, key, type, version and time of a message."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID

import msgspec

from oncebox.errors import MissingId

LIMIT: Final = 255
"""The most bytes of an id, origin or key: longer ones overflow a page of a database index."""


_REMEDIES: Final = {
    "id": ": identity= of the inbox says in which field or header it is",
    "origin": ' (in a CloudEvent, the attribute "source"): if the messages are not CloudEvents, '
    "pass identity=Json(...) or Headers(...) to the inbox",
}


def name(value: Any, what: str) -> str:
    """A valid id, origin or key: 1 to 255 bytes that every database stores. Raises MissingId."""
    if type(value) is str and 0 < len(value) <= LIMIT and value.isascii() and "\0" not in value:
        return value  # the usual case
    if value is None or value == "":
        raise MissingId(f"the {what} is missing or empty{_REMEDIES.get(what, '')}")
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise MissingId(
            f"the {what} must be text, an integer or a UUID, got {type(value).__qualname__}"
        )
    text = _storable(str.__str__(value) if isinstance(value, str) else digits(value), what)
    if len(text) > LIMIT or len(text.encode()) > LIMIT:
        raise MissingId(f"the {what} is longer than {LIMIT} bytes")
    return text


def digits(value: int) -> str:
    """The digits of an integer. Raises MissingId for a very long one."""
    try:
        return str(value)
    except ValueError as error:  # Python refuses to print integers of more than 4300 digits
        raise MissingId(f"an integer of the identity is longer than {LIMIT} digits") from error


def _storable(text: str, what: str) -> str:
    """Raise MissingId for lone surrogates, and for NUL, which PostgreSQL does not store."""
    if "\0" in text:
        raise MissingId(f"the {what} contains a NUL character")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise MissingId(f"the {what} is not valid Unicode") from error
    return text


def utf8(value: bytes, what: str) -> str:
    """Bytes as text. Raises MissingId if they are not UTF-8."""
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise MissingId(f"the {what} is not UTF-8") from error


def type_name(value: Any) -> str:
    """The type, or "" if it is missing: the message is then a dead letter, not quarantined."""
    text = _storable(value, "type") if value and isinstance(value, str) else ""
    return text if len(text) <= LIMIT else text[:LIMIT] + "..."


def version_number(value: Any) -> int:
    """The version; 1 if it is missing, 0 if it is not a positive integer."""
    if value is None or (type(value) is int and value == 1):
        return 1
    if isinstance(value, bool):
        return 0
    if isinstance(value, str):
        value = int(value) if value.isdecimal() and len(value) < 10 else 0
    return value if isinstance(value, int) and 0 < value < 2**31 else 0


def sequence_number(value: Any) -> int:
    """The sequence number of a message within its key. Raises MissingId."""
    if isinstance(value, str) and value.isdecimal() and len(value) < 20:
        value = int(value)
    if value is None or value == "":
        raise MissingId("the sequence number is missing or empty")
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63 - 1:
        raise MissingId("the sequence number must be an integer from 0 to 2^63 - 2")
    return value


def instant(value: Any) -> datetime | None:
    """A time from RFC 3339 text, seconds or milliseconds; None if it is not valid."""
    try:
        if isinstance(value, str):
            return in_utc(msgspec.convert(value, datetime))
        if isinstance(value, int | float) and not isinstance(value, bool):
            return datetime.fromtimestamp(value / 1000 if value > 1e11 else value, UTC)
    except (msgspec.ValidationError, ValueError, OverflowError, OSError):
        pass
    return None


def in_utc(time: datetime | None) -> datetime | None:
    """The time in UTC; a time without a zone is taken as UTC."""
    if time is None or time.tzinfo is None:
        return time and time.replace(tzinfo=UTC)
    try:
        return time.astimezone(UTC)
    except OverflowError:  # near year 1 or 9999
        return None


_UUID7: Final = re.compile(
    r"([0-9a-f]{8})-([0-9a-f]{4})-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", re.IGNORECASE
)
_ULID: Final = re.compile(r"(?=.*[A-Z])[0-7][0-9A-HJKMNP-TV-Z]{25}", re.IGNORECASE)
_CROCKFORD: Final = {c: i for i, c in enumerate("0123456789ABCDEFGHJKMNPQRSTVWXYZ")}
_PLAUSIBLE: Final = range(1_262_304_000_000, 4_102_444_800_000)  # the years 2010 to 2099


def time_in_id(id_: str) -> datetime | None:
    """The time inside a UUIDv7 or ULID; None for other ids."""
    milliseconds = 0
    if len(id_) == 36 and id_[14] == "7" and (match := _UUID7.fullmatch(id_)):
        milliseconds = int(match[1] + match[2], 16)
    elif len(id_) == 26 and _ULID.fullmatch(id_):
        for character in id_[:10].upper():
            milliseconds = milliseconds * 32 + _CROCKFORD[character]
    if milliseconds not in _PLAUSIBLE:
        return None
    return datetime.fromtimestamp(milliseconds / 1000, UTC)
