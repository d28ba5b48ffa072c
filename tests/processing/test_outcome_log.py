"""The lines of the log about messages that failed."""

from __future__ import annotations

from typing import Any

import pytest

from oncebox import Reject
from support.worlds import World, order


@pytest.mark.only(("sqlite3",))
@pytest.mark.parametrize("error", [Reject, ValueError])
def test_the_line_of_a_failed_message_names_the_command_that_shows_it(
    world: World, error: type[Exception], caplog: pytest.LogCaptureFixture
) -> None:
    inbox = world.inbox()

    def fail(payload: dict[str, Any], tx: Any) -> None:
        raise error("a private text")

    world.on(inbox, "order", fail)
    world.process(inbox, [order("a b")])
    (line,) = caplog.messages
    assert line.endswith("); see: oncebox show APP 'a b'")
    assert "private" not in line


@pytest.mark.only(("sqlite3",))
@pytest.mark.parametrize("id", ["x" * 65, "two\nlines", "--option"])
def test_an_unreadable_id_is_not_repeated(
    world: World, id: str, caplog: pytest.LogCaptureFixture
) -> None:
    inbox = world.inbox()
    inbox.on("other")(lambda payload: None)
    world.process(inbox, [order(id)])
    (line,) = caplog.messages
    assert line.endswith(")")
