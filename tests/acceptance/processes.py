"""Processes of `oncebox run`, seen from outside."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any


def workers(port: int) -> list[dict[str, Any]]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/live", timeout=5) as answer:
            found: list[dict[str, Any]] = json.load(answer)["workers"]
            return found
    except OSError:
        return []


def complaints(port: int) -> list[str]:
    """Why it is not ready."""
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/ready", timeout=5).close()
    except urllib.error.HTTPError as answer:
        with answer:
            found: list[str] = json.load(answer)["why"] if answer.code == 503 else []
            return found
    return []


def is_ready(port: int) -> bool:
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/ready", timeout=5).close()
    except (urllib.error.HTTPError, OSError):
        return False
    return True
