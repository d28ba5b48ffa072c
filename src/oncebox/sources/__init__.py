"""Sources: from a URL to where deliveries come from."""

from __future__ import annotations

import difflib
from urllib.parse import parse_qsl, unquote, urlsplit

from oncebox.errors import ConfigurationError
from oncebox.sources.contract import Batch, Features, Source
from oncebox.sources.file import FileSource
from oncebox.sources.kafka import KafkaSource
from oncebox.sources.memory import MemorySource
from oncebox.sources.stdin import StdinSource

__all__ = [
    "Batch",
    "Features",
    "FileSource",
    "KafkaSource",
    "MemorySource",
    "Source",
    "StdinSource",
    "source_of",
]

_SCHEMES = ("file", "kafka")


def source_of(url: str) -> Source:
    """The source that a URL names, such as `kafka://host:9092/topic?group=name`; `-` is stdin."""
    if url == "-" or url in ("file:///dev/stdin", "/dev/stdin"):
        return StdinSource()
    parts = urlsplit(url)
    if parts.scheme == "file":
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        follow = _flag(options.pop("follow", "0"), "follow")
        _check_options(options, ["follow"])
        if parts.netloc not in ("", "localhost"):
            raise ConfigurationError(f"a file URL has three slashes: file:///{parts.netloc}...")
        return FileSource(unquote(parts.path), follow=follow)
    if parts.scheme == "kafka":
        return KafkaSource.of(url)
    raise ConfigurationError(_unknown(parts.scheme, url))


def _flag(text: str, name: str) -> bool:
    known = {"1": True, "true": True, "": True, "0": False, "false": False}
    if text.lower() not in known:
        raise ConfigurationError(f"{name} is 1 or 0, not {text!r}")
    return known[text.lower()]


def _check_options(options: dict[str, str], known: list[str]) -> None:
    for name in options:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}"
        raise ConfigurationError(f"unknown option {name!r} of a file source, {hint}")


def _unknown(scheme: str, url: str) -> str:
    known = "kafka://host:9092/topic?group=name, file:///path[?follow=1], or - for standard input"
    if not scheme:
        return f"{url!r} is no source URL: write {known}"
    near = difflib.get_close_matches(scheme, _SCHEMES, n=1)
    if near:
        return f"unknown source scheme {scheme!r}, did you mean {near[0]!r}?"
    return f"unknown source scheme {scheme!r}: write {known}"
