"""``airflow poison mask`` and ``retain``: which values of a queue's messages are hidden, and the retention of poison."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from airflow_poison.cli import terminal, values
from airflow_poison.cli.command import QUEUE, WHERE, Argument, command, end_with_no, option, switch, wrong_usage
from airflow_poison.cli.stores import opened_queue, opened_store, queue_to_read, shell_user, system_clock
from airflow_poison.cli.terminal import tell

if TYPE_CHECKING:
    from argparse import Namespace

    from airflow_poison.desk.retention import Retention
    from airflow_poison.store.queue_table import QueueTable


@command(
    "mask",
    QUEUE,
    Argument(("paths",), {"metavar": "PATH", "nargs": "*", "help": "$.card, $.items[*].card, properties.token (default: say what is hidden)"}),
    switch("--off", "hide nothing any more"),
    *WHERE,
)
def mask(args: Namespace) -> None:
    """Say, or set, which values of a queue's messages are hidden.

    Values at these paths are hidden in all views, logs and alerts. A DAG that declares a mask records its own again at its next run.
    Exit code 0: said, or set, 2: it could not be.
    """
    from airflow_poison.desk.masking import declare_mask
    from airflow_poison.values.actor import acting
    from airflow_poison.values.masking import Masking

    if args.paths and args.off:
        raise wrong_usage("--off: expected without paths.")
    if args.paths or args.off:
        table = opened_queue(args)
        with acting(shell_user()):
            masking = declare_mask(table, system_clock(), args.paths)
    else:
        table = queue_to_read(args)
        masking = Masking.recorded(table.snapshot().control.desk)
    paths = [] if masking is None else list(masking.paths)
    told = f"{table.name} hides {', '.join(paths)}." if paths else f"{table.name} hides nothing."
    tell(args.output, {"queue": table.name, "mask": paths}, told)


@command(
    "retain",
    QUEUE,
    option("--after", "DURATION", "poison is old so long after it became poison, for example 30d (default: as recorded in the queue)"),
    option("--export-to", "PLACE", "write it into this folder, or below this prefix of an object store, and remove it (default: only report)"),
    switch("--remove", "with --export-to: remove what was written"),
    switch("--record", "record this in the queue: each maintenance does it"),
    switch("--off", "take out what is recorded"),
    *WHERE,
)
def retain(args: Namespace) -> None:
    """Report old poison, or write it elsewhere and remove it.

    Without --after, what is recorded in the queue is done. Exit code 0: done, or reported, 1: nothing is recorded, 2: it could not be done.
    """
    from airflow_poison.desk.retention import retain as verb

    wanted = _wanted(args)
    table, clock = opened_queue(args), system_clock()
    if args.off:
        _record(table, None)
        tell(args.output, {"queue": table.name, "retention": None}, f"{table.name} has no retention.")
        return
    if args.record:
        _record(table, wanted)
    done = verb(table, clock, wanted, who=shell_user(), store=opened_store(args))
    if done is None:
        end_with_no(args.output, f"no retention is recorded in {table.name!r}: give --after, or record one with --after and --record.")
    told = [f"{terminal.messages(done.older)} of {table.name} are old poison." if done.older != 1 else f"1 message of {table.name} is old poison."]
    if done.plans:
        told.append(f"Removed {terminal.messages(done.removed)}, written to {', '.join(done.files) or 'nowhere'}; plan {', '.join(done.plans)}.")
    if done.waiting:
        told.append(f"{terminal.messages(done.waiting)} wait: passes have claimed them, or the plan is paused. Run it again.")
    tell(args.output, done.to_dict(), *told)


def _wanted(args: Namespace) -> Retention | None:
    from airflow_poison.desk.retention import Retention

    if args.after is None:
        if args.export_to is not None or args.remove or args.record:
            raise wrong_usage("--after is missing: expected a duration, for example --after 30d.")
        return None
    if args.off:
        raise wrong_usage("--off: expected alone.")
    place = args.export_to
    whole = place if not place or "://" in place else str(Path(place).absolute())
    return Retention(values.duration("--after", args.after), whole, args.remove)


def _record(table: QueueTable, retention: Retention | None) -> None:
    from airflow_poison.desk.retention import declare_retention
    from airflow_poison.values.actor import acting

    with acting(shell_user()):
        declare_retention(table, system_clock(), retention)
