"""QueueTrigger: what a deferred sensor waits with, and the poller of a connection's store that all triggers share."""

from __future__ import annotations

import asyncio
import contextvars
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_poison.hooks.poison import QueueHook

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from airflow_poison.store import QueueStore
    from airflow_poison.watching.poller import Poller


class QueueTrigger(BaseTrigger):
    """Wait until a condition holds of a queue, of any of several, or of each.

    All triggers of a triggerer share one look at a store in each interval, and the next one is made at the instant at which a condition may come
    true by time alone. The event's payload is ``{"met": [facts, ...]}``, or ``{"error": name, "message": text}`` when a queue cannot be looked at.

    :param queue_names: the queues.
    :param condition: what is waited for, as ``Condition.to_dict()`` gives it.
    :param every: wait until it holds of each queue; else any one is enough.
    :param conn_id: connection of type ``poison``.
    :param poll_interval: seconds between two looks; the shortest of all triggers on the store counts.
    """

    def __init__(
        self,
        queue_names: Sequence[str],
        condition: Mapping[str, object],
        *,
        every: bool = False,
        conn_id: str = QueueHook.default_conn_name,
        poll_interval: float = 5.0,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # Airflow's
        self.queue_names = tuple(queue_names)
        self.condition = dict(condition)
        self.every = every
        self.conn_id = conn_id
        self.poll_interval = poll_interval

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the trigger's class and arguments."""
        given = {name: getattr(self, name) for name in ("condition", "every", "conn_id", "poll_interval")}
        return f"{__name__}.{type(self).__name__}", {**given, "queue_names": list(self.queue_names)}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yield one event when the condition holds, or when a queue cannot be looked at."""
        from airflow_poison.values.errors import PoisonError
        from airflow_poison.watching.conditions import condition_from_dict
        from airflow_poison.watching.poller import Until

        try:
            poller = await poller_at(self.conn_id)
            until = Until(self.queue_names, condition_from_dict(self.condition), self.every)
            met = await poller.wait(until, self.poll_interval)
        except PoisonError as error:
            yield TriggerEvent({"error": type(error).__name__, "message": str(error)})  # type: ignore[no-untyped-call]  # Airflow's
        else:
            yield TriggerEvent({"met": met})  # type: ignore[no-untyped-call]  # Airflow's


REMEMBERED = 60.0
"""Seconds for which what a connection says is remembered: a burst of triggers asks for it once."""

Opened = tuple[float, "asyncio.Task[QueueStore]"]
_opened: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, Opened]] = WeakKeyDictionary()


async def poller_at(conn_id: str) -> Poller:
    """Return the process's poller of a connection's store.

    Raises AirflowNotFoundException for a connection that is not defined, SettingError, StoreUnreachableError.
    """
    from airflow_poison.watching.poller import poller_of

    loop = asyncio.get_running_loop()
    opened = _opened.setdefault(loop, {})
    since, task = opened.get(conn_id, (float("-inf"), None))
    if task is None or loop.time() - since > REMEMBERED or (task.done() and (task.cancelled() or task.exception() is not None)):
        opening = asyncio.to_thread(lambda: QueueHook(conn_id).store())
        task = loop.create_task(opening, context=contextvars.Context())
        opened[conn_id] = (loop.time(), task)
    return poller_of(await asyncio.shield(task))
