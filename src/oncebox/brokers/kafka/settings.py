"""Settings of a Kafka source, from its URL and the environment, for librdkafka."""

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
        "sasl.oauthbearer.config",
        "sasl.oauthbearer.client.secret",
        "sasl.oauthbearer.assertion.private.key.passphrase",
        "sasl.oauthbearer.assertion.private.key.pem",
        "ssl.key.password",
        "ssl.key.pem",
        "ssl.keystore.password",
    }
)
"""Settings that a URL must not contain: process lists and logs show it."""

FIXED = {
    "enable.auto.offset.store": "oncebox stores offsets after the commit of the database",
    "enable.auto.commit": "oncebox commits offsets after the commit of the database",
    "enable.partition.eof": "oncebox needs it to measure the lag",
    "bootstrap.servers": "it is the host of the URL",
    "group.id": "it is the option `group` of the URL",
}
"""Settings that users cannot change, and why."""

DEFAULTS: Mapping[str, Any] = {
    "partition.assignment.strategy": "cooperative-sticky",
    "session.timeout.ms": 10_000,
    "queued.max.messages.kbytes": 16_384,
    "client.id": "oncebox",
    "log_level": 2,  # important events also come as errors, which are logged once a minute
}

DECIDED_BY_BROKER = frozenset({"partition.assignment.strategy", "session.timeout.ms"})
"""Settings that the broker decides in the group protocol `consumer`."""

CONSUMER_PREFIXES = (
    *("group.", "session.", "heartbeat.", "max.poll.", "partition.", "queued.", "fetch."),
    *("enable.auto.", "enable.partition.", "auto.", "isolation.", "max.partition.", "check."),
    *("consume.", "coordinator.", "allow."),
)
"""Prefixes of settings that only a consumer has."""

ENVIRONMENT_PREFIXES = ("security.", "sasl.", "ssl.")
"""Prefixes of settings that may come from the environment."""

EARLIEST = frozenset({"earliest", "smallest", "beginning"})
LATEST = frozenset({"latest", "largest", "end"})


class Settings(msgspec.Struct, frozen=True):
    """Checked settings of a source."""

    servers: str
    topics: tuple[str, ...]
    group: str
    reset: str
    """Where a group without an offset starts: earliest or latest."""
    client: Mapping[str, Any]
    """Settings for librdkafka. Never print them: they hold secrets."""

    @property
    def is_incremental(self) -> bool:
        """True if a rebalance moves single partitions, and not all at once."""
        strategy = str(self.client.get("partition.assignment.strategy", ""))
        return self.client.get("group.protocol") == "consumer" or "cooperative" in strategy

    @property
    def poll_interval(self) -> float:
        """Seconds without a poll after which the broker removes the consumer from the group."""
        return int(self.client.get("max.poll.interval.ms", 300_000)) / 1000

    @property
    def session_timeout(self) -> float:
        """Seconds without a heartbeat after which the broker reassigns our partitions."""
        default = DEFAULTS["session.timeout.ms"]
        return int(self.client.get("session.timeout.ms", default)) / 1000

    @property
    def connection(self) -> dict[str, Any]:
        """Settings for another client of the same cluster, such as an admin client."""
        return {
            name: value
            for name, value in self.client.items()
            if not name.startswith(CONSUMER_PREFIXES)
        }


def parse(url: str) -> tuple[str, list[str], str, dict[str, str]]:
    """Return the servers, topics, group and further settings of a URL."""
    split = urlsplit(url)
    if "@" in split.netloc:
        raise ConfigurationError(
            "a Kafka URL must not contain a user or password: set sasl.username as an option, and "
            f"the password in the environment as {ENVIRONMENT}SASL_PASSWORD"
        )
    options = dict(parse_qsl(split.query, keep_blank_values=True))
    group = options.pop("group", "")
    for name in SECRETS & set(options):
        variable = ENVIRONMENT + name.replace(".", "_").upper()
        raise ConfigurationError(f"{name} is not allowed in a URL: set {variable} instead")
    topics = [unquote(topic) for topic in split.path.strip("/").split(",")]
    return split.netloc, topics, group, options


def settings_of(servers: str, topics: list[str], group: str, given: Mapping[str, Any]) -> Settings:
    """Check the given settings, and add defaults and fixed ones."""
    example = "kafka://localhost:9092/orders?group=billing"
    if not servers:
        raise ConfigurationError(f"a Kafka source needs a server: {example}")
    if not topics or not all(topics):
        raise ConfigurationError(f"a Kafka source needs a topic: {example}")
    if not group:
        raise ConfigurationError(
            f"a Kafka source needs a group, whose workers share the partitions: {example}"
        )
    for name in FIXED.keys() & given.keys():
        raise ConfigurationError(f"{name} cannot be set: {FIXED[name]}")
    client = {**DEFAULTS, **_from_environment(), **given}
    if "debug" in given:
        client["log_level"] = given.get("log_level", 7)
    reset = str(client.pop("auto.offset.reset", "earliest"))
    if reset not in EARLIEST | LATEST:
        raise ConfigurationError(f"auto.offset.reset must be earliest or latest, not {reset!r}")
    if client.get("group.protocol") == "consumer":
        for name in DECIDED_BY_BROKER - given.keys():
            client.pop(name, None)
    client |= {
        "bootstrap.servers": servers,
        "group.id": group,
        "enable.auto.commit": True,
        "enable.auto.offset.store": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "error",  # oncebox decides where to read from: see start_offset.py
    }
    return Settings(
        servers=servers,
        topics=tuple(topics),
        group=group,
        reset="earliest" if reset in EARLIEST else "latest",
        client=client,
    )


def _from_environment() -> dict[str, str]:
    """Return settings of the environment: ONCEBOX_KAFKA_SASL_PASSWORD is sasl.password."""
    given = {
        name.removeprefix(ENVIRONMENT).lower().replace("_", "."): value
        for name, value in os.environ.items()
        if name.startswith(ENVIRONMENT)
    }
    return {name: value for name, value in given.items() if name.startswith(ENVIRONMENT_PREFIXES)}
