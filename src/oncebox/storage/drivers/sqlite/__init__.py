"""SQLite with sqlite3 and aiosqlite."""
