"""The drain: four worker processes on PostgreSQL, against what is usually written by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from bench.drain import bloat, comparison, growth, others, poll, receive
from bench.drain.options import Options
from bench.environment import Environment


class Part(msgspec.Struct, frozen=True):
    """Something that is measured; it yields the lines of its report."""

    name: str
    measure: Callable[[Environment, Options], Iterator[str]]


ALL = [
    Part("uniform", comparison.uniform),
    Part("hot", comparison.hot),
    Part("blocked", comparison.blocked),
    Part("backlog", growth.backlog),
    Part("poll", poll.poll),
    Part("receive", receive.receive),
    Part("bloat", bloat.bloat),
    Part("others", others.others),
]
