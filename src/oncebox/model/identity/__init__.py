"""Message identity: reads the id, origin, type, version and key of a message from a delivery."""
