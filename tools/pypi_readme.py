"""Metadata hook of the build: README.md as the description of the package on PyPI.

PyPI has no files beside the description, so pictures are left out and links to files become text.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_COMMENT = re.compile(r"^<!--.*?-->\n", re.MULTILINE | re.DOTALL)
_PICTURE = re.compile(r"^!\[[^]]*\]\((?!\w+://)[^)]*\)\n+", re.MULTILINE)
_LINK = re.compile(r"\[([^]]+)\]\((?!\w+://)[^)]*\)")


def description(readme: str) -> str:
    """The text of a README without comments, and without links and pictures of other files."""
    return _LINK.sub(r"\1", _PICTURE.sub("", _COMMENT.sub("", readme)))


class PypiReadme(MetadataHookInterface):
    """Sets `readme`, which pyproject.toml declares as dynamic."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the description."""
        text = Path(self.root, "README.md").read_text("utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": description(text)}
