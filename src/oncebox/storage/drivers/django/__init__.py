"""PostgreSQL and SQLite by Django."""
