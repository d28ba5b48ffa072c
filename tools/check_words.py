"""Find words that the project does not use, because there is a plain technical word instead.

`_` counts as a space, so names of tests, functions and files are checked as well. A phrase is found
across a line break.

Usage: python tools/check_words.py [--report] [files or folders]
With --report it prints only how many there are, and the exit code is 0.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from findings import ROOT, Finding, finish

CHECKED = (
    "src",
    "docs",
    "README.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "CODE_OF_CONDUCT.md",
    "tests",
    "bench",
    "tools",
    "examples",
)
ENDINGS = {".cjs", ".md", ".py", ".sql", ".svg", ".txt"}

INSTEAD = {
    r"(?:some|no|any)body|who(?:m)?ever": "name the actor: worker, consumer, operator, handler",
    r"he|him|his|himself": "name the actor, or say it",
    r"(?-i:Who)|(?:worker|consumer|process|broker|handler|transaction|session)(?:e?s)? who": (
        "name the actor; a thing takes that or which"
    ),
    r"in (?:[\w']+ )?hands": "in flight",
    r"keep(?:s|ing)? house|kept house|house ?keep(?:ing|er|ers)": "purge, maintenance",
    r"mend(?:s|ed|ing)?": "fix",
    r"for ever": "forever",
    r"inside of": "inside",
    r"anew": "again",
    r"so many": "give the number: N, this many",
    r"(?:answers?|says?|said|tells?) whether": "returns whether, or: True if",
    r"(?:is|are|was|were) no (?!longer|more|less|such|one)\w+": "is not a ...",
    r"heard of": "heartbeat, reported",
    r"colour(?:s|ed|ing)?": "sync and async",
    r"dice": "seed, random",
    r"strangers?": "quarantined, unknown",
    r"mourn(?:s|ed|ing|ers?)?": "isolate after a crash",
    r"forgiv(?:e|es|en|ing)|forgave|absolv(?:e|es|ed|ing)": "undo, release",
    r"despair(?:s|ed|ing)?": "give up, fail",
    r"murderers?|killers?": "crashing message",
    r"deeds?": "action, audit entry",
    r"park(?:s|ed|ing)?": "block",
    r"mint(?:s|ed|ing)?": "produced, created",
}
"""A pattern for each word or phrase, and what to write instead."""

ALLOWED = (r"there (?:is|are|was|were) no \w+",)
"""Phrases that contain such a word and are fine."""

EXEMPT = {"tools/check_words.py", "tests/checks/test_check_words.py"}
"""Files that name the words."""


def main(arguments: list[str]) -> int:
    """Check the files and folders that are named, or all of CHECKED."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--report", action="store_true", help="only count, and exit with 0")
    parser.add_argument("paths", nargs="*", type=Path)
    options = parser.parse_args(arguments)
    paths = options.paths or [ROOT / name for name in CHECKED]
    findings = (found for path in files(paths) for found in check(path))
    return finish("check_words", findings, report=options.report)


def files(paths: Iterable[Path]) -> Iterator[Path]:
    """The text files among the paths and below them."""
    for path in paths:
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.suffix in ENDINGS and file.is_file() and not _is_exempt(file):
                yield file


def check(path: Path) -> Iterator[Finding]:
    """The findings in a file's name and text."""
    for word, instead in _words(path.name):
        yield Finding(path, 1, _message(f"the file name has {word!r}", instead))
    text = path.read_text()
    for match, instead in _matches(text):
        line = text.count("\n", 0, match.start()) + 1
        yield Finding(path, line, _message(repr(_in_one_line(match)), instead))


def _words(text: str) -> Iterator[tuple[str, str]]:
    return ((match.group(), instead) for match, instead in _matches(text))


def _matches(text: str) -> Iterator[tuple[re.Match[str], str]]:
    """Where a word is found, outside the allowed phrases."""
    plain = text.replace("_", " ")
    allowed = [match.span() for match in _ALLOWED.finditer(plain)]
    for pattern, instead in _PATTERNS:
        for match in pattern.finditer(plain):
            if not any(start <= match.start() and match.end() <= end for start, end in allowed):
                yield match, instead


def _in_one_line(match: re.Match[str]) -> str:
    return re.sub(r"[\s#/-]+", " ", match.group())


def _message(what: str, instead: str) -> str:
    return f"{what}: use plain words instead ({instead})."


def _is_exempt(path: Path) -> bool:
    return any(path.resolve() == ROOT / exempt for exempt in EXEMPT)


def _pattern(words: str) -> re.Pattern[str]:
    """Whole words; a space stands for any white space, line breaks and comment signs included."""
    flexible = words.replace(" ", r"(?:\s|\n[ \t]*(?:#|--|//)?)+")
    return re.compile(rf"(?<![\w-])(?:{flexible})(?![\w-])", re.IGNORECASE)


_PATTERNS = [(_pattern(words), instead) for words, instead in INSTEAD.items()]
_ALLOWED = re.compile("|".join(_pattern(words).pattern for words in ALLOWED), re.IGNORECASE)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
