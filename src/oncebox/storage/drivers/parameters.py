"""Translate `:name` parameters to the placeholders of a driver; cached per statement text."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from operator import itemgetter
from typing import Any, Literal

import msgspec

from oncebox.errors import OnceboxError
from oncebox.storage.drivers.psycopg.arrays import PACKERS

Style = Literal["format", "binary", "qmark", "dollar"]

_TOKEN = re.compile(
    r"""
    (?P<comment> --[^\n\r]* | /\* )
  | (?P<quoted>
        [eE]'(?:[^'\\]|\\.|'')*' | '(?:[^']|'')*' | "(?:[^"]|"")*"
      | \$(?P<tag>[A-Za-z_]\w*|)\$ .*? \$(?P=tag)\$ )
  | (?P<operator> :: | := )
  | :(?P<name> [^\W\d]\w* )
  | (?P<percent> % )
  | (?P<end> ; )
  | (?P<word> \w+ )
    """,
    re.VERBOSE | re.DOTALL,
)
_ARRAY = re.compile(r"\s*::\s*(text|bytea|smallint|integer|bigint)\s*\[\s*\]", re.IGNORECASE)
_COMMENT_EDGE = re.compile(r"/\*|\*/")
_FORBIDDEN = frozenset(
    "begin start commit end rollback abort savepoint release attach detach".split()  # noqa: SIM905
)


_SAVEPOINT_WORDS = frozenset({"savepoint", "release", "rollback to"})


Pick = Callable[[Mapping[str, Any]], tuple[Any, ...]]


class StatementError(OnceboxError):
    """this statement must not run in a handler"""


class Translated(msgspec.Struct, frozen=True):
    """A statement with the placeholders of the driver."""

    sql: str
    pick: Pick
    """Returns the values in the order of the placeholders, from a mapping of all names."""
    names: frozenset[str]
    forbidden: tuple[str, ...]
    """The words with which it would begin or end a transaction."""

    def bind(self, params: Mapping[str, Any]) -> tuple[Any, ...]:
        """The values in order. Raises StatementError for missing or unknown names."""
        if params.keys() != self.names:
            raise StatementError(_difference(self.names, frozenset(params)))
        return self.pick(params)


class Token(msgspec.Struct, frozen=True):
    """A piece of a statement; kind is None for text that needs no translation."""

    kind: str | None
    text: str


@lru_cache(maxsize=2048)
def translate(sql: str, style: Style, packed: bool = False) -> Translated:
    """Translate a statement. With `packed`, lists are packed as arrays for psycopg.

    The cache is bounded, because statement texts may be built at run time.
    """
    names: list[str] = []
    packers: dict[int, Callable[[list[Any]], Any]] = {}
    pieces: list[str] = []
    end = 0
    for token in _tokens(sql):
        end += len(token.text)
        if token.kind == "name":
            array = _ARRAY.match(sql, end)
            type = array[1].lower() if array else ""
            if type and packed:
                packers[len(names)] = PACKERS[type]
            names.append(_checked(token.text[1:]))
            # A list of texts is sent in binary format, which is five times as fast.
            is_plain = style == "format" and type == "text"
            pieces.append(_placeholder("binary" if is_plain else style, len(names)))
        else:
            pieces.append(token.text.replace("%", "%%") if style in _PERCENT else token.text)
    pick = _picker(names)
    if packers:
        pick = _packing(pick, packers)
    return Translated("".join(pieces), pick, frozenset(names), tuple(_forbidden(sql)))


def check_driver_statement(sql: str) -> None:
    """Refuse statements that would end the transaction and are not executed by tx.execute().

    Savepoints are allowed, because ORMs and drivers use them; those of oncebox are not.
    """
    words = translate(sql, "qmark").forbidden
    if words and (not set(words) <= _SAVEPOINT_WORDS or "oncebox" in sql.lower()):
        for_handler(sql, "qmark")


def for_handler(sql: str, style: Style, packed: bool = False) -> Translated:
    """Translate a handler's statement. Raises StatementError if it begins or ends a transaction."""
    translated = translate(sql, style, packed)
    if translated.forbidden:
        raise StatementError(
            f"a handler must not execute {translated.forbidden[-1].upper()}: its transaction also "
            "holds the claim. Use tx.savepoint(), or raise an exception to roll back"
        )
    return translated


_PERCENT = ("format", "binary")


def _placeholder(style: Style, number: int) -> str:
    if style == "dollar":
        return f"${number}"
    return {"format": "%s", "binary": "%b", "qmark": "?"}[style]


def _checked(name: str) -> str:
    if not name.isascii():
        raise StatementError(f"the parameter name {name!r} is not ASCII")
    return name


def _tokens(sql: str) -> Iterator[Token]:
    """The tokens of a statement text, without gaps."""
    position = 0
    while match := _TOKEN.search(sql, position):
        if match.start() > position:
            yield Token(None, sql[position : match.start()])
        end = match.end()
        if match[0] == "/*":
            end = _comment_end(sql, end)
        kind = next(k for k in _KINDS if match[k] is not None)
        yield Token(kind, sql[match.start() : end])
        position = end
    yield Token(None, sql[position:])


_KINDS = ("comment", "quoted", "operator", "name", "percent", "end", "word")


def _comment_end(sql: str, position: int) -> int:
    """Where a block comment ends; they nest in PostgreSQL."""
    depth = 1
    while depth and (edge := _COMMENT_EDGE.search(sql, position)):
        depth += 1 if edge[0] == "/*" else -1
        position = edge.end()
    return len(sql) if depth else position


def _forbidden(sql: str) -> Iterator[str]:
    """The words of the statements in the text that begin or end a transaction."""
    for words in _statements(sql):
        first = words[0] if words else ""
        if first == "rollback" and "to" in words[1:3]:
            yield "rollback to"
        elif first in _FORBIDDEN:
            yield first
        elif first in ("prepare", "set") and words[1:2] == ["transaction"]:
            yield f"{first} transaction"


def _statements(sql: str) -> Iterator[list[str]]:
    """The words of each statement in the text."""
    words: list[str] = []
    for token in _tokens(sql):
        if token.kind == "word":
            words.append(token.text.lower())
        elif token.kind == "end":
            yield words
            words = []
    yield words


def _picker(names: list[str]) -> Pick:
    if not names:
        return lambda params: ()
    if len(names) == 1:
        only = names[0]
        return lambda params: (params[only],)
    return itemgetter(*names)


def _packing(pick: Pick, packers: Mapping[int, Callable[[list[Any]], Any]]) -> Pick:
    """The picker `pick`, with lists packed as arrays."""

    def packed(params: Mapping[str, Any]) -> tuple[Any, ...]:
        values = list(pick(params))
        for number, pack in packers.items():
            if type(values[number]) is list:
                values[number] = pack(values[number])
        return tuple(values)

    return packed


def _difference(expected: frozenset[str], given: frozenset[str]) -> str:
    missing, unknown = sorted(expected - given), sorted(given - expected)
    parts = []
    if missing:
        parts.append(f"no value for {', '.join(':' + name for name in missing)}")
    if unknown:
        parts.append(f"the statement has no {', '.join(':' + name for name in unknown)}")
    return "; ".join(parts)
