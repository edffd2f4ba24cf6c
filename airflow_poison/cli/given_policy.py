"""The policy that options give: ``--system``, ``--set`` and ``--policy-json``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_poison.cli import arguments
from airflow_poison.cli.telling import noted_warnings
from airflow_poison.core.errors import InputError
from airflow_poison.core.policies.described import system_named, typed_policy

if TYPE_CHECKING:
    from argparse import Namespace

    from airflow_poison.core.policies.policy import Policy


def given_policy(args: Namespace) -> Policy | None:
    """Return it; None when none of the options is there: then the recorded one rules. Says its warnings. Raises InputError, SettingError."""
    if args.system is None and not args.set and args.policy_json is None:
        return None
    with noted_warnings():
        return policy_of(args, args.system, "--system is missing: a whole policy is recorded, and 'alter' changes some settings of the recorded one.")


def policy_of(args: Namespace, system: str | None, missing: str) -> Policy:
    """Return the policy of a system, --policy-json and --set; the file may name the system, too. Raises InputError and SettingError.

    :param missing: what is said when neither does.
    """
    stored = arguments.policy_json(args.policy_json) if args.policy_json else {}
    named = stored.pop("system", None)
    system = system or named  # type: ignore[assignment]  # looked at below
    if not isinstance(system, str):
        raise InputError(missing)
    if named is not None and system_named(str(named)) != system_named(system):
        raise InputError(f"--policy-json {args.policy_json}: these are settings of {named}, not of {system}.")
    return typed_policy(system, stored, arguments.pairs("--set", args.set or []))
