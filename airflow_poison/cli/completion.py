"""What the shell completes. Airflow's completion is argcomplete's, which asks an argument's ``completer``; so does ours without Airflow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from argparse import Action, Namespace
    from collections.abc import Iterable

    from airflow_poison.cli.command import Argument


def completes(action: Action, argument: Argument) -> None:
    """Set what an argument's action completes."""

    def complete(*, parsed_args: Namespace, **_more: Any) -> Iterable[str]:
        if not isinstance(argument.completes, str):
            return argument.completes
        try:
            found: Iterable[str] = globals()[argument.completes](parsed_args)
        except Exception:  # noqa: BLE001  (an error cannot be shown in the middle of a line)
            return []
        return found

    if argument.completes:
        action.completer = complete  # type: ignore[attr-defined]  # what argcomplete looks for


def queues(args: Namespace) -> Iterable[str]:
    """Return the names of the store's queues; none when there is no store to be seen."""
    from airflow_poison.cli.stores import opened_store

    return opened_store(args).names()


def plans(args: Namespace) -> Iterable[str]:
    """Return the ids of the queue's plans, the newest first."""
    from airflow_poison.cli.stores import queue_to_read
    from airflow_poison.desk.plans import plans as look

    return [view.plan for view in look(queue_to_read(args))]


def errors(args: Namespace) -> Iterable[str]:
    """Return the ids of the error groups of the queue's poison, the largest first."""
    from airflow_poison.cli.stores import queue_to_read, system_clock
    from airflow_poison.desk.found import groups
    from airflow_poison.desk.selection import Selection

    return [group.error for group in groups(queue_to_read(args), Selection(), system_clock(), limit=50).groups if group.error]


def handles(args: Namespace) -> Iterable[str]:
    """Return the handles of the queue's conversations."""
    from airflow_poison.cli.stores import queue_to_read
    from airflow_poison.passes.conversations import conversations

    return [row.handle for row in conversations(queue_to_read(args))]


def services(args: Namespace) -> Iterable[str]:
    """Return the names of the store's services."""
    from airflow_poison.cli.stores import opened_store

    store = opened_store(args)
    return [service for name in store.names() for service in store.open(name, read_only=True).snapshot().control.services]


def systems(_args: Namespace) -> Iterable[str]:
    """Return the messaging systems."""
    from airflow_poison.rules import SYSTEMS

    return SYSTEMS


def events(_args: Namespace) -> Iterable[str]:
    """Return the types of events."""
    from airflow_poison.values.events import EventType

    return [kind.value for kind in EventType]


def settings(args: Namespace) -> Iterable[str]:
    """Return the settings of the system that stands in the line, else of the queue that does, as ``name=``."""
    from airflow_poison.cli.stores import queue_to_read
    from airflow_poison.rules import policy_class
    from airflow_poison.rules.described import settings_of, system_named

    system = getattr(args, "system", None)
    if not isinstance(system, str):
        system = str(queue_to_read(args).snapshot().control.policy["system"])
    return [f"{setting.name}=" for setting in settings_of(policy_class(system_named(system)))]
