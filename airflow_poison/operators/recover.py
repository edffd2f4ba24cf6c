"""QueueRecoverOperator: do with a halted queue what people have decided."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from airflow_poison.hooks.actor import actor_here
from airflow_poison.hooks.poison import QueueHook
from airflow_poison.links.queue import EventsLink, PoisonLink, QueueLink
from airflow_poison.notifications import listed, tell_ended
from airflow_poison.operators.base import QueueOperator
from airflow_poison.operators.dialogs import REMOVAL_ERROR, ended_with_error
from airflow_poison.operators.identity import task_key
from airflow_poison.rules.recovery import REMOVAL
from airflow_poison.values.actor import acting
from airflow_poison.values.clock import SystemClock
from airflow_poison.values.errors import DecisionOutdatedError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow.sdk import Context
    from airflow.sdk.definitions.xcom_arg import XComArg

    from airflow_poison.notifications import Targets
    from airflow_poison.passes.decide import DecideResult
    from airflow_poison.passes.halts import HaltedEndpoint
    from airflow_poison.store.queue_table import QueueTable

UNDECIDED = "UNDECIDED"
"""The ``event`` of the alert that no decision arrived in time."""


class QueueRecoverOperator(QueueOperator):
    """Carry out what a QueueAskOperator was answered: first what concerns the message, then the endpoint is enabled (spec SB-34). Starts no JVM.

    A task that was killed goes on where it stopped, and does nothing twice. It fails, without retries, when the queue is not halted any more as
    people were shown it. It is skipped, with what follows, when the queue is to be left as it is.

    Returns ``{"queue", "sub_queue", "decision", "lookup_id", "messages", "to", "repeated", "ended"}``: how many messages went where, and the
    conversation that was ended, as in the context of ``on_conversation_ended``.

    :param decision: what QueueAskOperator returned. (templated)
    :param to_queue: the queue in which a removed message is kept, with its conversation; it must exist. None: the poison sub-queue; for a message
        that halted the reader of the poison sub-queue, ``<queue>.dead-letter``. (templated)
    :param error: the error code that the partner gets when the conversation is ended. (templated)
    :param description: what the partner reads then. (templated)
    :param on_conversation_ended: notifiers, or functions of the context, called when a conversation was ended, at least once, before the queue is
        enabled: remove the application's state for it there (spec SB-31). The context has ``conversation_ended``, see
        QueueEndConversationOperator.
    :param on_undecided: notifiers, or functions of the context, called when no answer arrived in time, before the default decision is carried out.
    """

    template_fields: Sequence[str] = ("queue_name", "decision", "to_queue", "error", "description", "conn_id")
    ui_color = "#e3f7e9"
    operator_extra_links = (QueueLink(), PoisonLink(), EventsLink())

    def __init__(
        self,
        *,
        decision: Mapping[str, Any] | XComArg,
        to_queue: str | None = None,
        error: int | str = REMOVAL_ERROR,
        description: str = REMOVAL.description,
        on_conversation_ended: Targets = None,
        on_undecided: Targets = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.decision: Any = decision  # rendered: what was returned
        self.to_queue = to_queue
        self.error = error
        self.description = description
        self.on_conversation_ended = listed("on_conversation_ended", on_conversation_ended)
        self.on_undecided = listed("on_undecided", on_undecided)

    def execute(self, context: Context) -> dict[str, object]:
        """Do it. Raises MessageNotFoundError, MessageClaimedError, QueueNotFoundError; AirflowFailException for a decision that fits no more."""
        from airflow_poison.passes.decide import Decision, decide
        from airflow_poison.passes.halts import WHEN_ENABLED, HaltedEndpoint
        from airflow_poison.values.texts import counted

        hook = QueueHook(self.conn_id)
        table = hook.queue(self.queue_name)
        decided, halt = str(self.decision["decision"]), HaltedEndpoint.from_dict(self.decision["halt"])
        if self.decision["timed_out"]:
            self._tell(context, hook, table, halt)
        if decided == Decision.LEAVE:
            raise AirflowSkipException(f"Queue {halt.name!r} is left {halt.state.value}{_because(self.decision)}.")

        def act(run: str) -> DecideResult:
            return decide(
                table,
                hook.store(),
                SystemClock(),
                decided,
                halt,
                run=run,
                to_queue=self.to_queue,
                end=ended_with_error(self.error, self.description),
                told=lambda ended: tell_ended(self.on_conversation_ended, ended, context, self.log),
            )

        user = self.decision["by"]
        try:
            with acting(actor_here() if user is None else f"airflow:{user['name']}", str(self.decision["answer"])):
                result = act(task_key(context, hook, table.uri))
        except DecisionOutdatedError as error:
            raise AirflowFailException(str(error)) from error
        went = f"{counted(result.messages, 'message')} went to {result.to!r}" if result.to else f"{counted(result.messages, 'message')} gone"
        self.log.info("Queue %r is enabled%s. %s. %s", halt.name, _because(self.decision), went, WHEN_ENABLED)
        return result.to_dict()

    def _tell(self, context: Context, hook: QueueHook, table: QueueTable, halt: HaltedEndpoint) -> None:
        from airflow_poison.operators.question import tell_about

        reason = f"No decision in time about queue {halt.name!r}, which is {halt.state.value}; so: {self.decision['answer']}."
        self.log.warning("%s", reason)
        todo = "Start a new run of the DAG to be asked again, or use QueueHook: inspect, remove, enable."
        key = task_key(context, hook, table.uri, UNDECIDED, *halt.identity)
        tell_about(halt, UNDECIDED, reason, todo, key=key, targets=self.on_undecided, context=context, log=self.log)


def _because(decision: Mapping[str, Any]) -> str:
    user = decision["by"]
    return ", because no answer arrived in time" if user is None else f", as {user['name']} has decided"
