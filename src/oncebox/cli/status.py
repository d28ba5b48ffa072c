"""Command `status`: the state of an inbox and its workers."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import click

from oncebox.cli.app import Reference, app_argument, called
from oncebox.cli.commands import UNHEALTHY
from oncebox.cli.output import age, console, json_option, number, print_json, print_table, text
from oncebox.model.inspection import PartitionStatus, Status, WorkerStatus
from oncebox.model.retention import Retention


@click.command()
@app_argument
@json_option
@click.option(
    "--check",
    is_flag=True,
    help="Exit with 4 if a worker crashed and no other took over, if the reader of a partition is "
    "overdue, if a source cannot be read, or if dead letters block keys.",
)
def status(app: Reference, as_json: bool, check: bool) -> None:
    """Show the state of an inbox and its workers.

    It shows pending messages, dead letters, rates, workers, partitions and outages.
    """
    inbox = app.load()
    found: Status = called(inbox, inbox.status)
    if as_json:
        print_json(found)
    else:
        _print_status(found, inbox.retention)
    if check and _is_unhealthy(found):
        raise SystemExit(UNHEALTHY)


def _is_unhealthy(found: Status) -> bool:
    overdue = any(worker.is_overdue for worker in found.workers)
    overdue = overdue or any(partition.is_overdue for partition in found.partitions)
    return overdue or bool(found.outages) or any(group.keys for group in found.dead)


def _print_status(found: Status, retention: Retention | None) -> None:
    console.print(f"[bold]{text(found.consumer)}[/bold]")
    _print_unfinished(found)
    console.print(f"retention {_describe_retention(found, retention)}")
    console.print()
    print_table(
        ("last", "received #", "done #", "duplicates absorbed #", "failed #", "dead #"),
        [
            (f"{minutes} min", r.received, r.done, r.duplicate, r.failed, r.dead + r.quarantined)
            for minutes, r in found.rates.items()
        ],
        empty="",
    )
    console.print()
    print_table(
        ("worker", "batch #", "started", "last heartbeat"),
        [(w.name, w.batch, w.started_at, _last_heartbeat(w)) for w in found.workers],
        empty="no workers are running",
    )
    if found.partitions:
        console.print()
        _print_partitions(found.partitions)
    _print_problems(found)


def _last_heartbeat(worker: WorkerStatus) -> str:
    ago = f"{age(worker.heartbeat_at)} ago"
    if worker.is_overdue:
        return f"{ago} OVERDUE"
    return f"{ago}, crashed, work taken over" if worker.is_crashed else ago


def _describe_retention(found: Status, retention: Retention | None) -> str:
    if retention is None:
        return "forever, messages are never purged"
    words = [f"{retention.days:g} days"]
    if found.purged_before is not None:
        words.append(f"purged before {text(found.purged_before)}")
    if found.purge_paused_until is not None:
        words.append(f"purge paused until {text(found.purge_paused_until)} after a restore")
    if found.last_purge_at is not None:
        words.append(f"last purge {age(found.last_purge_at)} ago")
    else:
        words.append("not purged yet")
    return ", ".join(words)


def _print_unfinished(found: Status) -> None:
    pending = f"{number(found.ready)} ready, {number(found.retrying)} retrying, "
    pending += f"{number(found.blocked)} blocked"
    if found.isolated:
        pending += f", {number(found.isolated)} isolated"
    console.print(f"pending   {pending}{_oldest(found.oldest_pending)}")
    if found.gaps:
        count, keys = number(found.awaiting_sequence), number(found.gaps)
        waiting = f"{count} messages of {keys} keys wait for missing "
        waiting += f"sequence numbers{_oldest(found.oldest_gap)}"
        console.print(f"gaps      {waiting}")
    for group in found.dead:
        keys = f", {group.keys:,} keys blocked" if group.keys else ""
        console.print(f"{group.state:<9} {number(group.count)} {group.reason}{keys}", style="red")


def _oldest(since: datetime | None) -> str:
    return f", oldest {age(since)} ago" if since is not None else ""


def _print_problems(found: Status) -> None:
    """Print outages of sources, and messages that were deleted before they were read."""
    for outage in found.outages:
        line = f"outage    {text(outage.worker)} cannot read {text(outage.source)} "
        line += f"since {text(outage.since_at)}: {text(outage.why)}"
        console.print(line, style="red")
    for partition in found.partitions:
        if partition.skipped:
            name = text(partition.partition)
            line = f"skipped   up to {partition.skipped:,} messages of {name}, "
            line += f"{age(partition.skipped_at)} ago: {text(partition.skipped_why)}"
            console.print(line, style="red")


def _print_partitions(partitions: Sequence[PartitionStatus]) -> None:
    print_table(
        ("source", "partition", "position #", "acked #", "lag #", "reader", "for", "moved"),
        [
            (
                *(p.source, p.partition, p.next, p.settled, _lag(p), p.owner),
                age(p.owned_at) + " OVERDUE" * p.is_overdue,
                f"{age(p.moved_at)} ago",
            )
            for p in partitions
        ],
        empty="",
    )


def _lag(partition: PartitionStatus) -> str:
    """The lag, and the age of its measurement."""
    if partition.lag is None:
        return ""
    return f"{partition.lag:,}" + (f", {age(partition.lag_at)} ago" if partition.lag_at else "")
