"""Kafka: from a topic to committed rows on PostgreSQL, against a transaction per message."""
