"""Code that the stores of SQL databases share."""
