"""PostgreSQL and SQLite with Django."""
