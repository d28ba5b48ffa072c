"""Download the jars of Kafka, once per machine."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from support.services import Unavailable, cache, last_line, locked
from support.services.kafka_distribution import VERSION, Distribution, new_id, write_properties
from support.services.kafka_node import Node, settings_of

# Without a binding for its log a broker fails in silence.
ARTIFACTS = [
    ("org.apache.kafka", "kafka_2.13", VERSION),
    ("org.apache.logging.log4j", "log4j-slf4j-impl", "2.25.4"),
]
LOGGING = """\
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d %p %c: %m%n
rootLogger.level = info
rootLogger.appenderRef.console.ref = console
"""
Artifact = tuple[str, str, str]


def find_distribution() -> Distribution:
    """Give the jars of Kafka, fetched once per machine."""
    if os.environ.get("ONCEBOX_TEST_KAFKA") == "mock":
        raise Unavailable("ONCEBOX_TEST_KAFKA asks for the mock")
    target = cache() / f"kafka-{VERSION}"
    with locked(target.with_name(f"{target.name}.lock")):
        demand("java")
        if not target.exists():
            demand("mvn")
            fetch(target)
    return Distribution(target)


def demand(program: str) -> None:
    """Refuse to go on without a program."""
    if shutil.which(program) is None:
        raise Unavailable(f"install {program}, or set ONCEBOX_TEST_KAFKA_URL")


def fetch(target: Path) -> None:
    """Download the jars and format a data directory, all of it or nothing."""
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        folder = Path(scratch) / "kafka"
        folder.mkdir()
        download_jars(ARTIFACTS, folder / "libs", Path(scratch))
        (folder / "log4j2.properties").write_text(LOGGING)
        format_data(Distribution(folder), Path(scratch))
        folder.rename(target)


def download_jars(artifacts: Sequence[Artifact], folder: Path, scratch: Path) -> None:
    """Let Maven copy the jars and what they need, with a repository that is thrown away."""
    (scratch / "pom.xml").write_text(project(artifacts))
    maven = ["mvn", "--quiet", "--batch-mode", "-Dstyle.color=never"]
    options = ["-DincludeScope=runtime", f"-Dmaven.repo.local={scratch / 'repository'}"]
    goal = ["dependency:copy-dependencies", f"-DoutputDirectory={folder}"]
    done = subprocess.run(
        [*maven, *options, *goal],
        cwd=scratch,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        complaint = (done.stdout or done.stderr).partition("\n")[0]
        raise Unavailable(f"cannot download {artifacts[0][1]}: {complaint}")


def project(artifacts: Sequence[Artifact]) -> str:
    """A Maven project that depends on some artifacts and is nothing else."""
    dependencies = "".join(
        "<dependency>"
        f"<groupId>{group}</groupId><artifactId>{name}</artifactId><version>{version}</version>"
        "</dependency>"
        for group, name, version in artifacts
    )
    return (
        "<project><modelVersion>4.0.0</modelVersion>"
        "<groupId>oncebox</groupId><artifactId>kafka</artifactId><version>1</version>"
        f"<dependencies>{dependencies}</dependencies></project>"
    )


def format_data(distribution: Distribution, scratch: Path) -> None:
    """Let Kafka format a directory: its feature levels are the same for every node."""
    data = distribution.folder / "formatted"
    node = Node(1, new_id(), distribution, scratch)
    settings = scratch / "format.properties"
    write_properties(settings, {**settings_of(node, [node.voter]), "log.dirs": data})
    command = distribution.command(
        *("kafka.tools.StorageTool", "format", "--cluster-id", node.cluster_id),
        *("--config", str(settings)),
        scratch=scratch,
    )
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        raise Unavailable(f"Kafka cannot format a directory: {last_line(done.stderr)}")
