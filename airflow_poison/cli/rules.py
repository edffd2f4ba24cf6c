"""``airflow poison rules``: automatic actions on a queue's poison.

``airflow poison mask``: which values of a queue's messages are hidden.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_poison.cli import terminal, values
from airflow_poison.cli.command import QUEUE, WHERE, Argument, command, option, queue_of, switch, wrong_usage
from airflow_poison.cli.terminal import tell

if TYPE_CHECKING:
    from argparse import Namespace

    from airflow_poison.desk.rule_runs import RulesResult


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
    from airflow_poison.values.masking import Masking

    if args.paths and args.off:
        raise wrong_usage("--off: expected without paths.")
    queue = queue_of(args)
    if args.paths or args.off:
        queue.declare(mask=args.paths)
    masking = Masking.recorded(queue.reading.snapshot().control.desk)
    paths = [] if masking is None else list(masking.paths)
    told = f"{queue.name} hides {', '.join(paths)}." if paths else f"{queue.name} hides nothing."
    tell(args.output, {"queue": queue.name, "mask": paths}, told)


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
    from airflow_poison.desk.redrive import redrive
    from airflow_poison.desk.rules import checked_rules

    given, queue = None if args.declare is None else checked_rules(_read(args.declare)), queue_of(args)
    if args.dry_run:
        if args.redrive_on_new_handler is not None:
            raise wrong_usage("--redrive-on-new-handler: expected without --dry-run.")
        _print(args, queue.run_rules(dry_run=True, rules=given))
        return
    canary = None if args.redrive_on_new_handler in {None, "off"} else _canary(args.redrive_on_new_handler)
    if given is not None:
        queue.declare_rules(given)
    if args.redrive_on_new_handler is not None:
        queue.redrive_on_new_handler(canary)
    redrive(queue.table, queue.clock, who=queue.actor)
    _print(args, queue.run_rules())


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
