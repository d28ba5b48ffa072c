"""The traceback that is stored with an attempt begins at the handler."""

from __future__ import annotations

from typing import Any

import pytest

from oncebox.errors import SwallowedError
from oncebox.model.error_text import describe, trace
from support.worlds import World, order


def fail(payload: dict[str, Any], tx: Any) -> None:
    raise ValueError("no such account")


def test_a_stored_traceback_has_no_frames_of_oncebox_before_the_handler(world: World) -> None:
    inbox = world.inbox()
    world.on(inbox, "order", fail)
    assert world.kinds(inbox, [order("a"), order("b")]) == ["failed", "failed"]
    for (text,) in world.query("SELECT error FROM oncebox_attempt"):
        head, frame, *_, last = text.splitlines()
        assert head == "Traceback (most recent call last):"
        assert "/support/worlds.py" in frame or f'{__file__}"' in frame
        assert "in fail" in text
        assert last == "ValueError: no such account"


def test_a_traceback_of_oncebox_alone_is_kept() -> None:
    code = compile("raise SwallowedError", trace.__code__.co_filename, "exec")
    with pytest.raises(SwallowedError) as caught:
        exec(code, {"SwallowedError": SwallowedError})
    while caught.value.__traceback__ and caught.value.__traceback__.tb_frame.f_code is not code:
        caught.value.__traceback__ = caught.value.__traceback__.tb_next
    assert "error_text.py" in trace(caught.value)


def test_a_fingerprint_does_not_depend_on_where_a_program_is_installed() -> None:
    found = {fingerprint_of(f"{place}/shop/billing.py", ValueError) for place in ("/v1", "/opt/v2")}
    assert len(found) == 1
    assert fingerprint_of("/v1/shop/stock.py", ValueError) not in found
    assert fingerprint_of("/v1/shop/billing.py", KeyError) not in found


def fingerprint_of(file: str, error: type[Exception]) -> str:
    with pytest.raises(error) as caught:
        exec(compile("raise error", file, "exec"), {"error": error})
    return describe(caught.value).fingerprint
