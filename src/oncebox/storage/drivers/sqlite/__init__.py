"""SQLite by sqlite3 and aiosqlite."""
