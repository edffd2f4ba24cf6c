"""Queues of a connection, opened to be read, and why one cannot be: in words that name no path and no setting."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING

from airflow_poison.core.errors import CheckpointDamagedError, PoisonError, QueueNameError, QueueNotFoundError, TableChangedError
from airflow_poison.hooks.poison import QueueHook

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_poison.core.store import QueueStore
    from airflow_poison.core.store.queue_table import QueueTable

log = logging.getLogger(__name__)
DAMAGED = (PoisonError, ValueError, KeyError, TypeError)
"""What reading raises where a file is gone or damaged, or somebody else has written a row that is none of ours."""


class NotThereError(Exception):
    """What was asked for is not there, or is not for everybody's eyes: the page does not tell which."""


class NotReadableError(Exception):
    """It is there and cannot be read; the log of the API server says why."""


@contextmanager
def opened(conn_id: str, name: str) -> Iterator[QueueTable]:
    """Open a queue; a table of an earlier version is not upgraded. Raises NotThereError, and NotReadableError also for what the block raises."""
    store = opened_store(conn_id)
    with told(f"Queue {name!r} of connection {conn_id!r}"):
        try:
            table = store.open(name, upgrade=False)
        except (QueueNotFoundError, QueueNameError) as error:
            why = ""
            if store.absence:
                why = ": its folder does not exist where the API server runs, whose log says which"
                log.warning("Queue %r of connection %r cannot be shown: %s", name, conn_id, error)
            raise NotThereError(f"There is no queue {name!r} in the store of connection {conn_id!r}{why}.") from error
        yield table


def opened_store(conn_id: str) -> QueueStore:
    """Return the store of a connection of type ``poison``. Raises NotThereError for every other id: nobody learns which ones there are."""
    hook = QueueHook(conn_id)
    if not _is_poison(hook):
        raise NotThereError(f"No connection of type 'poison' has the id {conn_id!r}.")
    with told(f"Connection {conn_id!r}"):
        return hook.store()


@contextmanager
def told(what: str) -> Iterator[None]:
    """Keep errors from the page: they name paths and settings. Raises NotReadableError."""
    try:
        yield
    except DAMAGED as error:
        log.warning("%s cannot be shown: %s", what, error, exc_info=not isinstance(error, PoisonError))
        raise NotReadableError(f"{what} cannot be read ({type(error).__name__}).{_damage(error)} The log of the API server says why.") from error


def _damage(error: Exception) -> str:
    if isinstance(error, CheckpointDamagedError):
        return " A checkpoint of its log is damaged: no message is concerned, and the next verb that writes sets it aside."
    if isinstance(error, TableChangedError):
        return " Its table is damaged, or somebody else has changed it: 'airflow poison check' says what is wrong and what to do."
    return ""


def _is_poison(hook: QueueHook) -> bool:
    from airflow.sdk.exceptions import AirflowException

    try:
        return bool(hook.get_connection(hook.conn_id).conn_type == hook.conn_type)
    except AirflowException:  # not defined, or not for this process
        return hook.conn_id == hook.default_conn_name
