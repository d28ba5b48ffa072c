"""What the stores of SQL databases share."""
