"""Which store and queue a command works on: from ``--store``, or from a connection of Airflow."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from airflow_poison.cli.command import CANNOT, end_with_no, others_on_stderr, say, wrong_usage

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Iterable, Sequence

    from airflow_poison.hooks.poison import QueueHook
    from airflow_poison.rules.policy import Policy
    from airflow_poison.sources.source import Connection
    from airflow_poison.store import QueueStore
    from airflow_poison.store.queue_table import QueueTable
    from airflow_poison.values.clock import SystemClock


def opened_store(args: Namespace) -> QueueStore:
    """Return the store of --store, or of the connection. Raises InputError, SettingError and StoreUnreachableError."""
    from airflow_poison.store import MEMORY, open_store

    if args.store and args.conn_id:
        raise wrong_usage("--store and --conn-id: expected one of them.")
    if args.store is None:
        return hook_of(args).store()
    if not args.store or args.store.startswith(MEMORY):
        raise wrong_usage(f"--store {args.store!r}: expected a folder; a store in memory ends with its process.")
    return open_store(args.store)


def opened_queue(args: Namespace, policy: Policy | None = None) -> QueueTable:
    """Return the queue QUEUE; a policy makes it when it is missing, and is recorded in it. Raises QueueNotFoundError."""
    from airflow_poison.passes.alter import opened
    from airflow_poison.values.errors import QueueNotFoundError

    try:
        with others_on_stderr():
            return opened(opened_store(args), args.queue, policy, system_clock(), "the command line")
    except QueueNotFoundError as error:
        if policy is None and hasattr(args, "policy_json"):
            raise QueueNotFoundError(f"{error} Here, --system SYSTEM makes it.") from error
        raise


def shell_user() -> str:
    """Return who types a command, as events say it."""
    from airflow_poison.values.actor import shell_user as user

    return user()


def queue_to_read(args: Namespace) -> QueueTable:
    """Return the queue QUEUE for a command that only reads: nothing in the table's folder is changed. Raises QueueNotFoundError."""
    return opened_store(args).open(args.queue, read_only=True)


def hook_of(args: Namespace) -> QueueHook:
    """Return the hook of --conn-id, with a connection that is there. Raises InputError and SettingError."""
    try:
        from airflow.sdk.exceptions import AirflowNotFoundException
        from sqlalchemy.exc import SQLAlchemyError

        from airflow_poison.hooks.poison import QueueHook
    except ImportError as error:
        raise wrong_usage("--store is missing: without Airflow there are no connections.") from error
    hook = QueueHook(args.conn_id or QueueHook.default_conn_name)
    try:
        with others_on_stderr():
            _ = hook.settings
    except AirflowNotFoundException as error:
        raise wrong_usage(
            f"--conn-id {hook.conn_id}: no such connection is defined. Define one of type poison ('airflow connections add'), or give --store."
        ) from error
    except SQLAlchemyError as error:
        cause = str(getattr(error, "orig", None) or error)
        raise wrong_usage(
            f"--conn-id {hook.conn_id}: Airflow's database cannot be asked for it ({cause}). Run 'airflow db migrate', or give --store."
        ) from error
    return hook


def connection_of(conn_id: str) -> Connection:
    """Return a connection of Airflow's that a source or a topic names. Raises InputError, SourceError."""
    try:
        from sqlalchemy.exc import SQLAlchemyError

        from airflow_poison.hooks.sources import found_connection

        with others_on_stderr():
            return found_connection(conn_id)
    except ImportError as error:
        raise wrong_usage(f"connection {conn_id}: without Airflow there are no connections. Give the settings themselves.") from error
    except SQLAlchemyError as error:
        cause = str(getattr(error, "orig", None) or error)
        raise wrong_usage(f"connection {conn_id}: Airflow's database cannot be asked for it ({cause}). Run 'airflow db migrate'.") from error


T = TypeVar("T")


def looked_for(store: QueueStore, names: Sequence[str], look: Callable[[QueueTable], Iterable[T]]) -> tuple[list[T], dict[str, str]]:
    """Return what a look finds in queues, and by name what is wrong with those that could not be looked at.

    :param names: of the queues; none: all of the store.
    """
    from airflow_poison.values.errors import PoisonError

    found, failed = list[T](), dict[str, str]()
    for name in names or store.names():
        try:
            found += look(store.open(name, read_only=True))
        except PoisonError as error:
            failed[name] = str(error)
        except Exception as error:  # noqa: BLE001  (whatever a damaged table makes of a library, the other queues are looked at)
            failed[name] = f"Queue {name!r} cannot be read ({type(error).__name__}: {error}). 'check {name}' says what is wrong with it."
    return found, failed


def end_with(output: str, failed: dict[str, str], *, found: bool, nothing: str) -> None:
    """Say what went wrong. Ends with exit code 2 when something did, and with 1 when nothing was found."""
    for text in failed.values():
        say("error", text)
    if failed:
        raise SystemExit(CANNOT)
    if not found:
        end_with_no(output, nothing)


def system_clock() -> SystemClock:
    """Return the clock by which commands act."""
    from airflow_poison.values.clock import SystemClock

    return SystemClock()
