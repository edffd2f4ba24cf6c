"""``airflow poison policies``: the messaging systems and their settings."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from airflow_poison.cli import tables
from airflow_poison.cli.telling import check_output, command
from airflow_poison.core.policies import SYSTEMS
from airflow_poison.core.policies.described import describe, system_named

if TYPE_CHECKING:
    from argparse import Namespace

    from airflow_poison.core.policies.described import Setting, System


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
        tables.print_systems(systems)
    else:
        tables.print_settings(systems[0])


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
