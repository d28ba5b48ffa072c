"""A real Kafka broker, or three, with a life of their own: they crash, pause and come back."""

import base64
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicCollection,
    TopicPartition,
    libversion,
)
from confluent_kafka.admin import AdminClient, NewTopic, PartitionMetadata, TopicMetadata

from services import (
    PATIENCE,
    Unavailable,
    cache,
    dies_with_us,
    free_port,
    last_line,
    locked,
    read_lines,
    required,
    wait_until,
)
from services.kafka_mock import Mock

VERSION = "4.3.1"
# Without a binding for its log a broker fails in silence.
ARTIFACTS = [
    ("org.apache.kafka", "kafka_2.13", VERSION),
    ("org.apache.logging.log4j", "log4j-slf4j-impl", "2.25.4"),
]
JVM = [
    *("-Xms64m", "-Xmx192m", "-XX:+UseSerialGC"),
    *("-XX:TieredStopAtLevel=1", "-XX:-UsePerfData"),
]
LOGGING = """\
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d %p %c: %m%n
rootLogger.level = info
rootLogger.appenderRef.console.ref = console
"""
SETTINGS = {
    "process.roles": "broker,controller",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "inter.broker.listener.name": "PLAINTEXT",
    "controller.listener.names": "CONTROLLER",
    "auto.create.topics.enable": "false",
    "offsets.topic.num.partitions": 1,
    "transaction.state.log.num.partitions": 1,
    "share.coordinator.state.topic.num.partitions": 1,
    # Whoever dies is missed within a second or two.
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

Headers = Sequence[tuple[str, bytes | None]]
Record = tuple[bytes | None, bytes | None, Headers]


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
        """Say whether this node could answer."""
        return self.running() and not self.paused

    def running(self) -> bool:
        """Say whether there is a server, be it paused."""
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
        # A stranger on our port is another cluster; a node that may serve is on the list.
        return answer.cluster_id == self.cluster_id and self.id in answer.brokers


@dataclass
class Kafka:
    """Brokers under test, ours to break unless ONCEBOX_TEST_KAFKA_URL lent them to us."""

    bootstrap: str
    version: str
    origin: str
    fidelity: str = "real"
    home: Path | None = field(default=None, repr=False)
    nodes: list[Node] = field(default_factory=list, repr=False)
    mock: Mock | None = field(default=None, repr=False)
    _topics: set[str] = field(default_factory=set, repr=False)

    def create_topic(
        self,
        partitions: int = 1,
        replicas: int | None = None,
        *,
        name: str | None = None,
        **settings: object,
    ) -> str:
        """Create a topic, under a new name unless one is given, and return when all know it.

        A setting such as `cleanup.policy` is written `cleanup_policy`.
        """
        name = name or f"oncebox-{uuid4().hex}"
        if self.mock is not None:
            self.mock.create_topic(name, partitions, replicas)
            return name
        dotted = {key.replace("_", "."): str(value) for key, value in settings.items()}
        topic = NewTopic(name, partitions, -1 if replicas is None else replicas, config=dotted)
        self._ask(lambda client: client.create_topics([topic]))
        self._topics.add(name)
        self._wait_everywhere(led, name)
        return name

    def delete_topic(self, name: str) -> None:
        """Delete a topic and return when all have forgotten it."""
        self._real()
        self._topics.discard(name)
        self._ask(lambda client: client.delete_topics([name]))
        self._wait_everywhere(lambda found: found is None, name)

    def topic_id(self, name: str) -> str:
        """The id that tells a topic from its successor of the same name."""
        self._real()
        topics = TopicCollection([name])
        return str(self._ask(lambda client: client.describe_topics(topics)).topic_id)

    def leader(self, topic: str, partition: int = 0) -> int:
        """The index of the node that leads a partition."""
        leader: int = self._partitions(topic)[partition].leader
        return leader - 1

    def produce(
        self, topic: str, records: Iterable[Record], partition: int = -1
    ) -> list[tuple[int, int]]:
        """Send (key, value, headers) and return partition and offset of each.

        All in-sync replicas have them then. A broker that crashes meanwhile may get some twice.
        """
        receipts: dict[int, tuple[KafkaError | None, Message]] = {}

        def note(index: int, error: KafkaError | None, message: Message) -> None:
            receipts[index] = (error, message)

        producer = Producer(producing(self.bootstrap))
        for index, (key, value, headers) in enumerate(records):
            producer.produce(
                topic,
                value,
                key,
                partition,
                on_delivery=partial(note, index),
                headers=list(headers),
            )
        producer.flush()
        return [place(*receipts[index]) for index in sorted(receipts)]

    def committed(self, group: str, topic: str) -> dict[int, int]:
        """The offset that a group has committed, for each partition where it has."""
        with outsider(self.bootstrap, group) as client:
            asked = [TopicPartition(topic, number) for number in self._partitions(topic)]
            found = client.committed(asked, timeout=PATIENCE)
        raise_for_error(found)
        return {at.partition: at.offset for at in found if at.offset >= 0}

    def rewind(self, group: str, topic: str) -> None:
        """Send a group that has no members back to the beginning of a topic."""
        self._real()
        with outsider(self.bootstrap, group) as client:
            beginning = [TopicPartition(topic, number, 0) for number in self._partitions(topic)]
            raise_for_error(client.commit(offsets=beginning, asynchronous=False))

    def crash(self, node: int = 0) -> None:
        """Kill a node with SIGKILL."""
        self._ours(node).kill()

    def pause(self, node: int = 0) -> None:
        """Freeze a node: connections stay open, nothing answers."""
        self._ours(node).pause()

    def resume(self, node: int = 0) -> None:
        """Let a paused node go on where it stood."""
        self._ours(node).resume()

    def restart(self, node: int = 0) -> None:
        """Start a node again on the same data and port, stopping it first if it runs."""
        ours = self._ours(node)
        ours.shut_down()
        ours.start()
        ours.wait()

    def heal(self) -> None:
        """Undo the pauses and crashes that a failed test left behind."""
        down = [node for node in self.nodes if not node.running()]
        for node in self.nodes:
            node.resume()
        start_all(down)

    def clear(self) -> None:
        """Delete the topics that were created here: each of them keeps files open."""
        while self._topics:
            self.delete_topic(next(iter(self._topics)))

    def stop(self) -> None:
        """End the servers and remove their data; lent ones keep running."""
        for node in self.nodes:
            node.kill()
        if self.home is not None:
            shutil.rmtree(self.home, ignore_errors=True)
        if self.mock is not None:
            self.mock.stop()

    def _ask(self, question: Callable[[AdminClient], dict[str, Future[Any]]]) -> Any:
        client = admin(self.bootstrap)  # let go of too early, it takes the answer with it
        (answer,) = question(client).values()
        return answer.result(PATIENCE)

    def _partitions(self, topic: str) -> dict[int, PartitionMetadata]:
        found = find_topic(self.bootstrap, topic)
        assert found is not None, f"there is no topic {topic}"
        return found.partitions

    def _ours(self, node: int) -> Node:
        self._real()
        if not self.nodes:
            pytest.skip("the brokers of ONCEBOX_TEST_KAFKA_URL are not ours to break")
        return self.nodes[node]

    def _real(self) -> None:
        if self.mock is not None:
            pytest.skip("this needs a real broker")

    def _wait_everywhere(self, settled: Callable[[TopicMetadata | None], bool], name: str) -> None:
        awake = [node.address for node in self.nodes if node.awake()]
        looks = [partial(find_topic, address, name) for address in awake or [self.bootstrap]]
        wait_until(lambda: all(settled(look()) for look in looks), f"{name} is unsettled")


def start(nodes: int = 1) -> Kafka:
    """Give the first Kafka that can be had, or raise Unavailable with the reason."""
    if url := os.environ.get("ONCEBOX_TEST_KAFKA_URL"):
        return borrow(url, nodes)
    try:
        distribution = find_distribution()
    except Unavailable as reason:
        if required("kafka"):
            raise
        return imitate(nodes, reason)
    return launch_on_free_ports(distribution, nodes)


def borrow(url: str, nodes: int) -> Kafka:
    """Use brokers that somebody else runs."""
    try:
        found = len(admin(url).list_topics(timeout=10).brokers)
    except KafkaException as error:
        raise Unavailable(f"ONCEBOX_TEST_KAFKA_URL does not answer: {error}") from error
    if found < nodes:
        raise Unavailable(f"ONCEBOX_TEST_KAFKA_URL has {found} of {nodes} brokers")
    return Kafka(url, "unknown", "ONCEBOX_TEST_KAFKA_URL")


def imitate(nodes: int, reason: Unavailable) -> Kafka:
    """Use the mock, for want of something real."""
    mock = Mock(nodes)
    version = libversion()[0]
    return Kafka(mock.bootstrap, version, f"librdkafka: {reason}", "mock", mock=mock)


def launch_on_free_ports(distribution: Distribution, nodes: int, attempts: int = 3) -> Kafka:
    """Launch, on other ports if somebody took ours between the choice and the start."""
    try:
        return launch(distribution, nodes)
    except Unavailable:
        if attempts == 1:
            raise
        return launch_on_free_ports(distribution, nodes, attempts - 1)


def launch(distribution: Distribution, size: int) -> Kafka:
    """Start brokers of our own on fresh data directories."""
    home = Path(tempfile.mkdtemp(prefix="oncebox-kafka-"))
    cluster_id, ids = new_id(), range(1, size + 1)
    nodes = [Node(id, cluster_id, distribution, home / str(id)) for id in ids]
    bootstrap = ",".join(node.address for node in nodes)
    kafka = Kafka(bootstrap, VERSION, "Maven Central", home=home, nodes=nodes)
    try:
        for node in nodes:
            node.initialise([each.voter for each in nodes])
        start_all(nodes)
    except BaseException:
        kafka.stop()
        raise
    return kafka


def start_all(nodes: list[Node]) -> None:
    """Start nodes side by side, as they wait for each other."""
    for node in nodes:
        node.start()
    for node in nodes:
        node.wait()


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
        download_jars(folder / "libs", Path(scratch))
        (folder / "log4j2.properties").write_text(LOGGING)
        format_data(Distribution(folder), Path(scratch))
        folder.rename(target)


def download_jars(folder: Path, scratch: Path) -> None:
    """Let Maven copy the jars and what they need, with a repository that is thrown away."""
    (scratch / "pom.xml").write_text(project())
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
        raise Unavailable(f"cannot download Kafka: {complaint}")


def project() -> str:
    """A Maven project that depends on Kafka and is nothing else."""
    dependencies = "".join(
        "<dependency>"
        f"<groupId>{group}</groupId><artifactId>{name}</artifactId><version>{version}</version>"
        "</dependency>"
        for group, name, version in ARTIFACTS
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


def write_properties(path: Path, properties: dict[str, object]) -> None:
    """Write settings as Java reads them."""
    path.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))


