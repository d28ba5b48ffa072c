"""Optional integrations with frameworks."""
