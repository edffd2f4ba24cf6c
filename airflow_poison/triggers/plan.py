"""PlanTrigger: what a deferred redrive waits with, until something can be done for its plan."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_poison.hooks.poison import QueueHook
from airflow_poison.triggers.queue import poller_at
from airflow_poison.watching.poller import Waits

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection

    from airflow_poison.store.queue_table import QueueTable
    from airflow_poison.watching.poller import Readings


class PlanTrigger(BaseTrigger):
    """Wait until something can be done for a plan: a pass has ended, a canary is decided, the plan was resumed, or it has ended.

    The event's payload is ``{"plan": id}``, or ``{"error": name, "message": text}`` when the queue cannot be looked at.

    :param queue_name: the queue.
    :param plan: the plan's id.
    :param version: of the queue, at which nothing could be done; -1: not known.
    :param not_before: nothing is done before this instant, ISO 8601: the plan has a rate; None: at once.
    :param who: the task, as events name it; the plan is paused when the task is ended by a person.
    :param conn_id: connection of type ``poison``.
    :param poll_interval: seconds between two looks at the queue's version.
    """

    def __init__(
        self,
        queue_name: str,
        plan: str,
        *,
        version: int = -1,
        not_before: str | None = None,
        who: str = "",
        conn_id: str = QueueHook.default_conn_name,
        poll_interval: float = 5.0,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # Airflow's
        self.queue_name = queue_name
        self.plan = plan
        self.version = version
        self.not_before = not_before
        self.who = who
        self.conn_id = conn_id
        self.poll_interval = poll_interval

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the trigger's class and arguments."""
        names = ("queue_name", "plan", "version", "not_before", "who", "conn_id", "poll_interval")
        return f"{__name__}.{type(self).__name__}", {name: getattr(self, name) for name in names}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yield one event when something can be done, or when the queue cannot be looked at."""
        from airflow_poison.desk.applying import waits_at
        from airflow_poison.values.errors import PoisonError

        try:
            if self.not_before is not None:
                await asyncio.sleep(max(0.0, (datetime.fromisoformat(self.not_before) - datetime.now(UTC)).total_seconds()))
            poller, table = await poller_at(self.conn_id), await asyncio.to_thread(self._table)
            version: int | None = self.version
            while version is not None:
                await poller.wait(_OtherVersion(self.queue_name, version), self.poll_interval)
                version = await asyncio.to_thread(waits_at, table, self.plan)
        except PoisonError as error:
            yield TriggerEvent({"error": type(error).__name__, "message": str(error)})  # type: ignore[no-untyped-call]  # Airflow's
        else:
            yield TriggerEvent({"plan": self.plan})  # type: ignore[no-untyped-call]  # Airflow's

    async def on_kill(self) -> None:
        """Pause the plan, because its task was ended."""
        await asyncio.to_thread(pause_when_ended, QueueHook(self.conn_id), self.queue_name, self.plan, self.who)

    def _table(self) -> QueueTable:
        return QueueHook(self.conn_id).queue(self.queue_name).reading


def pause_when_ended(hook: QueueHook, queue_name: str, plan: str, who: str) -> None:
    """Pause a plan, as its task was ended; nothing happens when the plan has ended, too."""
    from airflow_poison.queue import Queue
    from airflow_poison.values.errors import PlanStateError

    try:
        Queue(hook.queues(), queue_name, who).pause(plan, "its task was ended")
    except PlanStateError as error:  # it has ended, or was stopped
        hook.log.info("%s", error)


@dataclass(frozen=True, slots=True)
class _OtherVersion:
    """Waits until a queue has another version than one."""

    queue_name: str
    version: int

    def names(self) -> Collection[str]:
        """Return the queue."""
        return (self.queue_name,)

    def __call__(self, look: Readings) -> Waits[bool]:
        """Judge a look. Raises the error of a queue that cannot be looked at."""
        sight = look.sights[self.queue_name]
        if isinstance(sight, Exception):
            raise sight
        return Waits(None if sight.snapshot.version == self.version else True)
