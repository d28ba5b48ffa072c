"""Find the places of a delivery that an identity reads, by calling its selectors on a probe."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import msgspec

from oncebox.model.identity.selectors import Envelope

ANYTHING = "1"
"""What a probe returns for every place: text that is also a number."""


class Place(NamedTuple):
    """A part of a delivery: a header, a field of its JSON body, or the broker's key."""

    kind: str
    """header, field, key, coordinates or body."""
    path: tuple[str, ...] = ()
    """The name of the header, or the names that lead to the field."""

    def __str__(self) -> str:
        return f"the {self.kind} {'.'.join(self.path)}".rstrip()


KEY, COORDINATES, BODY = Place("key"), Place("coordinates"), Place("body")


def places_read(read: Callable[[Any], object], prefix: str) -> list[Place]:
    """The places that a selector reads. CloudEvents headers begin with `prefix`, if not empty."""
    probe = Probe(prefix)
    with suppress(Exception):  # it wants another value, or more than a probe has
        read(probe)
    return list(dict.fromkeys(probe.places))


class Probe(Envelope):
    """An envelope that has a value everywhere and records what is read."""

    def __init__(self, prefix: str) -> None:
        self.places: list[Place] = []
        super().__init__(_ProbeDelivery(self.places))  # type: ignore[arg-type]
        self._mode = prefix

    def header(self, name: str) -> str:
        self.places.append(Place("header", (name,)))
        return ANYTHING

    def raw(self, path: list[str]) -> msgspec.Raw:
        self.places.append(Place("field", tuple(path)))
        return msgspec.Raw(msgspec.json.encode(ANYTHING))

    @property
    def fields(self) -> Any:
        return _Recorded(lambda name: self.raw([name]))


class _ProbeDelivery:
    """The delivery of a probe."""

    source = "default"
    timestamp = None
    redelivered = False

    def __init__(self, places: list[Place]) -> None:
        self._places = places

    @property
    def headers(self) -> Mapping[str, Any]:
        return _Recorded(lambda name: self._read(Place("header", (name,))))

    @property
    def key(self) -> str:
        return self._read(KEY)

    @property
    def coordinates(self) -> str:
        return self._read(COORDINATES)

    @property
    def body(self) -> bytes:
        return self._read(BODY).encode()

    def _read(self, place: Place) -> str:
        self._places.append(place)
        return ANYTHING


class _Recorded(Mapping[str, Any]):
    """A mapping that has every name."""

    def __init__(self, read: Callable[[str], Any]) -> None:
        self._read = read

    def __getitem__(self, name: str) -> Any:
        return self._read(name)

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 1
