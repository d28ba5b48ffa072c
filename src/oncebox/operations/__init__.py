"""Operations: inspect, retry, discard, replay, purge, archive and erase messages."""
