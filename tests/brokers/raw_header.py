"""Produces a record whose header name is any bytes: the Python client refuses what is not UTF-8."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import confluent_kafka

# From rd_kafka_type_t and rd_kafka_vtype_t in rdkafka.h.
PRODUCER = 0
END, TOPIC, PARTITION, VALUE, MESSAGE_FLAGS, HEADER = 0, 1, 3, 4, 7, 9
COPY_PAYLOAD = 2


def produce_raw_header(bootstrap: str, topic: str, value: bytes, name: bytes) -> None:
    """Produce one record with an identity and one more header to partition 0."""
    with producer(bootstrap) as (library, handle):
        error = library.rd_kafka_producev(
            handle,
            *(TOPIC, topic.encode()),
            *(PARTITION, ctypes.c_int32(0)),
            *(MESSAGE_FLAGS, ctypes.c_int(COPY_PAYLOAD)),
            *(VALUE, value, ctypes.c_size_t(len(value))),
            *(HEADER, b"ce_id", b"1", ctypes.c_ssize_t(1)),
            *(HEADER, name, b"1", ctypes.c_ssize_t(1)),
            END,
        )
        assert error == 0
        assert library.rd_kafka_flush(handle, 30_000) == 0


@contextmanager
def producer(bootstrap: str) -> Iterator[tuple[ctypes.CDLL, ctypes.c_void_p]]:
    """Open a producer of the librdkafka that the Python client brings along."""
    (path,) = Path(confluent_kafka.__file__).parents[1].glob("confluent_kafka.libs/librdkafka*")
    library = ctypes.CDLL(str(path))
    library.rd_kafka_conf_new.restype = ctypes.c_void_p
    library.rd_kafka_new.restype = ctypes.c_void_p
    reason = ctypes.create_string_buffer(512)
    settings = ctypes.c_void_p(library.rd_kafka_conf_new())
    for option, chosen in ((b"bootstrap.servers", bootstrap.encode()), (b"acks", b"all")):
        assert library.rd_kafka_conf_set(settings, option, chosen, reason, 512) == 0, reason.value
    handle = ctypes.c_void_p(library.rd_kafka_new(PRODUCER, settings, reason, 512))
    assert handle.value, reason.value
    try:
        yield library, handle
    finally:
        library.rd_kafka_destroy(handle)
