"""Draw docs/demo.svg, the picture in README.md: the end of a real run of `oncebox demo`.

Usage: python tools/demo_picture.py [seconds]
"""

from __future__ import annotations

import sys
import tempfile
from io import StringIO
from pathlib import Path

from rich.console import Console

from findings import ROOT
from oncebox.cli.demo.books import books_at
from oncebox.cli.demo.interrupts import Interrupts
from oncebox.cli.demo.simulation import Simulation
from oncebox.cli.demo.state import State
from oncebox.cli.demo.verdict import verdict
from oncebox.cli.demo.view import print_verdict, render

PICTURE = ROOT / "docs" / "demo.svg"


def main(seconds: float = 30) -> int:
    """Run the demo and draw its end. Returns 1 if the books of oncebox do not balance."""
    state = final_state(seconds)
    console = Console(record=True, width=84, height=24, file=StringIO(), force_terminal=True)
    console.print(render(state, console))
    print_verdict(state, console)
    console.save_svg(str(PICTURE), title=f"oncebox demo --seconds {seconds:g}")
    print(f"{PICTURE}: {PICTURE.stat().st_size:,} bytes", *verdict(state), sep="\n")
    return 0 if state.is_balanced else 1


def final_state(seconds: float) -> State:
    """Run the demo to its end."""
    with tempfile.TemporaryDirectory() as name, Interrupts() as interrupts:
        books = [books_at(f"sqlite:///{name}", side) for side in ("oncebox", "naive")]
        demo = Simulation(Path(name), books[0], books[1], interrupts, seconds=seconds, seed=7)
        for state in demo.run():
            print(f"\r{state.seconds:5.1f} s", end="", file=sys.stderr)
        for side in books:
            side.close()
    return demo.state


if __name__ == "__main__":
    sys.exit(main(*map(float, sys.argv[1:])))
