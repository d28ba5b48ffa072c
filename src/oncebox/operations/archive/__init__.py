"""Archives of purged messages: file format, location, restore."""
