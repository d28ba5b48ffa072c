"""A Kafka without Java: the mock inside librdkafka, for the tests that it can serve."""

import ctypes
from ctypes import c_char_p, c_int, c_size_t, c_void_p

from confluent_kafka import KafkaError, KafkaException, cimpl

PRODUCER = 0
SIGNATURES = {
    "rd_kafka_conf_new": (c_void_p, []),
    "rd_kafka_conf_set": (c_int, [c_void_p, c_char_p, c_char_p, c_char_p, c_size_t]),
    "rd_kafka_new": (c_void_p, [c_int, c_void_p, c_char_p, c_size_t]),
    "rd_kafka_destroy": (None, [c_void_p]),
    "rd_kafka_mock_cluster_new": (c_void_p, [c_void_p, c_int]),
    "rd_kafka_mock_cluster_destroy": (None, [c_void_p]),
    "rd_kafka_mock_cluster_bootstraps": (c_char_p, [c_void_p]),
    "rd_kafka_mock_group_initial_rebalance_delay_ms": (None, [c_void_p, c_int]),
    "rd_kafka_mock_topic_create": (c_int, [c_void_p, c_char_p, c_int, c_int]),
}


class Mock:
    """Brokers on loopback that live in threads of this process and forget all with it."""

    def __init__(self, nodes: int) -> None:
        self._library = library()
        settings = self._library.rd_kafka_conf_new()
        # The client that houses the mock finds no brokers of its own, and would say so.
        self._library.rd_kafka_conf_set(settings, b"log_level", b"0", None, 0)
        self._client = self._library.rd_kafka_new(PRODUCER, settings, None, 0)
        self._cluster = self._library.rd_kafka_mock_cluster_new(self._client, nodes)
        self._library.rd_kafka_mock_group_initial_rebalance_delay_ms(self._cluster, 0)
        self.nodes = nodes

    @property
    def bootstrap(self) -> str:
        addresses: bytes = self._library.rd_kafka_mock_cluster_bootstraps(self._cluster)
        return addresses.decode()

    def create_topic(self, name: str, partitions: int, replicas: int | None) -> None:
        """Create a topic; its settings are beyond a mock."""
        code = self._library.rd_kafka_mock_topic_create(
            self._cluster, name.encode(), partitions, replicas or self.nodes
        )
        if code:
            raise KafkaException(KafkaError(code))

    def stop(self) -> None:
        """End the brokers."""
        self._library.rd_kafka_mock_cluster_destroy(self._cluster)
        self._library.rd_kafka_destroy(self._client)


def library() -> ctypes.CDLL:
    """The librdkafka that confluent-kafka is linked to, with its functions declared."""
    linked = ctypes.CDLL(cimpl.__file__)  # symbols of what it depends on are found as well
    for name, (result, arguments) in SIGNATURES.items():
        function = getattr(linked, name)
        function.restype, function.argtypes = result, arguments
    return linked
