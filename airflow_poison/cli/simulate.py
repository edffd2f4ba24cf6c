"""``airflow poison simulate``: what settings would do to messages."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from airflow_poison.cli import arguments, tables
from airflow_poison.cli.given_policy import policy_of
from airflow_poison.cli.telling import check_output, command, noted_warnings
from airflow_poison.core.policies import SYSTEMS
from airflow_poison.core.simulation import replay as core
from airflow_poison.core.store import check_name

if TYPE_CHECKING:
    from argparse import Namespace

    from airflow_poison.core.policies.policy import Policy
    from airflow_poison.core.simulation.simulated import Simulation


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
        tables.print_simulation(simulation, events=args.events or args.routine, routine=args.routine)


def _policy(args: Namespace) -> Policy:
    """Return the policy of SYSTEM, --policy-json and --set; the file may name the system, too. Raises InputError and SettingError."""
    system = arguments.system_of(args.system, args.set, args.message, args.at, args.action, args.access)
    return policy_of(args, system, f"SYSTEM is missing: one of {', '.join(SYSTEMS)}. For example: simulate Msmq4 --set ReceiveErrorHandling=Move")


def _simulation(policy: Policy, args: Namespace) -> Simulation:
    at = arguments.pairs("--at", args.at or [])
    return core.simulate(
        policy,
        arguments.pairs("--message", args.message) if args.message else None,
        at={name: arguments.duration(f"--at {name}:", text) for name, text in at.items()},
        actions=[arguments.action(text) for text in args.action or []],
        until=arguments.duration("--until", args.until) if args.until is not None else None,
        most_receives=arguments.receives(args.most_receives),
        access=arguments.pairs("--access", args.access or []),
        queue=check_name(args.queue),
    )
