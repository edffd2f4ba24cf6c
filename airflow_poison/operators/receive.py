"""QueueReceiveOperator: one receive pass over a queue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowFailException

from airflow_poison.core.errors import SettingError
from airflow_poison.hooks.poison import QueueHook
from airflow_poison.hooks.spark_jobs import cancel_jobs
from airflow_poison.notifications.targets import AlertTargets
from airflow_poison.operators.account import account, halted
from airflow_poison.operators.identity import subscriber, task_key

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from airflow.sdk import Context

    from airflow_poison.core.delivery.handlers import Handler, HandlerLike
    from airflow_poison.core.error_handler import ErrorHandler
    from airflow_poison.core.passes.receive import ReceivePass
    from airflow_poison.core.policies.seam import Policy
    from airflow_poison.core.store.seam import QueueTable
    from airflow_poison.notifications.targets import Targets


class QueueReceiveOperator(BaseOperator):
    """Deliver every message that is in the queue now to a handler, once, as one Spark job.

    Running the task again finishes what a killed run left, or receives what is there then. Nothing to receive: no JVM starts.
    The task fails, without Airflow's retries, when the queue is halted or was halted by this pass; what it did until then is committed.
    Returns the pass's numbers as a dict, see ``ReceiveResult``.

    :param queue_name: the queue's name (``queue`` is the executor's). (templated)
    :param handler: an importable name (``"shop.arrivals:land"``) or a function; called with a Message, raises to roll back. (templated, the name)
    :param policy: the queue's rules, recorded in it; makes the queue when it is missing. None: the recorded policy rules.
    :param max_messages: how many messages the pass takes at most. (templated)
    :param isolation: ``process``: handlers run in supervised child processes; ``none``: inline, for trusted handlers and debugging.
    :param unprocessable: exception types, or their names (``"json:JSONDecodeError"``), that go to the final disposition at once.
    :param on_queue_disabled: notifiers, or functions of the context, told when the queue was disabled, stopped or faulted.
    :param on_poison: told when messages were moved to poison, dropped or rejected.
    :param error_handler: a class that implements ErrorHandler; told of each poison message, once a cycle (spec WCF-18, WCF-26).
    :param conn_id: connection of type ``poison``. (templated)
    """

    template_fields: Sequence[str] = ("queue_name", "handler", "max_messages", "conn_id")
    ui_color = "#e3ecf7"

    def __init__(
        self,
        *,
        queue_name: str,
        handler: HandlerLike,
        policy: Policy | None = None,
        max_messages: int | str = 10_000_000,
        isolation: str = "process",
        unprocessable: Sequence[str | type[BaseException]] = (),
        on_queue_disabled: Targets = None,
        on_poison: Targets = None,
        error_handler: type[ErrorHandler] | None = None,
        conn_id: str = QueueHook.default_conn_name,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.queue_name = queue_name
        self.handler = handler if isinstance(handler, str) else _name(handler)
        self.function = None if isinstance(handler, str) else handler  # no templated field: Airflow calls functions that it finds there
        self.policy = policy
        self.max_messages = max_messages
        self.isolation = isolation
        self.unprocessable = tuple(kind if isinstance(kind, str) else _importable(kind) for kind in unprocessable)
        self.alerts = AlertTargets.of(on_queue_disabled, on_poison)
        self.error_handler = error_handler
        self.conn_id = conn_id

    def execute(self, context: Context) -> dict[str, object]:
        """Receive. Raises AirflowFailException for a halted queue, AlertError after a pass whose alerts failed, and the errors of ReceivePass."""
        hook = QueueHook(self.conn_id)
        queue = hook.queue(self.queue_name, self.policy)
        afterwards = self._afterwards(queue, context)
        try:
            return self._receive(hook, queue, context)
        finally:
            afterwards()

    def on_kill(self) -> None:
        """Stop the Spark job. The claim stays; the next run resumes from what was journalled."""
        cancel_jobs(self.log)

    def _receive(self, hook: QueueHook, queue: QueueTable, context: Context) -> dict[str, object]:
        from airflow_poison.core.errors import QueueHaltedError

        try:
            result = self._pass(hook, queue).run(task_key(context, queue.uri))
        except QueueHaltedError as error:
            raise AirflowFailException(str(error)) from error
        for line in account(result):
            self.log.info("%s", line)
        numbers = result.to_dict()
        if self.do_xcom_push:  # at once: the numbers are wanted also when what follows fails the task
            context["ti"].xcom_push(key="return_value", value=numbers)
        if result.halted is not None:
            raise AirflowFailException(halted(result))
        return numbers

    def _pass(self, hook: QueueHook, queue: QueueTable) -> ReceivePass:
        from airflow_poison.core.clock import SystemClock
        from airflow_poison.core.passes.receive import ReceivePass
        from airflow_poison.core.policies import policy_from_dict

        return ReceivePass(
            table=queue,
            policy=self.policy or policy_from_dict(queue.snapshot().control.policy),
            handler=cast("Handler", self.function or self.handler),
            engine=lambda: hook.engine(self.log.info),
            clock=SystemClock(),
            max_messages=int(self.max_messages),
            isolation=self.isolation,
            unprocessable=self.unprocessable,
            progress=self.log.info,
            store=hook.store(),
        )

    def _afterwards(self, queue: QueueTable, context: Context) -> Callable[[], None]:
        """Note where the queue stands now, and return what tells people and the error handler of all that happens from here on."""
        from airflow_poison.core.clock import SystemClock
        from airflow_poison.core.error_handler import install_error_handler
        from airflow_poison.core.passes.alerts import alert_subscription
        from airflow_poison.core.passes.poison_errors import error_subscription, hand_over

        name, clock = subscriber(context), SystemClock()
        error_handler = install_error_handler(self.error_handler) if self.error_handler is not None else None
        if error_handler is not None:
            error_subscription(queue, name, clock).begin()
        if self.alerts:
            alert_subscription(queue, name, clock).begin()

        def tell() -> None:
            if error_handler is not None:
                hand_over(queue, name, error_handler, clock)
            if self.alerts:
                self.alerts.send(queue, name, context, clock, self.log)

        return tell


def _name(thing: object) -> str:
    return f"{getattr(thing, '__module__', '')}:{getattr(thing, '__qualname__', type(thing).__qualname__)}"


def _importable(kind: type[BaseException]) -> str:
    """Return the name of an exception type that server sessions can import. Raises SettingError for one of a DAG file."""
    if kind.__module__.startswith(("unusual_prefix_", "__main__")):
        raise SettingError("unprocessable", kind.__qualname__, "exception types of importable modules; in a DAG file raise Unprocessable instead")
    return _name(kind)
