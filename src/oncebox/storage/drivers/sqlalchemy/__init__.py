"""PostgreSQL and SQLite by SQLAlchemy."""
