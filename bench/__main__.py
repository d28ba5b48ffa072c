"""The command line of the benchmark: the tables to stdout, progress to stderr.

`inline` measures process() with each library, `drain` what receive() and drain() do, `kafka` a
Consumer of Kafka, `house` what it costs to forget, archive and replay; without a word, all are
measured.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from typing import Any

from msgspec import Struct

from bench import drain, house, memory, report
from bench.drain.options import Options
from bench.house.options import Options as HouseOptions
from bench.kafka import contest
from bench.kafka.options import Options as KafkaOptions
from bench.measure import interleave
from bench.place import Place
from bench.scenarios import ALL, Scenario

INLINE = [scenario.name for scenario in ALL]
DRAIN = [part.name for part in drain.ALL]
HOUSE = [part.name for part in house.ALL]
WORDS = {"inline": INLINE, "drain": DRAIN, "kafka": ["kafka"], "house": HOUSE}
EVERYTHING = [name for names in WORDS.values() for name in names]


def main() -> None:
    """Measure what was asked for."""
    options = _parser().parse_args()
    only = options.only or WORDS.get(options.what, EVERYTHING)
    with Place(options.batch) as place:
        if scenarios := [scenario for scenario in ALL if scenario.name in only]:
            _inline(scenarios, place, options)
        if parts := [part for part in drain.ALL if part.name in only]:
            _drain(parts, place, options)
        if "kafka" in only:
            _kafka(place, options)
        if chores := [part for part in house.ALL if part.name in only]:
            _house(chores, place, options)


# -- inline ---------------------------------------------------------------------------------------


def _inline(chosen: list[Scenario], place: Place, options: argparse.Namespace) -> None:
    _introduce(place, chosen, options)
    for scenario in chosen:
        _compare(scenario, place, options)
    if options.memory:
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


# -- drain ----------------------------------------------------------------------------------------


def _drain(parts: list[drain.Part], place: Place, options: argparse.Namespace) -> None:
    chosen = Options(progress=partial(_progress, "drain"), **_given(Options, options))
    for line in report.drain_header(
        postgres=place.server.version, fsync=place.fsync(), options=chosen
    ):
        print(line)
    for part in parts:
        print(flush=True)
        for line in part.measure(place, chosen):
            print(line, flush=True)


# -- kafka ----------------------------------------------------------------------------------------


def _kafka(place: Place, options: argparse.Namespace) -> None:
    chosen = KafkaOptions(progress=partial(_progress, "kafka"), **_given(KafkaOptions, options))
    broker = place.broker
    for line in report.kafka_header(
        postgres=place.server.version,
        kafka=f"{broker.version}{' (mock)' if broker.mock else ''}",
        fsync=place.fsync(),
        options=chosen,
    ):
        print(line)
    print(flush=True)
    for line in contest.measure(place, chosen):
        print(line, flush=True)


# -- house ----------------------------------------------------------------------------------------


def _house(parts: list[house.Part], place: Place, options: argparse.Namespace) -> None:
    chosen = HouseOptions(progress=partial(_progress, "house"), **_given(HouseOptions, options))
    for line in report.house_header(
        postgres=place.server.version, fsync=place.fsync(), options=chosen
    ):
        print(line)
    for part in parts:
        print(flush=True)
        for line in part.measure(place, chosen):
            print(line, flush=True)


def _given(kind: type[Struct], options: argparse.Namespace) -> dict[str, Any]:
    """Of the fields of a kind of options, those that were given."""
    given = {name: getattr(options, name, None) for name in kind.__struct_fields__}
    return {name: value for name, value in given.items() if value is not None}


def _progress(name: str, text: str) -> None:
    print(f"{name}: {text}", file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add: Any = parser.add_argument
    add("what", nargs="?", choices=list(WORDS), help="default: all")
    add(
        "--only",
        type=_names,
        help=f"some of {','.join(INLINE)} (inline), {','.join(DRAIN)} (drain), kafka, "
        f"{','.join(HOUSE)} (house)",
    )
    add("--messages", type=int, metavar="N", help="per round; default: a second or a few of work")
    add("--batch", type=int, default=100, help="messages per transaction (default %(default)s)")
    add("--rounds", type=int, default=5, help="(default %(default)s)")
    add = parser.add_argument_group("inline").add_argument
    add(
        "--memory",
        type=int,
        default=100_000,
        metavar="N",
        help="messages during which memory is watched; 0: not at all (default %(default)s)",
    )
    usual = Options(progress=print)
    add = parser.add_argument_group("drain").add_argument
    add("--workers", type=int, metavar="N", help=f"processes (default {usual.workers})")
    add(
        "--limit",
        type=float,
        metavar="S",
        help=f"seconds a round may take (default {usual.limit:g})",
    )
    add("--wall", type=int, metavar="N", help=f"parked messages (default {usual.wall})")
    add(
        "--backlogs",
        type=_sizes,
        metavar="N,N,...",
        help=f"sizes to compare (default {','.join(map(str, usual.backlogs))})",
    )
    add(
        "--history",
        type=int,
        metavar="N",
        help=f"processed messages behind an empty poll (default {usual.history})",
    )
    add(
        "--through",
        type=int,
        metavar="N",
        help=f"messages that pass through while bloat is watched (default {usual.through})",
    )
    house_usual = HouseOptions(progress=print)
    add = parser.add_argument_group("house").add_argument
    add(
        "--rows",
        type=int,
        metavar="N",
        help=f"old messages to purge, and to archive and restore (default {house_usual.rows})",
    )
    add(
        "--replayed",
        type=int,
        metavar="N",
        help=f"messages of a replay (default {house_usual.replayed})",
    )
    return parser


def _names(text: str) -> list[str]:
    names = text.split(",")
    for name in names:
        if name not in EVERYTHING:
            raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(EVERYTHING)}")
    return names


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(int(size) for size in text.split(","))


if __name__ == "__main__":
    main()
