"""Changes of queues by people at the pages: opens the queue, calls a verb, and says of errors what people may see."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING

from airflow_poison.ui.page_data import NotThereError, RefusedError, opened_store, told
from airflow_poison.values.actor import acting
from airflow_poison.values.clock import SystemClock
from airflow_poison.values.errors import (
    ClaimLostError,
    ConversationError,
    DecisionOutdatedError,
    InputError,
    MessageClaimedError,
    MessageNotFoundError,
    PlanNotFoundError,
    PlanStateError,
    PoisonError,
    QueryError,
    QueryTimeoutError,
    QueueHaltedError,
    QueueNameError,
    QueueNotFoundError,
    SettingError,
    SystemChangeError,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_poison.store import QueueStore
    from airflow_poison.store.queue_table import QueueTable

log = logging.getLogger(__name__)

BAD, NOT_THERE, CHANGED, UNREADABLE = 400, 404, 409, 503
STATUSES: dict[type[PoisonError], int] = {
    SettingError: BAD,
    InputError: BAD,
    QueryTimeoutError: UNREADABLE,
    QueryError: BAD,
    QueueNotFoundError: BAD,
    QueueNameError: BAD,
    MessageNotFoundError: NOT_THERE,
    PlanNotFoundError: NOT_THERE,
    PlanStateError: CHANGED,
    MessageClaimedError: CHANGED,
    DecisionOutdatedError: CHANGED,
    ClaimLostError: CHANGED,
    ConversationError: CHANGED,
    QueueHaltedError: CHANGED,
    SystemChangeError: CHANGED,
}
"""Errors whose text people may see, and their statuses; of a queue that is not there, the one that messages are sent to.

Other errors name paths, so the answer to a change has the same text as the answer to a read.
"""


@contextmanager
def changing(conn_id: str, name: str) -> Iterator[tuple[QueueTable, QueueStore]]:
    """Open a queue to change it. Raises NotThereError, RefusedError and NotReadableError, also for what the block raises."""
    store = opened_store(conn_id)
    what = f"Queue {name!r} of connection {conn_id!r}"
    with told(what), refusing(store):
        try:
            table = store.open(name)
        except (QueueNotFoundError, QueueNameError) as error:
            raise NotThereError(f"There is no queue {name!r} in the store of connection {conn_id!r}.") from error
        yield table, store


@contextmanager
def refusing(store: QueueStore) -> Iterator[None]:
    """Turn the errors of ``STATUSES`` into what people see: their text, without the place of the store. Raises RefusedError."""
    try:
        yield
    except PoisonError as error:
        status = next((STATUSES[kind] for kind in type(error).__mro__ if kind in STATUSES), None)
        if status is None:
            raise
        log.warning("A change was refused: %s", error)
        raise RefusedError(status, str(error).replace(store.uri, "the store")) from error


def enable(conn_id: str, name: str, who: str, reason: str) -> dict[str, object]:
    """Let a queue receive again; what was sent to it meanwhile arrives."""
    from airflow_poison.passes.alter import enable
    from airflow_poison.passes.recovery import Ending

    with changing(conn_id, name) as (table, store), acting(who, reason):
        result = enable(table, SystemClock())
        Ending(table, SystemClock(), store).carry()
        return result.to_dict()


def disable(conn_id: str, name: str, who: str, reason: str) -> dict[str, object]:
    """Set a queue to OFF."""
    from airflow_poison.passes.alter import disable

    with changing(conn_id, name) as (table, _), acting(who, reason):
        return disable(table, SystemClock(), reason).to_dict()
