"""Which store a command works on: that of ``--store``, or that of a connection of Airflow's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_poison.cli.telling import others_on_stderr
from airflow_poison.core.errors import InputError, QueueNotFoundError

if TYPE_CHECKING:
    from argparse import Namespace

    from airflow_poison.core.policies.policy import Policy
    from airflow_poison.core.store import QueueStore
    from airflow_poison.core.store.queue_table import QueueTable
    from airflow_poison.hooks.poison import QueueHook

MEMORY = "memory://"


def opened_store(args: Namespace) -> QueueStore:
    """Return the store of --store, or of the connection. Raises InputError, SettingError and StoreUnreachableError."""
    from airflow_poison.core.store import open_store

    if args.store and args.conn_id:
        raise InputError("--store and --conn-id: expected one of them.")
    if args.store is None:
        return hook_of(args).store()
    if not args.store or args.store.startswith(MEMORY):
        raise InputError(f"--store {args.store!r}: expected a folder; a store in memory ends with its process.")
    return open_store(args.store)


def opened_queue(args: Namespace, policy: Policy | None = None) -> QueueTable:
    """Return the queue QUEUE; a policy makes it when it is missing, and is recorded in it. Raises QueueNotFoundError."""
    from airflow_poison.core.clock import SystemClock
    from airflow_poison.core.passes.alter import opened

    try:
        with others_on_stderr():
            return opened(opened_store(args), args.queue, policy, SystemClock(), "the command line")
    except QueueNotFoundError as error:
        if policy is None and hasattr(args, "policy_json"):
            raise QueueNotFoundError(f"{error} Here, --system SYSTEM makes it.") from error
        raise


def queue_to_read(args: Namespace) -> QueueTable:
    """Return the queue QUEUE for a command that only reads: nothing in the table's folder is changed. Raises QueueNotFoundError."""
    return opened_store(args).open(args.queue, upgrade=False)


def hook_of(args: Namespace) -> QueueHook:
    """Return the hook of --conn-id, with a connection that is there. Raises InputError and SettingError."""
    try:
        from airflow.sdk.exceptions import AirflowNotFoundException
        from sqlalchemy.exc import SQLAlchemyError

        from airflow_poison.hooks.poison import QueueHook
    except ImportError as error:
        raise InputError("--store is missing: without Airflow there are no connections.") from error
    hook = QueueHook(args.conn_id or QueueHook.default_conn_name)
    try:
        with others_on_stderr():
            _ = hook.settings
    except AirflowNotFoundException as error:
        raise InputError(
            f"--conn-id {hook.conn_id}: no such connection is defined. Define one of type poison ('airflow connections add'), or give --store."
        ) from error
    except SQLAlchemyError as error:
        cause = str(getattr(error, "orig", None) or error)
        raise InputError(
            f"--conn-id {hook.conn_id}: Airflow's database cannot be asked for it ({cause}). Run 'airflow db migrate', or give --store."
        ) from error
    return hook
