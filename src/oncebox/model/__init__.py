"""Values and pure rules: no I/O; the clock and randomness are passed in."""
