"""Parameters: `:name` in a statement's text becomes what the driver takes, once per text."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from operator import itemgetter
from typing import Any, Literal

import msgspec

from oncebox.database.arrays import PACKERS
from oncebox.errors import OnceboxError

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
_ARRAY = re.compile(r"\s*::\s*(text|smallint|integer|bigint)\s*\[\s*\]", re.IGNORECASE)
_COMMENT_EDGE = re.compile(r"/\*|\*/")
_FORBIDDEN = frozenset(
    "begin start commit end rollback abort savepoint release attach detach".split()  # noqa: SIM905
)


_SAVEPOINT_WORDS = frozenset({"savepoint", "release", "rollback to"})


Pick = Callable[[Mapping[str, Any]], tuple[Any, ...]]


class StatementError(OnceboxError):
    """this statement cannot be executed here"""


class Translated(msgspec.Struct, frozen=True):
    """A statement as the driver takes it."""

    sql: str
    pick: Pick
    """The values in the order of their placeholders, out of a mapping that has them all."""
    names: frozenset[str]
    forbidden: tuple[str, ...]
    """The words by which it would begin or end a transaction."""

    def bind(self, params: Mapping[str, Any]) -> tuple[Any, ...]:
        """The values in order, for a handler's statement: says what is missing or too many."""
        if params.keys() != self.names:
            raise StatementError(_difference(self.names, frozenset(params)))
        return self.pick(params)


class Token(msgspec.Struct, frozen=True):
    """A piece of a statement; kind is None for what means nothing to us."""

    kind: str | None
    text: str


@lru_cache(maxsize=2048)
def translate(sql: str, style: Style, packed: bool = False) -> Translated:
    """Translate a statement, for psycopg itself with arrays that are packed.

    The cache is bounded, since texts may be made at run time.
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
            # A list of texts may go as it is, which is five times as fast.
            is_plain = style == "format" and type == "text"
            pieces.append(_placeholder("binary" if is_plain else style, len(names)))
        else:
            pieces.append(token.text.replace("%", "%%") if style in _PERCENT else token.text)
    pick = _picker(names)
    if packers:
        pick = _packing(pick, packers)
    return Translated("".join(pieces), pick, frozenset(names), tuple(_forbidden(sql)))


def check_driver_statement(sql: str) -> None:
    """Refuse what would end the transaction, for statements that go past tx.execute().

    Savepoints pass, because ORMs and drivers make their own; ours are left alone.
    """
    words = translate(sql, "qmark").forbidden
    if words and (not set(words) <= _SAVEPOINT_WORDS or "oncebox" in sql.lower()):
        for_handler(sql, "qmark")


def for_handler(sql: str, style: Style, packed: bool = False) -> Translated:
    """Translate a handler's statement. What begins or ends a transaction is not its to do."""
    translated = translate(sql, style, packed)
    if translated.forbidden:
        raise StatementError(
            f"a handler must not execute {translated.forbidden[-1].upper()}: its transaction also "
            "holds the claim; use tx.savepoint(), or raise an exception to roll back"
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
    """The whole text, piece by piece."""
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
    """The first words of the statements in the text that are about transactions."""
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
    """As pick, with lists packed."""

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
