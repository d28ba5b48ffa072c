"""Kafka topics as a source."""

from oncebox.brokers.kafka.source import KafkaSource

__all__ = ["KafkaSource"]
