"""Command `status`: the state of an inbox and its workers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

import click
from rich.text import Text

from oncebox.cli.app import Reference, app_argument, called
from oncebox.cli.commands import UNHEALTHY
from oncebox.cli.documents import print_json
from oncebox.cli.options import json_option
from oncebox.cli.output import (
    ATTENTION,
    STATE_STYLES,
    WARNING,
    ago,
    capped_count,
    capped_number,
    counted,
    duration,
    note,
    print_line,
    print_properties,
    print_table,
    text,
)
from oncebox.model.inspection import DeadLetterCount, PartitionStatus, Status, WorkerStatus
from oncebox.model.retention import Retention

LONGEST_WAIT = 60
"""Seconds that messages may be ready while no worker runs."""

LATE_HEARTBEATS = 3
"""Intervals between two heartbeats after which the table marks a worker."""


@click.command()
@app_argument
@click.option(
    "--check",
    is_flag=True,
    help="Exit with 4 if a worker crashed and no other took over, if the reader of a partition is "
    "overdue, if a source cannot be read, if dead letters block keys, or if messages are ready and "
    "no worker runs.",
)
@json_option
def status(app: Reference, as_json: bool, check: bool) -> None:
    """Show the state of an inbox and its workers.

    It shows pending messages, dead letters, rates, workers, partitions and outages.
    """
    inbox = app.load()
    found: Status = called(inbox, inbox.status)
    if as_json:
        print_json(found)
    else:
        late = LATE_HEARTBEATS * max(1.0, inbox._engine.heartbeat_margin / 2)
        _print_status(found, inbox.retention, late)
    failing = list(_failing_checks(found)) if check else []
    for problem in failing:
        note(f"check failed: {problem}", style=ATTENTION)
    if failing:
        raise SystemExit(UNHEALTHY)


def _failing_checks(found: Status) -> Iterator[str]:
    """Why the inbox is not healthy."""
    yield from _waiting_for_a_worker(found)
    for worker in found.workers:
        if worker.is_overdue:
            heartbeat = f"last heartbeat {ago(worker.heartbeat_at)}"
            hint = "no live worker took over: start one"
            yield f"worker {worker.name} crashed or hangs ({heartbeat}), and {hint}"
    for partition in found.partitions:
        if partition.is_overdue:
            name = f"{partition.partition} of {partition.source}"
            yield f"the reader of {name} is overdue: {partition.owner}"
    for outage in found.outages:
        yield f"worker {outage.worker} cannot read {outage.source}: {outage.why}"
    for group in found.dead:
        if group.keys:
            blocked = capped_count(group.keys, "key")
            blocks = "blocks" if group.count == 1 else "block"
            yield f"{capped_count(group.count, 'dead letter')} ({group.reason}) {blocks} {blocked}"


def _waiting_for_a_worker(found: Status) -> Iterator[str]:
    """That messages are ready, if no worker has run them for some time and none is alive."""
    if found.oldest_ready is None or not all(worker.is_crashed for worker in found.workers):
        return
    waited = _seconds_since(found.oldest_ready)
    if waited > LONGEST_WAIT:
        are = "message is" if found.ready == 1 else "messages are"
        yield (
            f"{capped_number(found.ready)} {are} ready for {duration(waited)} and no worker runs: "
            f"start one with `oncebox worker APP`"
        )


def _seconds_since(moment: datetime) -> float:
    return (datetime.now(UTC) - moment).total_seconds()


FAULTS = ("failed #", "dead #", "quarantined #")


def _print_status(found: Status, retention: Retention | None, late: float) -> None:
    """Print everything. A worker whose last heartbeat is `late` seconds ago is marked."""
    print_line(found.consumer, style="bold")
    print_properties(_summary(found, retention))
    print_line("")
    print_table(
        ("last", "received #", "done #", "duplicates absorbed #", *FAULTS),
        [
            (f"{minutes} min", r.received, r.done, r.duplicate, r.failed, r.dead, r.quarantined)
            for minutes, r in found.rates.items()
        ],
        empty="",
    )
    print_line("")
    print_table(
        ("worker", "batch size", "started", "last heartbeat"),
        [
            (w.name, counted(w.batch, "message"), ago(w.started_at), _last_heartbeat(w, late))
            for w in found.workers
        ],
        empty="no workers are running",
    )
    if found.partitions:
        print_line("")
        _print_partitions(found.partitions)
    _print_problems(found)


def _summary(found: Status, retention: Retention | None) -> Iterator[tuple[str, str | Text]]:
    """What is pending and dead, and how long messages are kept."""
    yield "pending", _pending(found)
    if found.gaps:
        count, keys = (
            capped_count(found.awaiting_sequence, "message"),
            capped_count(found.gaps, "key"),
        )
        waiting = f"{count} of {keys} wait for missing sequence numbers"
        yield "gaps", Text(waiting + _oldest(found.oldest_gap), WARNING)
    yield "dead letters", _dead_letters(found.dead)
    for group in found.dead:
        yield group.state, _group(group)
    yield "retention", _describe_retention(found, retention)


def _pending(found: Status) -> str:
    """The number of pending messages, as a sum of its parts."""
    least = "at least " if found.pending > 100_000 else ""
    parts = (
        f"{least}{capped_number(found.ready)} ready, {capped_number(found.retrying)} retrying, "
        f"{capped_number(found.blocked)} blocked"
    )
    isolated = f"; {capped_number(found.isolated)} of them isolated" if found.isolated else ""
    pending = capped_count(found.pending, "message")
    return f"{pending}: {parts}{isolated}{_oldest(found.oldest_pending)}"


def _dead_letters(groups: Sequence[DeadLetterCount]) -> str | Text:
    """The number of dead letters and quarantined deliveries, as a sum of its parts."""
    if not groups:
        return "none"
    sums = dict.fromkeys(STATE_STYLES, 0)
    for group in groups:
        sums[group.state] += group.count
    parts = ", ".join(f"{capped_number(count)} {state}" for state, count in sums.items() if count)
    return Text(
        f"{capped_number(sum(sums.values()))}: {parts}", ATTENTION if sums["dead"] else WARNING
    )


def _group(group: DeadLetterCount) -> Text:
    blocks = f", {capped_count(group.keys, 'key')} blocked" if group.keys else ""
    return Text(f"{capped_number(group.count)} {group.reason}{blocks}", STATE_STYLES[group.state])


def _oldest(since: datetime | None) -> str:
    return f", oldest {ago(since)}" if since is not None else ""


def _last_heartbeat(worker: WorkerStatus, late: float) -> str | Text:
    beat = ago(worker.heartbeat_at)
    if worker.is_overdue:
        return Text(f"{beat} OVERDUE", ATTENTION)
    if worker.is_crashed:
        return f"{beat}, crashed, work taken over"
    seconds = _seconds_since(worker.heartbeat_at)
    if seconds > late:
        return Text(f"no heartbeat for {duration(seconds)}", WARNING)
    return beat


def _describe_retention(found: Status, retention: Retention | None) -> str:
    if retention is None:
        return "forever, messages are never purged"
    words = [f"{retention.days:g} day{'' if retention.days == 1 else 's'}"]
    if found.purged_before is not None:
        words.append(f"purged before {text(found.purged_before)}")
    if found.purge_paused_until is not None:
        words.append(f"purge paused until {text(found.purge_paused_until)} after a restore")
    if found.last_purge_at is not None:
        words.append(f"last purge {ago(found.last_purge_at)}")
    else:
        words.append("not purged yet")
    return ", ".join(words)


def _print_problems(found: Status) -> None:
    """Print outages of sources, and messages that were deleted before they were read."""
    problems = [
        (
            "outage",
            f"{o.worker} cannot read {o.source} since {text(o.since_at)}: {o.why}",
        )
        for o in found.outages
    ]
    problems += [
        (
            "skipped",
            f"up to {counted(p.skipped, 'message')} of {p.partition}, {ago(p.skipped_at)}: "
            f"{p.skipped_why}",
        )
        for p in found.partitions
        if p.skipped
    ]
    for name, problem in problems:
        print_properties([(name, Text(text(problem), ATTENTION))])


def _print_partitions(partitions: Sequence[PartitionStatus]) -> None:
    print_table(
        ("source", "partition", "position #", "acked #", "lag", "reader", "for", "moved"),
        [
            (
                *(p.source, p.partition, p.next, p.settled, _lag(p), p.owner),
                *(_read_for(p), ago(p.moved_at)),
            )
            for p in partitions
        ],
        empty="",
    )


def _read_for(partition: PartitionStatus) -> str | Text:
    """For how long the reader has had the partition."""
    since = ago(partition.owned_at).removesuffix(" ago")
    return Text(f"{since} OVERDUE", ATTENTION) if partition.is_overdue else since


def _lag(partition: PartitionStatus) -> str:
    """The lag, and the age of its measurement."""
    if partition.lag is None:
        return ""
    lag = f"{partition.lag:,} unread"
    return f"{lag}, {ago(partition.lag_at)}" if partition.lag_at else lag
