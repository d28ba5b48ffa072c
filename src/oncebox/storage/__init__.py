"""Storage: the contract, the SQL of each database, the drivers, and the two runners."""
