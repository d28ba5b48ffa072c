"""The programs of Kafka, and how they are started."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

VERSION = "4.3.1"
JVM = [
    *("-Xms64m", "-Xmx192m", "-XX:+UseSerialGC"),
    *("-XX:TieredStopAtLevel=1", "-XX:-UsePerfData"),
]


@dataclass(frozen=True)
class Distribution:
    """A folder of jars, how they log, and the beginning of every data directory."""

    folder: Path

    def command(self, main: str, *arguments: str, scratch: Path) -> list[str]:
        """The command that runs one of Kafka's programs, which leaves no file but in scratch."""
        return [
            "java",
            *JVM,
            f"-Djava.io.tmpdir={scratch}",
            f"-Dlog4j2.configurationFile={self.folder / 'log4j2.properties'}",
            *("-cp", f"{self.folder / 'libs'}/*"),
            main,
            *arguments,
        ]


def write_properties(path: Path, properties: dict[str, object]) -> None:
    """Write settings as Java reads them."""
    path.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))


def new_id() -> str:
    """A random id as Kafka writes them; a leading dash would look like an option."""
    return "o" + base64.urlsafe_b64encode(uuid4().bytes).decode()[:20] + "A"
