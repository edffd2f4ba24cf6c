"""From a connection to the poller of its store, without blocking the triggerer's loop."""

from __future__ import annotations

import asyncio
import contextvars
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from airflow_poison.hooks.poison import QueueHook

if TYPE_CHECKING:
    from airflow_poison.core.store import QueueStore
    from airflow_poison.core.watching.poller import Poller

REMEMBERED = 60.0
"""Seconds for which what a connection says is remembered: a burst of triggers asks for it once."""

Opened = tuple[float, "asyncio.Task[QueueStore]"]
_opened: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, Opened]] = WeakKeyDictionary()


async def poller_at(conn_id: str) -> Poller:
    """Return the process's poller of a connection's store.

    Raises AirflowNotFoundException for a connection that is not defined, SettingError, StoreUnreachableError.
    """
    from airflow_poison.core.watching.poller import poller_of

    return poller_of(await _store(conn_id))


async def _store(conn_id: str) -> QueueStore:
    loop = asyncio.get_running_loop()
    opened = _opened.setdefault(loop, {})
    since, task = opened.get(conn_id, (float("-inf"), None))
    if task is None or loop.time() - since > REMEMBERED or (task.done() and (task.cancelled() or task.exception() is not None)):
        task = loop.create_task(_open(conn_id), context=contextvars.Context())
        opened[conn_id] = (loop.time(), task)
    return await asyncio.shield(task)


async def _open(conn_id: str) -> QueueStore:
    return await asyncio.to_thread(lambda: QueueHook(conn_id).store())
