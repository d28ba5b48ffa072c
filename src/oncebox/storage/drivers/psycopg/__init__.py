"""PostgreSQL with psycopg 3."""
