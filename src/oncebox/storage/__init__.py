"""Storage: the store contract, the SQL of each database, the drivers, and the runners of steps."""
