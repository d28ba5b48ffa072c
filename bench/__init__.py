"""The benchmark: what a batch in one transaction gains over a transaction per message, also from
Kafka, what the drain gains over a table with a status, and what it costs to keep house.

`python -m bench --help`, or `make bench ARGS="drain"`. Not part of the checks: the figures are the
machine's.
"""

import sys
from pathlib import Path

# The tests know how to start a real PostgreSQL and how to set Django up.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
