"""Source URLs: which source they name, and the errors for wrong ones."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from oncebox.brokers.file import FileSource
from oncebox.brokers.stdin import StdinSource
from oncebox.brokers.urls import STDIN, source_of
from oncebox.errors import ConfigurationError


def test_a_url_names_a_file(tmp_path: Path) -> None:
    (tmp_path / "a b.jsonl").write_text("")
    source = source_of(f"file://{tmp_path}/a%20b.jsonl?follow=1")
    assert isinstance(source, FileSource)
    assert source.path.name == "a b.jsonl"
    assert not source.features.ends


@pytest.mark.parametrize("url", STDIN)
def test_a_dash_names_standard_input(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Stdin:
        def fileno(self) -> int:
            return 0

    monkeypatch.setattr("sys.stdin", Stdin())
    assert isinstance(source_of(url), StdinSource)


@pytest.mark.parametrize(
    ("url", "error"),
    [
        ("flie:///x", "unknown source scheme 'flie', did you mean 'file'?"),
        (
            "amqp://x/y",
            "unknown source scheme 'amqp', known: file, kafka; for other brokers call "
            "inbox.process() in your own loop",
        ),
        ("events.jsonl", "'events.jsonl' is not a source URL: write kafka://"),
        ("file:///nowhere", "file or folder /nowhere does not exist"),
        ("file:///tmp?folow=1", "did you mean 'follow'"),
        ("file:///tmp?x=1", "unknown option 'x' of a file source, known: follow"),
        ("file:///tmp?follow=maybe", "follow must be 1 or 0, not 'maybe'"),
        ("file://tmp/x.jsonl", f"write the absolute path: file://{os.getcwd()}/tmp/x.jsonl"),
    ],
)
def test_the_error_for_a_wrong_url_names_a_remedy(url: str, error: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        source_of(url)
    assert error in str(caught.value)
