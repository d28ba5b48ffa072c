"""Brokers and files that messages come from."""
