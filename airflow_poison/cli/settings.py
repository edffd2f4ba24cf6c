"""``airflow poison policies`` and ``simulate``: the messaging systems, their settings, and what settings would do to messages.

``airflow poison rules`` and ``mask``: automatic actions on a queue's poison, and which values of its messages are hidden.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_poison.cli import terminal, values
from airflow_poison.cli.command import (
    OUTPUT,
    POLICY_JSON,
    QUEUE,
    SET,
    WHERE,
    Argument,
    command,
    noted_warnings,
    option,
    queue_of,
    several,
    switch,
    wrong_usage,
)
from airflow_poison.cli.terminal import report, write_json

if TYPE_CHECKING:
    from argparse import Namespace

    from airflow_poison.desk.rule_runs import RulesResult
    from airflow_poison.rules.described import Setting


_SYSTEM = Argument(("system",), {"metavar": "SYSTEM", "nargs": "?", "help": "the messaging system, for example Msmq4"}, "systems")


@command("policies", _SYSTEM, OUTPUT)
def policies(args: Namespace) -> None:
    """List the messaging systems, or the settings of one.

    List the messaging systems whose rules a queue can have; with SYSTEM: its settings.
    """
    from airflow_poison.cli import simulation
    from airflow_poison.rules import SYSTEMS
    from airflow_poison.rules.described import describe, system_named

    systems = [describe(name) for name in SYSTEMS] if args.system is None else [describe(system_named(args.system))]
    written = [{"system": system.name, "title": system.title, "summary": system.summary} for system in systems]
    if args.output == "json":
        settings = [_setting(setting) for setting in systems[0].settings]
        write_json({"systems": written} if args.system is None else written[0] | {"settings": settings})
    elif args.system is None:
        simulation.print_systems(systems)
    else:
        simulation.print_settings(systems[0])


def _setting(setting: Setting) -> dict[str, object]:
    return {
        "name": setting.name,
        "aliases": list(setting.aliases),
        "type": setting.kind,
        "allowed": list(setting.choices),
        "optional": setting.optional,
        "default": setting.default,
        "meaning": setting.meaning,
    }


@command(
    "simulate",
    _SYSTEM,
    SET,
    POLICY_JSON,
    several("--message", "NAME=OUTCOMES", "messages, with the outcomes of their deliveries: 'a=rb*5 ok' (default: m=rb*, one that always fails)"),
    several("--at", "NAME=DURATION", "when messages arrive (default: at the start)"),
    several("--action", "AT:VERB[:WHAT]", "what people do: 2h:enable, 30m:remove:a, 1h:alter:ReceiveRetryCount=2,MaxRetryCycles=0"),
    option("--window", "WINDOW", "retries fall due in these times only: 'Mon-Fri 22:00-06:00 Europe/Berlin'; the same as --set retry_window=WINDOW"),
    option("--start", "INSTANT", "what the clock shows at the start, for windows: 2026-03-29T01:30 (default: 2013-01-01T00:00Z)"),
    option("--until", "DURATION", "stop the clock then (default: when nothing is left to happen)"),
    option("--most-receives", "N", "stop an endless simulation after N receives (default: 10000)", default="10000"),
    several("--access", "QUEUE=ACCESS", "queues that the endpoint cannot send to: missing or denied"),
    option("--queue", "NAME", "the queue's name (default: orders)", default="orders"),
    switch("--events", "list every event but deliveries, commits and rollbacks"),
    switch("--routine", "list those events, too"),
    OUTPUT,
)
def simulate(args: Namespace) -> None:
    """Show what settings would do to messages.

    Play messages against the settings of a messaging system, on a virtual clock and with the rules that queues use.
    """
    from airflow_poison.cli import simulation
    from airflow_poison.rules import SYSTEMS
    from airflow_poison.rules.simulation import replay
    from airflow_poison.store import check_name

    system = values.system_of(args.system, args.set, args.message, args.at, args.action, args.access)
    missing = f"SYSTEM is missing: one of {', '.join(SYSTEMS)}. For example: simulate Msmq4 --set ReceiveErrorHandling=Move"
    if args.window is not None:
        args.set = [*(args.set or []), f"retry_window={args.window}"]
    with noted_warnings() as warned:
        policy = values.policy_of(args, system, missing)
    at = values.pairs("--at", args.at or [])
    done = replay.simulate(
        policy,
        values.pairs("--message", args.message) if args.message else None,
        at={name: values.duration(f"--at {name}:", text) for name, text in at.items()},
        actions=[values.action(text) for text in args.action or []],
        until=values.duration("--until", args.until) if args.until is not None else None,
        most_receives=values.whole("--most-receives", args.most_receives, 1, 1_000_000),
        access=values.pairs("--access", args.access or []),
        queue=check_name(args.queue),
        start=replay.START if args.start is None else values.started(args.start),
    )
    if args.output == "json":
        write_json(done.to_dict(routine=args.routine) | {"warnings": warned})
    else:
        simulation.print_simulation(done, events=args.events or args.routine, routine=args.routine)


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
    text = f"{queue.name} hides {', '.join(paths)}." if paths else f"{queue.name} hides nothing."
    report(args.output, {"queue": queue.name, "mask": paths}, text)


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
    from airflow_poison.desk.rule_runs import redrive
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
    from airflow_poison.values import json_text

    try:
        found: object = json_text.natural_values(sys.stdin.read() if name == "-" else Path(name).read_bytes())
    except json_text.JsonError as error:
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
    rows = terminal.table("rule", "does", "messages", "now", "waiting", "plan", right=("messages", "now", "waiting"))
    for each in result.rules:
        plan = f"{each.plan} {each.state}" if each.plan else ""
        rows.add_row(each.rule, each.verb.value, f"{each.messages:,}", f"{each.now:,}", f"{each.waiting:,}", plan)
    if result.rules:
        out.print(rows)
    done = "Nothing was changed." if result.dry_run else f"{terminal.messages(sum(each.done for each in result.rules))} done."
    terminal.line(out, f"{result.queue}: {terminal.messages(result.messages)} in poison, {result.unmatched:,} meet no rule. {done}")
