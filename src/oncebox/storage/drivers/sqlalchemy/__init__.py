"""PostgreSQL and SQLite with SQLAlchemy."""
