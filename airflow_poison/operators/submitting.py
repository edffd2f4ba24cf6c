"""One try of a task that submits its pass: the order that it writes, and what it learns of the pass in the end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_poison.core.clock import SystemClock
from airflow_poison.core.delivery.handlers import resolve_handler
from airflow_poison.core.passes.delivering import release
from airflow_poison.core.passes.receive import ReceivePass
from airflow_poison.core.passes.runs import finished
from airflow_poison.core.passes.submitted import PassOrder, Submission, fullest, needed, recorded, without_spark
from airflow_poison.core.policies import policy_from_dict
from airflow_poison.operators.given import whole

if TYPE_CHECKING:
    from airflow_poison.core.delivery.handlers import HandlerRef
    from airflow_poison.core.passes.runs import ReceiveResult
    from airflow_poison.core.store.queue_table import QueueTable
    from airflow_poison.hooks.poison import QueueHook
    from airflow_poison.operators.submit import QueueReceiveSubmitOperator


class Try:
    """A try.

    :param key: the run key, the same for each try of the task.
    Raises HandlerNotFoundError and SettingError, with nothing submitted.
    """

    def __init__(self, task: QueueReceiveSubmitOperator, hook: QueueHook, table: QueueTable, key: str) -> None:
        self.table, self._task, self._hook = table, task, hook
        self.policy = task.policy or policy_from_dict(table.snapshot().control.policy)
        self.submission = Submission.of_queue(table, key)
        self._handler: HandlerRef = resolve_handler(task.handler if task.function is None else task.function)
        self._order = self._ordered(key)

    def before_submission(self) -> ReceiveResult | None:
        """Return what an earlier try has left to be read, or what needs no Spark. Raises QueueHaltedError and the other errors of ReceivePass."""
        task = self._task
        receiving = ReceivePass(
            table=self.table,
            policy=self.policy,
            handler=self._handler,  # type: ignore[arg-type]  # resolved already
            engine=needed,
            clock=SystemClock(),
            max_messages=self._order.max_messages,
            isolation=task.isolation,
            unprocessable=task.unprocessable,
            progress=task.log.info,
            store=self._hook.store(),
        )
        return self.submission.left() or without_spark(receiving, self._order.key)

    def write(self) -> None:
        """Write the order, with all that goes with it."""
        self.submission.write(self._order, self._hook.shipped(self._task.py_files or ()))

    def told(self) -> ReceiveResult | None:
        """Return what the driver has told, or what the queue has recorded of its pass; None: neither. Raises what the driver raised."""
        return self.submission.outcome() or self._recorded()

    def all_told(self, result: ReceiveResult) -> ReceiveResult:
        """Return a result, or what the queue has recorded of this run key where that is more: drivers of several tries may have met."""
        return fullest([result, self._recorded()]) or result

    def give_up(self) -> None:
        """Give the run's claim up, when nobody works on it any more."""
        for claim in self.table.snapshot().claims:
            if claim.key.startswith(f"{self._order.key}-"):
                release(self.table, claim, SystemClock(), self._task.log.info)

    def _recorded(self) -> ReceiveResult | None:
        return recorded(self.table, self._order.key, self._order.since)

    def _ordered(self, key: str) -> PassOrder:
        task, settings, since = self._task, self._hook.settings, self.submission.since()
        order = PassOrder(
            store=self._hook.store().uri,
            durable=settings.durable,
            queue=self.table.name,
            key=key,
            policy=self.policy.to_dict(),
            handler=task.handler,
            max_messages=whole("max_messages", task.max_messages),
            isolation=task.isolation,
            unprocessable=task.unprocessable,
            parallelism=settings.parallelism,
            since=finished(self.table, key) if since is None else since,
        )
        return order.handled_by(self._handler)
