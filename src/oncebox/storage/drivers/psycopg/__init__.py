"""PostgreSQL by psycopg 3."""
