"""The command line of the benchmark: the table to stdout, progress to stderr."""

from __future__ import annotations

import argparse
import sys
from functools import partial

from bench import memory, report
from bench.measure import interleave
from bench.place import Place
from bench.scenarios import ALL, Scenario


def main() -> None:
    """Measure what was asked for."""
    options = _parser().parse_args()
    chosen = [scenario for scenario in ALL if scenario.name in options.only]
    with Place(options.batch) as place:
        _introduce(place, chosen, options)
        for scenario in chosen:
            _compare(scenario, place, options)
        if options.memory and chosen:
            _observe(chosen[0], place, options)


def _introduce(place: Place, chosen: list[Scenario], options: argparse.Namespace) -> None:
    served = any(scenario.needs_server for scenario in chosen)
    postgres = place.server.version if served else None
    for line in report.header(
        postgres=postgres, fsync=place.fsync(), batch=options.batch, rounds=options.rounds
    ):
        print(line)
    print("\n" + report.title(), flush=True)


def _compare(scenario: Scenario, place: Place, options: argparse.Namespace) -> None:
    with scenario.open(place) as contenders:
        results = interleave(
            contenders,
            messages=options.messages or scenario.messages,
            rounds=options.rounds,
            progress=partial(_progress, scenario.name),
        )
    for line in report.lines(scenario.name, results):
        print(line, flush=True)


def _observe(scenario: Scenario, place: Place, options: argparse.Namespace) -> None:
    """Memory is watched on the first library that was chosen, with a handler per message."""
    print(f"\nmemory, {scenario.name}, {options.memory:,} messages", flush=True)
    with scenario.open(place) as contenders:
        points = memory.observe(
            contenders[1],
            options.memory,
            batch=options.batch,
            progress=partial(_progress, "memory"),
        )
        for line in report.memory(points):
            print(line)


def _progress(name: str, text: str) -> None:
    print(f"{name}: {text}", file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    names = [scenario.name for scenario in ALL]
    add = parser.add_argument
    add("--only", type=_names, default=names, help=f"some of {','.join(names)}")
    add("--messages", type=int, metavar="N", help="per round; default: a second or a few of work")
    add("--batch", type=int, default=100, help="messages per transaction (default %(default)s)")
    add("--rounds", type=int, default=5, help="(default %(default)s)")
    add(
        "--memory",
        type=int,
        default=100_000,
        metavar="N",
        help="messages during which memory is watched; 0: not at all (default %(default)s)",
    )
    return parser


def _names(text: str) -> list[str]:
    known = [scenario.name for scenario in ALL]
    names = text.split(",")
    for name in names:
        if name not in known:
            raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(known)}")
    return names


if __name__ == "__main__":
    main()
