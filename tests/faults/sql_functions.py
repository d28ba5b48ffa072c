"""Change a SQL function of oncebox."""

from __future__ import annotations

from support.worlds import World


def replace_in(world: World, function: str, old: str, new: str) -> None:
    """Change the text of a function in the database."""
    text = world.query("SELECT pg_get_functiondef(%s::regproc)", function)[0][0]
    assert old in text
    world.execute(text.replace(old, new))
