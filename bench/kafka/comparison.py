"""One process per contender reads the same topics, round by round."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from statistics import median

import msgspec

from bench.drain.comparison import line
from bench.environment import Environment
from bench.kafka import naive, oncebox
from bench.kafka.options import PARTITIONS, Options
from bench.kafka.watch import Run
from bench.kafka.worker import Open, Order, Worker
from bench.measure import WARM_UP, check
from bench.workload import Stream

GOAL = 6.0
SHARE = 0.25
"""How much of the process's CPU time the source's thread may take."""


class RunningContender(msgspec.Struct, frozen=True):
    """A way to consume, with a database and a process of its own, and its runs so far."""

    label: str
    url: str
    worker: Worker
    runs: list[Run]

    def play(self, topic: str, stream: Stream, environment: Environment, messages: int) -> Run:
        """One round, checked. No group is met twice, so each reads the topic from its beginning."""
        order = Order(environment.broker.bootstrap, topic, f"{self.label} of {topic}", messages)
        run = self.worker.consume(order)
        check(self.label, self.url, stream)
        return run

    @property
    def rates(self) -> list[float]:
        return [run.rate for run in self.runs]


def measure(environment: Environment, options: Options) -> Iterator[str]:
    """By hand, a handler per message, a handler per batch."""
    with ExitStack() as stack:
        contenders_running = [
            _start(stack, environment, "a transaction per message", naive.open),
            _start(stack, environment, "oncebox, per message", oncebox.open_single),
            _start(stack, environment, "oncebox, batch", oncebox.open_batch),
        ]
        _compare(contenders_running, environment, options)
    by_hand, single, batch = contenders_running
    yield f"kafka, {options.messages:,} messages a round in {PARTITIONS} partitions, no duplicates"
    yield line(by_hand.label, by_hand.rates)
    yield line(single.label, single.rates, by_hand.rates, GOAL)
    yield line(batch.label, batch.rates, by_hand.rates)
    yield "the processes: memory, CPU time per message, and the shares of threads in it"
    for running in contenders_running:
        yield _process(running)
    yield _verdict(single)


def _start(stack: ExitStack, environment: Environment, label: str, open: Open) -> RunningContender:
    url = environment.postgres()
    return RunningContender(
        label, url, stack.enter_context(Worker(open, url, environment.batch)), []
    )


def _compare(
    contenders_running: Sequence[RunningContender], environment: Environment, options: Options
) -> None:
    stream = Stream(repeats=False)
    _play(contenders_running, environment, stream, WARM_UP)
    for number in range(1, options.rounds + 1):
        runs = _play(contenders_running, environment, stream, options.messages)
        for running, run in zip(contenders_running, runs, strict=True):
            running.runs.append(run)
        rates = ", ".join(f"{run.rate:,.0f}/s" for run in runs)
        options.progress(f"round {number} of {options.rounds}: {rates}")


def _play(
    contenders_running: Sequence[RunningContender],
    environment: Environment,
    stream: Stream,
    messages: int,
) -> list[Run]:
    """All read the same topic, which is complete before the first of them comes."""
    topic = environment.broker.create_topic(PARTITIONS)
    deliveries = stream.take(messages)
    environment.broker.produce(topic, [(str(d.key).encode(), d.body, ()) for d in deliveries])
    return [running.play(topic, stream, environment, messages) for running in contenders_running]


def _process(running: RunningContender) -> str:
    runs = running.runs
    shares = {name: _share(runs, name) for name in ("main", "source", "native")}
    return (
        f"  {running.label:<28}{max(run.resident for run in runs):>7.0f} MB"
        f"{median(run.cpu / run.messages for run in runs) * 1e6:>8.0f} µs"
        f"   main {shares['main']:.0%}, source {shares['source']:.0%}, "
        f"librdkafka {shares['native']:.0%}"
    )


def _share(runs: Sequence[Run], name: str) -> float:
    return float(median(getattr(run, name) / run.cpu for run in runs))


def _verdict(running: RunningContender) -> str:
    share = _share(running.runs, "source")
    verdict = "ok" if share < SHARE else "MISSED"
    return f"  the source's thread, {running.label}: {share:.1%}  goal < {SHARE:.0%}: {verdict}"
