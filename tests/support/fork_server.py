"""A process that has everything imported and forks worker processes on request."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any


class ForkServer:
    """Sends requests to a module that forks workers: one line of JSON, one line of answer."""

    def __init__(
        self, module: str, *arguments: str, log: Path | None = None, strict: bool = False
    ) -> None:
        paths = [str(Path(__file__).parent.parent), os.environ.get("PYTHONPATH", "")]
        self._log = log.open("w") if log is not None else None
        self._process = subprocess.Popen(
            [sys.executable, *(("-W", "error") if strict else ()), "-m", module, *arguments],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )

    def ask(self, **request: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        """End it, and with it the workers that are left."""
        self._process.communicate()
        if self._log is not None:
            self._log.close()
