"""Values and pure rules. They do no I/O; time and randomness are arguments."""
