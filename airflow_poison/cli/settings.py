"""``airflow poison policies``: the messaging systems and their settings."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from airflow_poison.cli import simulation, values
from airflow_poison.cli.telling import check_output, command, noted_warnings
from airflow_poison.cli.values import policy_of
from airflow_poison.core.delivery import simulate as core
from airflow_poison.core.policies import SYSTEMS
from airflow_poison.core.policies.described import describe, system_named
from airflow_poison.core.store.names import check_name

if TYPE_CHECKING:
    from argparse import Namespace

    from airflow_poison.core.delivery.simulated import Simulation
    from airflow_poison.core.policies.described import Setting, System
    from airflow_poison.core.policies.seam import Policy


@command
def policies(args: Namespace) -> None:
    """Print the systems, or the settings of one."""
    output = check_output(args.output)
    if args.system is None:
        systems = [describe(name) for name in SYSTEMS]
        written: dict[str, object] = {"systems": [_system(system) for system in systems]}
    else:
        systems = [describe(system_named(args.system))]
        written = _system(systems[0]) | {"settings": [_setting(setting) for setting in systems[0].settings]}
    if output == "json":
        sys.stdout.write(json.dumps(written, indent=2) + "\n")
    elif args.system is None:
        simulation.print_systems(systems)
    else:
        simulation.print_settings(systems[0])


def _system(system: System) -> dict[str, object]:
    return {"system": system.name, "title": system.title, "summary": system.summary}


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


# ``airflow poison simulate``: what settings would do to messages.


@command
def simulate(args: Namespace) -> None:
    """Print what happens and the answer."""
    output = check_output(args.output)
    with noted_warnings() as warned:
        policy = _policy(args)
    simulation = _simulation(policy, args)
    if output == "json":
        sys.stdout.write(json.dumps(simulation.to_dict(routine=args.routine) | {"warnings": warned}, indent=2) + "\n")
    else:
        simulation.print_simulation(simulation, events=args.events or args.routine, routine=args.routine)


def _policy(args: Namespace) -> Policy:
    """Return the policy of SYSTEM, --policy-json and --set; the file may name the system, too. Raises InputError and SettingError."""
    system = values.system_of(args.system, args.set, args.message, args.at, args.action, args.access)
    return policy_of(args, system, f"SYSTEM is missing: one of {', '.join(SYSTEMS)}. For example: simulate Msmq4 --set ReceiveErrorHandling=Move")


def _simulation(policy: Policy, args: Namespace) -> Simulation:
    at = values.pairs("--at", args.at or [])
    return core.simulate(
        policy,
        values.pairs("--message", args.message) if args.message else None,
        at={name: values.duration(f"--at {name}:", text) for name, text in at.items()},
        actions=[values.action(text) for text in args.action or []],
        until=values.duration("--until", args.until) if args.until is not None else None,
        most_receives=values.receives(args.most_receives),
        access=values.pairs("--access", args.access or []),
        queue=check_name(args.queue),
    )
