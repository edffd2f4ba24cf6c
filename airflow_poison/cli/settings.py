"""``airflow poison policies`` and ``simulate``: the messaging systems, their settings, and what settings would do to messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_poison.cli import values
from airflow_poison.cli.command import OUTPUT, POLICY_JSON, SET, Argument, command, noted_warnings, option, several, switch
from airflow_poison.cli.terminal import write_json

if TYPE_CHECKING:
    from argparse import Namespace

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
