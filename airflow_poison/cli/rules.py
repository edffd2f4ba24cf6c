"""``airflow poison rules``: automatic actions on a queue's poison.

``airflow poison mask`` and ``retain``: which values of a queue's messages are hidden, and the retention of poison.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_poison.cli import terminal, values
from airflow_poison.cli.command import (
    QUEUE,
    WHERE,
    Argument,
    command,
    end_with_no,
    opened_queue,
    opened_store,
    option,
    queue_to_read,
    shell_user,
    switch,
    system_clock,
    wrong_usage,
)
from airflow_poison.cli.terminal import tell

if TYPE_CHECKING:
    from argparse import Namespace

    from airflow_poison.desk.retention import Retention
    from airflow_poison.desk.rule_runs import RulesResult
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


@command(
    "rules",
    QUEUE,
    switch("--dry-run", "only say what each rule has and would take"),
    option("--declare", "FILE", "a JSON list of rules, recorded in the place of those that the queue has; - reads standard input"),
    option("--redrive-on-new-handler", "N[:SHARE]", "record that N messages of each error group go first for a new version; off: not any more"),
    *WHERE,
)
def rules(args: Namespace) -> None:
    """Do what a queue's rules say with its poison.

    Run the rules of a queue, as far as it is time; with --dry-run only say what each has and would take, also of the rules of --declare. What a
    rule asks waits as a paused plan. Exit code 0: done, 2: it could not be done.
    """
    from airflow_poison.desk import rule_runs
    from airflow_poison.desk.redrive import redrive, set_redrive
    from airflow_poison.desk.rules import checked_rules, declare_rules
    from airflow_poison.values.actor import shell_user

    clock = system_clock()
    given = None if args.declare is None else checked_rules(_read(args.declare))
    if args.dry_run:
        if args.redrive_on_new_handler is not None:
            raise wrong_usage("--redrive-on-new-handler: expected without --dry-run.")
        _print(args, rule_runs.dry_run(queue_to_read(args), clock, given))
        return
    canary = None if args.redrive_on_new_handler in {None, "off"} else _canary(args.redrive_on_new_handler)
    table = opened_queue(args)
    if given is not None:
        declare_rules(table, given, clock)
    if args.redrive_on_new_handler is not None:
        set_redrive(table, canary, clock)
    redrive(table, clock, who=shell_user())
    _print(args, rule_runs.run_rules(table, clock, who=shell_user(), store=opened_store(args)))


def _read(name: str) -> object:
    text = sys.stdin.read() if name == "-" else Path(name).read_text(encoding="utf-8")
    try:
        found: object = json.loads(text)
    except ValueError as error:
        raise wrong_usage(f"--declare {name}: expected a JSON list of rules; {error}.") from error
    return found


def _canary(text: str) -> Any:
    from airflow_poison.passes.declaration import Canary

    number, _, share = text.partition(":")
    flag = "--redrive-on-new-handler"
    try:
        return Canary(values.whole(flag, number, 1), float(share or 1))
    except ValueError:
        raise wrong_usage(f"{flag} {text}: expected N, N:SHARE or off, for example 10:0.95.") from None


def _print(args: Namespace, result: RulesResult) -> None:
    if args.output == "json":
        terminal.write_json(result.to_dict())
        return
    out = terminal.screen()
    told = terminal.table("rule", "does", "messages", "now", "waiting", "plan", right=("messages", "now", "waiting"))
    for each in result.rules:
        plan = f"{each.plan} {each.state}" if each.plan else ""
        told.add_row(each.rule, each.verb.value, f"{each.messages:,}", f"{each.now:,}", f"{each.waiting:,}", plan)
    if result.rules:
        out.print(told)
    done = "Nothing was changed." if result.dry_run else f"{terminal.messages(sum(each.done for each in result.rules))} done."
    terminal.line(out, f"{result.queue}: {terminal.messages(result.messages)} in poison, {result.unmatched:,} meet no rule. {done}")
