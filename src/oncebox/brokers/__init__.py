"""Sources: brokers and files from which messages come."""
