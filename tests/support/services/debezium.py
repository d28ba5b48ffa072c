"""Kafka Connect with Debezium: a foreign producer that publishes an outbox table."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from support.services import Unavailable, cache, dies_with_us, free_port, locked
from support.services.kafka_distribution import JVM, write_properties
from support.services.kafka_download import demand, download_jars
from support.services.kafka_node import complaints

CONNECT = "3.9.1"
VERSION = "3.1.3.Final"
ARTIFACTS = [
    ("org.apache.kafka", "connect-runtime", CONNECT),
    ("org.apache.kafka", "connect-json", CONNECT),
    ("org.apache.kafka", "connect-transforms", CONNECT),
    ("io.debezium", "debezium-connector-postgres", VERSION),
    ("io.debezium", "debezium-core", VERSION),
    ("org.slf4j", "slf4j-simple", "1.7.36"),
]


def find_jars() -> Path:
    """The folder of jars, fetched once per machine."""
    target = cache() / f"debezium-{VERSION}"
    with locked(target.with_name(f"{target.name}.lock")):
        demand("java")
        if not target.exists():
            demand("mvn")
            with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
                download_jars(ARTIFACTS, Path(scratch) / "libs", Path(scratch))
                (Path(scratch) / "libs").rename(target)
    return target


@contextmanager
def connect(bootstrap: str, connector: Mapping[str, object], folder: Path) -> Iterator[None]:
    """Run Kafka Connect with one connector for as long as it is entered."""
    jars = find_jars()
    worker = {
        "bootstrap.servers": bootstrap,
        "key.converter": "org.apache.kafka.connect.json.JsonConverter",
        "value.converter": "org.apache.kafka.connect.json.JsonConverter",
        "offset.storage.file.filename": folder / "offsets",
        "listeners": f"http://127.0.0.1:{free_port()}",
    }
    write_properties(folder / "worker.properties", worker)
    write_properties(folder / "connector.properties", dict(connector))
    main = "org.apache.kafka.connect.cli.ConnectStandalone"
    files = [str(folder / "worker.properties"), str(folder / "connector.properties")]
    command = [*dies_with_us(), "java", *JVM[:1], "-Xmx400m", "-cp", f"{jars}/*", main, *files]
    with (folder / "connect.log").open("wb") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    try:
        yield
        if process.poll() is not None:
            last = " / ".join(complaints(folder / "connect.log")[-3:])
            raise Unavailable(f"Kafka Connect ended: {last}")
    finally:
        process.terminate()
        process.wait(60)
