"""What people do to messages afterwards: inspect, retry, replay, purge, archive."""
