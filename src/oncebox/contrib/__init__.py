"""Integrations with frameworks."""
