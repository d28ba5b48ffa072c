"""Settings of a Kafka source: from its URL and the environment to what librdkafka takes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

from oncebox.errors import ConfigurationError

ENVIRONMENT = "ONCEBOX_KAFKA_"

SECRETS = frozenset(
    {
        "sasl.password",
        "sasl.oauthbearer.client.secret",
        "sasl.oauthbearer.assertion.private.key.passphrase",
        "sasl.oauthbearer.assertion.private.key.pem",
        "ssl.key.password",
        "ssl.key.pem",
        "ssl.keystore.password",
    }
)
"""What a URL must not tell: it is seen in lists of processes and in logs."""

OURS = {
    "enable.auto.offset.store": "offsets are stored after the database's commit",
    "enable.auto.commit": "offsets are committed after the database's commit, and always",
    "enable.partition.eof": "it is how lag is known",
    "bootstrap.servers": "they are the host of the URL",
    "group.id": "it is the option group of the URL",
}
"""What is not the user's to set, and why."""

DEFAULTS: Mapping[str, Any] = {
    "partition.assignment.strategy": "cooperative-sticky",
    "session.timeout.ms": 10_000,
    "queued.max.messages.kbytes": 16_384,
    "client.id": "oncebox",
    "log_level": 2,  # what matters of it comes as an error too, and is told once a minute
}

BROKERS = frozenset({"partition.assignment.strategy", "session.timeout.ms"})
"""What the broker decides where it assigns partitions itself."""

CONSUMERS = (
    *("group.", "session.", "heartbeat.", "max.poll.", "partition.", "queued.", "fetch."),
    *("enable.auto.", "enable.partition.", "auto.", "isolation.", "max.partition.", "check."),
    *("consume.", "coordinator.", "allow."),
)
"""How the names of settings begin that only a consumer has."""

ENVIRONMENTAL = ("security.", "sasl.", "ssl.")
"""How the names of settings begin that the environment may give."""

EARLIEST = frozenset({"earliest", "smallest", "beginning"})
LATEST = frozenset({"latest", "largest", "end"})


class Settings(msgspec.Struct, frozen=True):
    """What a source needs to know."""

    servers: str
    topics: tuple[str, ...]
    group: str
    reset: str
    """Where a group that has no offset begins: earliest or latest."""
    client: Mapping[str, Any]
    """For librdkafka. Never to be printed: it holds secrets."""

    @property
    def is_incremental(self) -> bool:
        """Whether partitions come and go one by one, and not all at once."""
        strategy = str(self.client.get("partition.assignment.strategy", ""))
        return self.client.get("group.protocol") == "consumer" or "cooperative" in strategy

    @property
    def poll_interval(self) -> float:
        """Seconds within which the broker wants to hear that messages are still asked for."""
        return int(self.client.get("max.poll.interval.ms", 300_000)) / 1000

    @property
    def connection(self) -> dict[str, Any]:
        """What another client of the same cluster needs."""
        return {
            name: value for name, value in self.client.items() if not name.startswith(CONSUMERS)
        }


def parse(url: str) -> tuple[str, list[str], str, dict[str, str]]:
    """Servers, topics, group and further settings of a URL."""
    parts = urlsplit(url)
    if "@" in parts.netloc:
        raise ConfigurationError(
            "a Kafka URL holds no user and password: write sasl.username as an option, and put the "
            f"password into the environment as {ENVIRONMENT}SASL_PASSWORD"
        )
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    group = options.pop("group", "")
    for name in SECRETS & set(options):
        variable = ENVIRONMENT + name.replace(".", "_").upper()
        raise ConfigurationError(f"{name} does not belong into a URL: set {variable} instead")
    topics = [unquote(topic) for topic in parts.path.strip("/").split(",")]
    return parts.netloc, topics, group, options


def settings_of(servers: str, topics: list[str], group: str, given: Mapping[str, Any]) -> Settings:
    """Check what is given, and add what is not."""
    example = "kafka://localhost:9092/orders?group=billing"
    if not servers:
        raise ConfigurationError(f"a Kafka source needs a server: {example}")
    if not topics or not all(topics):
        raise ConfigurationError(f"a Kafka source needs a topic: {example}")
    if not group:
        raise ConfigurationError(
            f"a Kafka source needs a group, under whose name workers share partitions: {example}"
        )
    for name in OURS.keys() & given.keys():
        raise ConfigurationError(f"{name} cannot be set: {OURS[name]}")
    client = {**DEFAULTS, **_from_environment(), **given}
    if "debug" in given:
        client["log_level"] = given.get("log_level", 7)
    reset = str(client.pop("auto.offset.reset", "earliest"))
    if reset not in EARLIEST | LATEST:
        raise ConfigurationError(f"auto.offset.reset is earliest or latest, not {reset!r}")
    if client.get("group.protocol") == "consumer":
        for name in BROKERS - given.keys():
            client.pop(name, None)
    client |= {
        "bootstrap.servers": servers,
        "group.id": group,
        "enable.auto.commit": True,
        "enable.auto.offset.store": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "error",  # we want to know, and decide ourselves
    }
    return Settings(
        servers=servers,
        topics=tuple(topics),
        group=group,
        reset="earliest" if reset in EARLIEST else "latest",
        client=client,
    )


def _from_environment() -> dict[str, str]:
    """ONCEBOX_KAFKA_SASL_PASSWORD is sasl.password, and so on."""
    given = {
        name.removeprefix(ENVIRONMENT).lower().replace("_", "."): value
        for name, value in os.environ.items()
        if name.startswith(ENVIRONMENT)
    }
    return {name: value for name, value in given.items() if name.startswith(ENVIRONMENTAL)}
