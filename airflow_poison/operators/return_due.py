"""QueueReturnOperator: end the retry cycle of what is due."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

from airflow_poison.core.policies import checked_policy
from airflow_poison.hooks.poison import QueueHook
from airflow_poison.links.queue import MessagesLink, QueueLink, RetryLink

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow.sdk import Context

    from airflow_poison.core.policies.policy import Policy


class QueueReturnOperator(BaseOperator):
    """Move every message whose RetryCycleDelay is over from ``retry`` to ``main``. Starts no JVM.

    Returns ``{"queue", "returned", "postponed", "waiting", "next_due_at"}``.

    :param queue_name: the queue's name (``queue`` is the executor's). (templated)
    :param policy: makes the queue when it is missing and records this policy in it; without it the queue must exist and its recorded policy rules.
    :param conn_id: connection of type ``poison``. (templated)
    """

    template_fields: Sequence[str] = ("queue_name", "conn_id")
    ui_color = "#fdf3d8"
    operator_extra_links = (QueueLink(), MessagesLink(), RetryLink())

    def __init__(self, *, queue_name: str, policy: Policy | None = None, conn_id: str = QueueHook.default_conn_name, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.queue_name = queue_name
        self.policy = checked_policy(policy)
        self.conn_id = conn_id

    def execute(self, context: Context) -> dict[str, object]:
        """Return what is due. Raises QueueNotFoundError, StoreUnreachableError."""
        del context
        from airflow_poison import stats
        from airflow_poison.core.clock import SystemClock
        from airflow_poison.core.passes.due import return_due
        from airflow_poison.core.policies import policy_from_dict

        queue = QueueHook(self.conn_id).queue(self.queue_name, self.policy)
        policy = self.policy or policy_from_dict(queue.snapshot().control.policy)
        result = return_due(queue, SystemClock(), return_order=policy.return_order)
        stats.returned(result.returned + result.postponed, queue, self.conn_id)
        self.log.info(
            "Returned %s messages of %r to main (%s more were postponed by a handler); %s wait in retry, the next is due at %s.",
            f"{result.returned:,}",
            self.queue_name,
            f"{result.postponed:,}",
            f"{result.waiting:,}",
            result.next_due_at,
        )
        return result.to_dict()
