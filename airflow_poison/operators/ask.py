"""QueueAskOperator: ask people what shall become of a halted queue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from airflow.providers.standard.operators.hitl import HITLOperator
from airflow.sdk import exceptions
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException, TaskDeferred

from airflow_poison.hooks.poison import QueueHook
from airflow_poison.links import EventsLink, QueueLink
from airflow_poison.notifications import Targets, listed
from airflow_poison.operators.base import QueueOperator, task_key
from airflow_poison.operators.dialogs import REMOVAL_ERROR, ended_with_error
from airflow_poison.passes.halts import HaltedEndpoint, halted_endpoint
from airflow_poison.rules.queue_disabling import REMOVAL
from airflow_poison.rules.settings import choice

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.sdk.execution_time.hitl import HITLUser

    from airflow_poison.operators.question import Question
    from airflow_poison.queue import Queue

PARKS: tuple[type[BaseException], ...] = (getattr(exceptions, "TaskAwaitingInput", TaskDeferred), TaskDeferred)
"""What a task that waits for people raises; before Airflow 3.3 it is deferred."""
WANTED = "DECISION_WANTED"
"""The ``event`` of the alert that people are asked."""


OnTimeout = StrEnum("OnTimeout", ["LEAVE", "ENABLE", "RETURN", "REMOVE", "END", "FAIL"])
"""The decision when no answer arrives in time."""


class QueueAskOperator(QueueOperator, HITLOperator):
    """Show people why a queue is halted and by which message, and wait until one of them says what shall become of it. Changes nothing.

    The question is a required action in the Airflow UI, for users who may answer those. It shows the suspected message with its counts, its last
    error and the beginning of its body, and offers to remove it, to return it with fresh attempts, to enable the queue alone, or to leave it. For a
    message of a conversation of the queue's services it also shows the conversation's state, its partner and what waits, and offers to end it.
    A task of a queue that receives is skipped.

    Returns ``{"decision", "halt", "answer", "timed_out", "by", "at"}``: ``end``, ``remove``, ``return``, ``enable`` or ``leave``, and what it is
    about; QueueRecoverOperator carries it out.

    :param sub_queue: the endpoint: ``main`` (the queue's own), ``poison`` (the reader of its poison sub-queue), or ``any``, the first
        of the two that is halted. (templated)
    :param to_queue: the queue in which a removed message will be kept, as the question says it; None: the poison sub-queue. (templated)
    :param error: the error code that the partner gets when a conversation is ended, as shown in the question. (templated)
    :param description: what the partner reads then. (templated)
    :param response_timeout: how long people may take; None: as long as they like.
    :param on_timeout: what is decided then: ``leave``, ``enable``, ``return``, ``remove`` or ``end`` (these three are ``leave`` when they are not
        offered); ``fail``: the task fails.
    :param on_asked: notifiers, or functions of the context, called when the question is asked; ``poison_alert.what_to_do`` has the link.
    :param assigned_users: who may answer; None: all users with the right to.
    :param most_of_body: how many characters of the body are shown.
    """

    template_fields: Sequence[str] = ("queue_name", "sub_queue", "to_queue", "error", "description", "conn_id")
    ui_color = "#fdf3d8"
    operator_extra_links = (QueueLink(), EventsLink())

    def __init__(
        self,
        *,
        sub_queue: str = "any",
        to_queue: str | None = None,
        error: int | str = REMOVAL_ERROR,
        description: str = REMOVAL.description,
        response_timeout: timedelta | None = None,
        on_timeout: str = "leave",
        on_asked: Targets = None,
        assigned_users: HITLUser | list[HITLUser] | None = None,
        most_of_body: int = 2_000,
        **kwargs: Any,
    ) -> None:
        super().__init__(subject="", body="", options=["Leave it"], response_timeout=response_timeout, assigned_users=assigned_users, **kwargs)
        self.sub_queue = sub_queue
        self.to_queue = to_queue
        self.error = error
        self.description = description
        self.on_timeout = choice("on_timeout", on_timeout, OnTimeout)
        self.on_asked = listed("on_asked", on_asked)
        self.most_of_body = most_of_body

    def execute(self, context: Context) -> Any:
        """Ask. Raises QueueNotFoundError, SettingError, AirflowSkipException for a queue that receives."""
        hook = QueueHook(self.conn_id)
        queue = hook.queue(self.queue_name)
        halt = halted_endpoint(queue.reading, self.sub_queue)
        if halt is None:
            raise AirflowSkipException(f"Queue {self.queue_name!r} receives: there is nothing to decide.")
        asked = self._question(queue, halt)
        answers = {decision.value: answer for decision, answer in asked.options.items()}
        self.subject, self.body, self.options = asked.subject, asked.body, list(answers.values())
        self.defaults = None if self.on_timeout is OnTimeout.FAIL else [answers.get(self.on_timeout.value, answers["leave"])]
        self.notifiers = [lambda given: self._notify(given, hook, queue.reading.uri, halt, asked)]  # type: ignore[list-item]  # it is only called
        self.log.info("%s", asked.subject)
        try:
            super().execute(context)
        except PARKS as parks:
            parks.kwargs = {**(parks.kwargs or {}), "halt": halt.to_dict(), "answers": answers}  # type: ignore[attr-defined]  # both have it
            raise

    def execute_complete(  # type: ignore[override]  # it is called with what was parked with it
        self, context: Context, event: dict[str, Any], halt: Mapping[str, Any], answers: Mapping[str, str]
    ) -> Any:
        """Return what was answered. Raises HITLTimeoutError, AirflowFailException for an answer to an older question."""
        from airflow_poison.operators.question import meaning

        chosen = event.get("chosen_options", ())
        decision = meaning(answers, chosen)
        if "error" not in event and decision is None:
            raise AirflowFailException(
                f"The answer {list(chosen)} is none to what this try asks, {list(answers.values())}: when a task is cleared, Airflow shows its first "
                "question again. Nothing was done. Start a new run of the DAG: it asks about the queue as it is now."
            )
        self.options = list(answers.values())
        answer = super().execute_complete(context, event)
        user = answer["responded_by_user"]
        by = None if user is None else {"id": user["id"], "name": user["name"]}
        timed_out = bool(event.get("timedout", by is None))
        self.log.info("%s: %s", "No answer in time" if timed_out else f"{user['name']} has answered", chosen[0])
        at = answer["responded_at"].isoformat()
        return {"decision": str(decision), "halt": dict(halt), "answer": chosen[0], "timed_out": timed_out, "by": by, "at": at}

    def _question(self, queue: Queue, halt: HaltedEndpoint) -> Question:
        from airflow_poison.operators.question import question
        from airflow_poison.passes.decide import suspect, suspect_conversation

        message, others = suspect(queue.reading, queue.clock, halt)
        return question(
            halt,
            message,
            others,
            conversation=suspect_conversation(queue.reading, message),
            system=str(queue.reading.snapshot().control.policy.get("system", "")),
            to_queue=self.to_queue,
            end=ended_with_error(self.error, self.description),
            most_of_body=self.most_of_body,
        )

    def _notify(self, context: Any, hook: QueueHook, uri: str, halt: HaltedEndpoint, asked: Question) -> None:
        from airflow_poison.operators.question import notify_about

        if self.on_asked:
            key, todo = task_key(context, hook, uri, WANTED, *halt.identity), f"Answer in the Airflow UI: {self._place(context)}"
            notify_about(halt, WANTED, asked.subject, todo, key=key, targets=self.on_asked, context=context, log=self.log)

    def _place(self, context: Any) -> str:
        try:
            return self.generate_link_to_ui(task_instance=context["ti"])
        except ValueError:  # a worker need not know the address of the UI
            task = context["ti"]
            return f"dags/{task.dag_id}/runs/{task.run_id}/tasks/{task.task_id}/required_actions?map_index={task.map_index}"
