"""Source URLs: which source a URL such as `kafka://host:9092/topic?group=name` names."""

from __future__ import annotations

import os
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from oncebox.brokers.contract import QueueSource
from oncebox.brokers.file import FileSource
from oncebox.brokers.kafka import KafkaSource
from oncebox.brokers.stdin import StdinSource
from oncebox.errors import ConfigurationError
from oncebox.model.suggestions import suggestion

STDIN = ("-", "file:///dev/stdin", "/dev/stdin")

SCHEMES = ("file", "kafka")

EXAMPLES = "kafka://host:9092/topic?group=name, file:///path[?follow=1], or - for standard input"

FLAGS = {"1": True, "true": True, "": True, "0": False, "false": False}


def source_of(url: str) -> QueueSource:
    """Return the source that a URL names; `-` is standard input.

    Example: `kafka://host:9092/topic?group=name`.
    """
    if url in STDIN:
        return StdinSource()
    split = urlsplit(url)
    if split.scheme == "kafka":
        return KafkaSource.of(url)
    if split.scheme == "file":
        return _file(split)
    if split.scheme:
        hint = suggestion(split.scheme, SCHEMES)
        if "did you mean" not in hint:
            hint += "; for other brokers call inbox.process() in your own loop"
        raise ConfigurationError(f"unknown source scheme {split.scheme!r}, {hint}")
    raise ConfigurationError(f"{url!r} is not a source URL: write {EXAMPLES}")


def _file(split: SplitResult) -> FileSource:
    options = dict(parse_qsl(split.query, keep_blank_values=True))
    follow = _flag("follow", options.pop("follow", "0"))
    for name in options:
        hint = suggestion(name, ["follow"])
        raise ConfigurationError(f"unknown option {name!r} of a file source, {hint}")
    if split.netloc not in ("", "localhost"):
        absolute = os.path.abspath(unquote(split.netloc + split.path))
        raise ConfigurationError(
            f"file://{split.netloc} names a host: write the absolute path: file://{absolute}"
        )
    return FileSource(unquote(split.path), follow=follow)


def _flag(name: str, text: str) -> bool:
    if text.lower() not in FLAGS:
        raise ConfigurationError(f"{name} must be 1 or 0, not {text!r}")
    return FLAGS[text.lower()]