def new_id() -> str:
    """A random id as Kafka writes them; a leading dash would look like an option."""
    return "o" + base64.urlsafe_b64encode(uuid4().bytes).decode()[:20] + "A"


def complaints(log: Path) -> list[str]:
    """The lines of a log that may say what went wrong."""
    return [line for line in read_lines(log) if " ERROR " in line or "Exception" in line]


def admin(bootstrap: str) -> AdminClient:
    """A client that asks for things: a new one each time, as none outlives a crash unharmed."""
    return AdminClient(talking_to(bootstrap))


def outsider(bootstrap: str, group: str) -> closing[Consumer]:
    """A consumer that asks about a group without becoming a member.

    An AdminClient could ask as well, but dies of SIGSEGV when the coordinator has moved:
    https://github.com/confluentinc/librdkafka/issues/5040
    """
    return closing(
        Consumer({**talking_to(bootstrap), "group.id": group, "enable.auto.commit": False})
    )


def raise_for_error(partitions: list[TopicPartition]) -> None:
    """Raise what a client tells of some partitions only beside the answer for others."""
    for partition in partitions:
        if partition.error is not None:
            raise KafkaException(partition.error)


def talking_to(bootstrap: str) -> dict[str, Any]:
    """The settings of a client that is quick to come back, and silent about failures."""
    backoff = {"reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 100}
    return {"bootstrap.servers": bootstrap, "log_level": 0, **backoff}


def producing(bootstrap: str) -> dict[str, Any]:
    """The settings of a producer that loses nothing and keeps the order."""
    return {
        **talking_to(bootstrap),
        "acks": "all",
        "max.in.flight": 1,
        "delivery.timeout.ms": int(PATIENCE * 1000),
        "queue.buffering.max.messages": 0,
    }


def place(error: KafkaError | None, message: Message) -> tuple[int, int]:
    """Where a message lies."""
    if error is not None:
        raise KafkaException(error)
    partition, offset = message.partition(), message.offset()
    assert partition is not None
    assert offset is not None
    return partition, offset


def find_topic(bootstrap: str, name: str) -> TopicMetadata | None:
    """What a broker knows of a topic. Asked for by name, some would create it."""
    return admin(bootstrap).list_topics(timeout=PATIENCE).topics.get(name)


def led(topic: TopicMetadata | None) -> bool:
    """Say whether there is a topic, and somebody leads each of its partitions."""
    if topic is None or topic.error is not None:
        return False
    return all(partition.leader >= 0 for partition in topic.partitions.values())
