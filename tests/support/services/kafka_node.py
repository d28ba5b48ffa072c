"""A Kafka broker in a process of its own."""

from __future__ import annotations

import shutil
import signal
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from support.services import PATIENCE, Unavailable, dies_with_us, free_port, read_lines, wait_until
from support.services.kafka_client import admin
from support.services.kafka_distribution import Distribution, new_id, write_properties

SETTINGS = {
    "process.roles": "broker,controller",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "inter.broker.listener.name": "PLAINTEXT",
    "controller.listener.names": "CONTROLLER",
    "auto.create.topics.enable": "false",
    "offsets.topic.num.partitions": 1,
    "transaction.state.log.num.partitions": 1,
    "share.coordinator.state.topic.num.partitions": 1,
    # A crashed broker is noticed within a second or two.
    "broker.session.timeout.ms": 1000,
    "broker.heartbeat.interval.ms": 200,
    "controller.quorum.election.timeout.ms": 500,
    "controller.quorum.fetch.timeout.ms": 1000,
    "group.initial.rebalance.delay.ms": 0,
    "group.min.session.timeout.ms": 1000,
    "group.consumer.min.session.timeout.ms": 1000,
    "group.consumer.session.timeout.ms": 1500,
    "group.consumer.min.heartbeat.interval.ms": 200,
    "group.consumer.heartbeat.interval.ms": 300,
    # The cleaner alone would take more memory than a small heap has.
    "log.cleaner.dedupe.buffer.size": 2097152,
    "log.cleaner.io.buffer.size": 65536,
}
REPLICAS = [
    "default.replication.factor",
    "offsets.topic.replication.factor",
    "transaction.state.log.replication.factor",
    "share.coordinator.state.topic.replication.factor",
]
MIN_ISR = [
    "min.insync.replicas",
    "transaction.state.log.min.isr",
    "share.coordinator.state.topic.min.isr",
]


@dataclass
class Node:
    """A broker that is a controller too: a folder, two ports, and the process of now."""

    id: int
    cluster_id: str
    distribution: Distribution
    home: Path
    port: int = field(default_factory=free_port)
    controller_port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None
    paused: bool = False

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def voter(self) -> str:
        return f"{self.id}@127.0.0.1:{self.controller_port}"

    @property
    def data(self) -> Path:
        return self.home / "data"

    @property
    def log(self) -> Path:
        return self.home / "server.log"

    @property
    def settings(self) -> Path:
        return self.home / "server.properties"

    def initialise(self, voters: list[str]) -> None:
        """Write the settings, and a data directory as the format command would."""
        shutil.copytree(self.distribution.folder / "formatted", self.data)
        identity = {"cluster.id": self.cluster_id, "node.id": self.id, "directory.id": new_id()}
        write_properties(self.data / "meta.properties", {"version": 1, **identity})
        write_properties(self.settings, settings_of(self, voters))

    def start(self) -> None:
        """Start the server, which is ready some time later."""
        command = self.distribution.command("kafka.Kafka", str(self.settings), scratch=self.home)
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*dies_with_us(), *command],
                cwd=self.home,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # a Ctrl-C in the terminal is for the tests alone
            )

    def wait(self) -> None:
        """Return once the cluster counts on this node."""
        client = admin(self.address)
        wait_until(lambda: self._ready_or_failed(client), "Kafka does not answer")

    def awake(self) -> bool:
        """True if this node could respond."""
        return self.running() and not self.paused

    def running(self) -> bool:
        """True if there is a process, running or paused."""
        return self.process is not None and self.process.poll() is None

    def pause(self) -> None:
        """Freeze the server."""
        self._signal(signal.SIGSTOP)
        self.paused = True

    def resume(self) -> None:
        """Let the server go on."""
        self._signal(signal.SIGCONT)
        self.paused = False

    def kill(self) -> None:
        """End the server without a word."""
        self._end(signal.SIGKILL)

    def shut_down(self) -> None:
        """Stop in order; a server already down stays down."""
        self.resume()
        self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> None:
        self._signal(number)
        if self.process is not None:
            self.process.wait(PATIENCE)
        self.process, self.paused = None, False

    def _signal(self, number: signal.Signals) -> None:
        if self.process is not None:
            self.process.send_signal(number)

    def _ready_or_failed(self, client: AdminClient) -> bool:
        if not self.running():
            raise Unavailable("Kafka did not start: " + " / ".join(complaints(self.log)[-3:]))
        try:
            answer = client.list_topics(timeout=1)
        except KafkaException:
            return False
        # Another broker on our port is another cluster; a node that may serve is on the list.
        return answer.cluster_id == self.cluster_id and self.id in answer.brokers


def start_all(nodes: list[Node]) -> None:
    """Start nodes side by side, as they wait for each other."""
    for node in nodes:
        node.start()
    for node in nodes:
        node.wait()


def settings_of(node: Node, voters: list[str]) -> dict[str, object]:
    """What a node is told: with three of them, two must have what is acknowledged."""
    listeners = f"PLAINTEXT://{node.address},CONTROLLER://127.0.0.1:{node.controller_port}"
    return {
        **SETTINGS,
        **{name: len(voters) for name in REPLICAS},
        **{name: len(voters) // 2 + 1 for name in MIN_ISR},
        "node.id": node.id,
        "listeners": listeners,
        "advertised.listeners": f"PLAINTEXT://{node.address}",
        "controller.quorum.voters": ",".join(voters),
        "log.dirs": node.data,
    }


def complaints(log: Path) -> list[str]:
    """The lines of a log that may say what went wrong."""
    return [line for line in read_lines(log) if " ERROR " in line or "Exception" in line]
