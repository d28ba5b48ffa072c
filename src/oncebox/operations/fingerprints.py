"""Fingerprints of errors: find the one that an operator means by its first characters."""

from __future__ import annotations

import re

from oncebox.errors import ConfigurationError
from oncebox.processing.context import Context
from oncebox.storage.steps import Steps

LENGTH = 16
"""Characters of a fingerprint."""

CANDIDATES = 10
"""The most fingerprints that an error names."""


def full_fingerprint(context: Context, is_async: bool, given: str | None) -> Steps[str | None]:
    """The fingerprint that begins with `given`.

    Without such a fingerprint it returns `given`, which no dead letter has. Raises
    ConfigurationError if there are several.
    """
    if given is None:
        return None
    prefix = _checked(given)
    if len(prefix) == LENGTH:
        return prefix
    store = context.store
    found = yield from context.read(is_async, store.fingerprints, prefix, limit=CANDIDATES)
    if len(found) > 1:
        names = "; ".join(f"{name} ({_first_line(error)})" for name, error in found)
        raise ConfigurationError(
            f"fingerprint {given!r} is ambiguous: give more characters of one of {names}"
        )
    return found[0][0] if found else prefix


def _checked(given: str) -> str:
    prefix = given.lower() if isinstance(given, str) else ""
    if not re.fullmatch(r"[0-9a-f]{1,16}", prefix):
        raise ConfigurationError(
            f"a fingerprint has 1 to {LENGTH} of the characters 0-9 and a-f, got {given!r}: "
            "`oncebox dead-letters` shows them"
        )
    return prefix


def _first_line(error: str | None) -> str:
    return (error or "no error").splitlines()[0][:80]
