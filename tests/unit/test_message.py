"""How headers and bytes are written down."""

from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from oncebox.message import content_hash, headers_json


def test_no_headers_are_no_text() -> None:
    assert headers_json({}) is None


def test_headers_are_written_as_text() -> None:
    assert headers_json({"a": "ü", "b": "ü".encode()}) == '{"a":"ü","b":"ü"}'


def test_bytes_that_are_not_utf8_are_escaped_and_not_lost() -> None:
    assert json.loads(headers_json({"a": b"\xff\x00b", "\udcff": "\ud800"}) or "") == {
        "a": "\\xff\0b",
        "\\udcff": "\\ud800",
    }


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(st.text(), st.text() | st.binary(), min_size=1))
def test_any_headers_become_json_without_raw_nul(headers: dict[str, str | bytes]) -> None:
    text = headers_json(headers)
    assert text is not None
    assert "\0" not in text
    text.encode()
    assert isinstance(json.loads(text), dict)


def test_a_content_hash_is_the_same_in_every_process() -> None:
    # printf '{"a": 1}' | b2sum -l 128
    assert content_hash(b'{"a": 1}').hex() == "6903fb303cd60ccb0a2b9c2592fa773b"
