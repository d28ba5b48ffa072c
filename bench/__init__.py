"""Benchmarks: oncebox against code written by hand, on the same databases and messages.

Run `python -m bench --help`, or `make bench ARGS="drain"`. They are not part of the checks, because
the figures depend on the machine.
"""

import sys
from pathlib import Path

# The support code of the tests starts PostgreSQL and Kafka, and configures Django.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
