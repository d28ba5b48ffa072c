"""The command line of the benchmarks: tables to stdout, progress to stderr.

`inline` measures process() with each library, in batches of 1, 10 and 100. `drain` measures
receive() and drain(), `kafka` a Consumer of Kafka, `retention` purge, archive and replay. Without
a name, all of them run.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from functools import partial
from typing import Any

from msgspec import Struct

from bench import calls, drain, memory, report, retention
from bench.drain.options import Options
from bench.environment import Environment
from bench.kafka import comparison
from bench.kafka.options import Options as KafkaOptions
from bench.measure import interleave
from bench.retention.options import Options as RetentionOptions
from bench.scenarios import ALL, Scenario, claim

INLINE = [*(scenario.name for scenario in ALL), claim.NAME]
DRAIN = [part.name for part in drain.ALL]
RETENTION = [part.name for part in retention.ALL]
BENCHMARKS = {"inline": INLINE, "drain": DRAIN, "kafka": ["kafka"], "retention": RETENTION}
EVERYTHING = [name for names in BENCHMARKS.values() for name in names]
BATCHES = (1, 10, 100)
"""The batch sizes of `inline`."""


def main() -> None:
    """Run the benchmarks that are asked for."""
    options = _parser().parse_args()
    only = options.only or BENCHMARKS.get(options.what, EVERYTHING)
    with Environment() as environment:
        if options.calls:
            _print(calls.lines(environment, only))
            return
        if scenarios := [scenario for scenario in ALL if scenario.name in only]:
            _inline(scenarios, environment, options)
        if claim.NAME in only:
            _claim(environment, options)
        environment.batch = options.batch or max(BATCHES)
        if parts := [part for part in drain.ALL if part.name in only]:
            _drain(parts, environment, options)
        if "kafka" in only:
            _kafka(environment, options)
        if retained := [part for part in retention.ALL if part.name in only]:
            _retention(retained, environment, options)


# -- inline ---------------------------------------------------------------------------------------


def _inline(chosen: list[Scenario], environment: Environment, options: argparse.Namespace) -> None:
    served = any(scenario.needs_server for scenario in chosen)
    postgres = environment.server.version if served else None
    _print(report.header(postgres=postgres, fsync=environment.fsync(), rounds=options.rounds))
    for batch in (options.batch,) if options.batch else BATCHES:
        environment.batch = batch
        _print(["", report.title(batch)])
        for scenario in chosen:
            _compare(scenario, environment, options)
    if options.memory:
        _observe(chosen[0], environment, options)


def _compare(scenario: Scenario, environment: Environment, options: argparse.Namespace) -> None:
    """Measure the contenders of a library by turns. The goals are those of the largest batch."""
    with scenario.open(environment) as contenders:
        results = interleave(
            contenders,
            messages=options.messages or scenario.messages,
            rounds=options.rounds,
            progress=partial(_progress, f"{scenario.name}, batches of {environment.batch}"),
        )
    has_goals = environment.batch >= max(BATCHES)
    _print(report.lines(scenario.name, results, has_goals=has_goals))


def _observe(scenario: Scenario, environment: Environment, options: argparse.Namespace) -> None:
    """Measure memory with the first library that was chosen, and a handler per message."""
    print(f"\nmemory, {scenario.name}, {options.memory:,} messages", flush=True)
    with scenario.open(environment) as contenders:
        points = memory.observe(
            contenders[1],
            options.memory,
            batch=environment.batch,
            progress=partial(_progress, "memory"),
        )
        _print(report.memory(points))


def _claim(environment: Environment, options: argparse.Namespace) -> None:
    """claim() against the INSERT that a consumer without oncebox executes."""
    print("\n" + claim.title(), flush=True)
    progress = partial(_progress, claim.NAME)
    for line in claim.measure(environment, options.messages, options.rounds, progress):
        print(line, flush=True)


# -- drain ----------------------------------------------------------------------------------------


def _drain(parts: list[drain.Part], environment: Environment, options: argparse.Namespace) -> None:
    chosen = Options(progress=partial(_progress, "drain"), **_given(Options, options))
    _print(
        report.drain_header(
            postgres=environment.server.version, fsync=environment.fsync(), options=chosen
        )
    )
    for part in parts:
        print(flush=True)
        _print(part.measure(environment, chosen))


# -- kafka ----------------------------------------------------------------------------------------


def _kafka(environment: Environment, options: argparse.Namespace) -> None:
    chosen = KafkaOptions(progress=partial(_progress, "kafka"), **_given(KafkaOptions, options))
    broker = environment.broker
    _print(
        report.kafka_header(
            postgres=environment.server.version,
            kafka=f"{broker.version}{' (mock)' if broker.mock else ''}",
            fsync=environment.fsync(),
            options=chosen,
        )
    )
    print(flush=True)
    _print(comparison.measure(environment, chosen))


# -- retention ------------------------------------------------------------------------------------


def _retention(
    parts: list[retention.Part], environment: Environment, options: argparse.Namespace
) -> None:
    chosen = RetentionOptions(
        progress=partial(_progress, "retention"), **_given(RetentionOptions, options)
    )
    _print(
        report.retention_header(
            postgres=environment.server.version, fsync=environment.fsync(), options=chosen
        )
    )
    for part in parts:
        print(flush=True)
        _print(part.measure(environment, chosen))


def _given(kind: type[Struct], options: argparse.Namespace) -> dict[str, Any]:
    """The options that were given, of those that the kind has."""
    given = {name: getattr(options, name, None) for name in kind.__struct_fields__}
    return {name: value for name, value in given.items() if value is not None}


def _print(lines: Iterable[str]) -> None:
    for line in lines:
        print(line, flush=True)


def _progress(name: str, text: str) -> None:
    print(f"{name}: {text}", file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add: Any = parser.add_argument
    add("what", nargs="?", choices=list(BENCHMARKS), help="default: all")
    add(
        "--only",
        type=_names,
        help=f"some of {','.join(INLINE)} (inline), {','.join(DRAIN)} (drain), kafka, "
        f"{','.join(RETENTION)} (retention)",
    )
    add("--messages", type=int, metavar="N", help="per round; default: a few seconds of work")
    add(
        "--batch",
        type=int,
        metavar="N",
        help="messages per transaction (default: 100; for inline 1, 10 and 100)",
    )
    add("--rounds", type=int, default=5, help="(default %(default)s)")
    add = parser.add_argument_group("inline").add_argument
    add(
        "--memory",
        type=int,
        default=100_000,
        metavar="N",
        help="messages of the memory measurement, 0 for none (default %(default)s)",
    )
    add(
        "--calls",
        action="store_true",
        help="only count the Python function calls of process() with one message",
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
    add("--blocked", type=int, metavar="N", help=f"blocked messages (default {usual.blocked})")
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
        help=f"messages of the bloat measurement (default {usual.through})",
    )
    retention_usual = RetentionOptions(progress=print)
    add = parser.add_argument_group("retention").add_argument
    add(
        "--rows",
        type=int,
        metavar="N",
        help=f"old messages to purge, and to archive and restore (default {retention_usual.rows})",
    )
    add(
        "--replayed",
        type=int,
        metavar="N",
        help=f"messages of a replay (default {retention_usual.replayed})",
    )
    return parser


def _names(text: str) -> list[str]:
    names = text.split(",")
    for name in names:
        if name not in EVERYTHING:
            raise argparse.ArgumentTypeError(
                f"unknown name {name!r}; known are {', '.join(EVERYTHING)}"
            )
    return names


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(int(size) for size in text.split(","))


if __name__ == "__main__":
    main()
