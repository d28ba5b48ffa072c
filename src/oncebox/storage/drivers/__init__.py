"""Adapters for database drivers, and the transactions on top of them."""
