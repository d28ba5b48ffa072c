"""Draft: a delivery that is being written, place by place."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import msgspec

from oncebox.errors import ConfigurationError
from oncebox.model.message import Delivery
from oncebox.testing.probe import BODY, COORDINATES, KEY, Place

BASE64 = ("data_base64",)


class Draft:
    """The headers, JSON fields, key and coordinates of a delivery, with the data of a test."""

    def __init__(self, data: Any, at: Place, headers: Mapping[str, Any]) -> None:
        self.headers = dict(headers)
        self.key: str | None = None
        self.coordinates: str | None = None
        self._data = data
        self._fields: dict[str, Any] | None = None
        if at is not BODY:
            self._fields = {}
            self._write_data(at.path)

    def _write_data(self, path: tuple[str, ...]) -> None:
        data = self._data
        if isinstance(data, bytes):
            if path == ("data",) and not _is_json(data):
                path, data = BASE64, base64.b64encode(data).decode()
            else:
                data = msgspec.Raw(data)
        self._write(path, data)

    def write(self, place: Place, value: Any) -> None:
        """Write a value to a place."""
        if place.kind == "header":
            self.headers[place.path[0]] = str(value)
        elif place.kind == "field":
            self._write(place.path, value)
        elif place == KEY:
            self.key = str(value)
        elif place == COORDINATES:
            self.coordinates = str(value)
        else:
            raise ConfigurationError(f"event() cannot write {value!r} into the body")

    def has(self, place: Place) -> bool:
        """Whether there is a value in a place already."""
        if place.kind == "field":
            value: Any = self._document()
            for name in place.path:
                value = value.get(name) if isinstance(value, dict) else None
            return value not in (None, "")
        found = {"header": self.headers.get(place.path[0]) if place.path else None}
        return {**found, "key": self.key, "coordinates": self.coordinates}[place.kind] is not None

    def _write(self, path: tuple[str, ...], value: Any) -> None:
        inner = self._document()
        for name in path[:-1]:
            inner = inner.setdefault(name, {})
            if not isinstance(inner, dict):
                raise ConfigurationError(f"the field {'.'.join(path)} is inside {inner!r}")
        inner[path[-1]] = value

    def _document(self) -> dict[str, Any]:
        """The fields of the body; if the body is the data, the fields of a copy of the data."""
        if self._fields is None:
            found = _builtins(self._data)
            if not isinstance(found, dict):
                raise ConfigurationError(
                    f"the identity reads fields of the body, so the data must be an object such as "
                    f"a dict, got {self._data!r}"
                )
            self._fields = found
        return self._fields

    def delivery(self, arrival: Mapping[str, Any]) -> Delivery:
        """The delivery with everything that was written."""
        wanted = self._data if self._fields is None else self._fields
        body = wanted if isinstance(wanted, bytes) else encoded(wanted)
        written = {"key": self.key, "coordinates": self.coordinates, **arrival}
        return Delivery(body, headers=self.headers, **written)


def encoded(data: Any) -> bytes:
    """Data as JSON."""
    return msgspec.json.encode(data, enc_hook=_plain)


def _builtins(data: Any) -> Any:
    """A copy of the data as dicts, lists and other types of JSON."""
    if data is None:
        return {}
    return msgspec.json.decode(data if isinstance(data, bytes) else encoded(data))


def _plain(value: Any) -> Any:
    """Models of pydantic; other types that JSON does not have are an error."""
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    raise TypeError(f"{type(value).__qualname__} cannot become JSON: pass a dict or a dataclass")


def _is_json(data: bytes) -> bool:
    try:
        msgspec.json.decode(data)
    except msgspec.DecodeError:
        return False
    return True
