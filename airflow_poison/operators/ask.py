"""QueueAskOperator: ask people what shall become of a halted queue."""

from __future__ import annotations

import base64
import json
import re
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from airflow.providers.standard.operators.hitl import HITLOperator
from airflow.sdk import exceptions
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException, TaskDeferred

from airflow_poison.hooks.poison import QueueHook
from airflow_poison.links.queue import EventsLink, QueueLink
from airflow_poison.notifications import listed, tell_all
from airflow_poison.operators.base import QueueOperator, task_key
from airflow_poison.operators.dialogs import REMOVAL_ERROR, ended_with_error
from airflow_poison.passes.alerts import Alert, AlertKind
from airflow_poison.passes.decide import Decision, choices
from airflow_poison.passes.relay import dead_letter_queue
from airflow_poison.rules.queue_disabling import REMOVAL
from airflow_poison.rules.settings import choice
from airflow_poison.ui.page_data import neutral_text
from airflow_poison.values.clock import SystemClock
from airflow_poison.values.schema import SubQueue, place_name
from airflow_poison.values.texts import counted

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from datetime import datetime, timedelta

    from airflow.sdk import Context
    from airflow.sdk.execution_time.hitl import HITLUser

    from airflow_poison.desk.plans import PlanView
    from airflow_poison.notifications import Log, Target, Targets
    from airflow_poison.passes.browse import MessageRow
    from airflow_poison.passes.conversations import ConversationRow
    from airflow_poison.passes.halts import HaltedEndpoint
    from airflow_poison.rules.queue_disabling import EndConversation
    from airflow_poison.store.queue_table import QueueTable

MOST_IN_LINE = 300
"""How many characters of a property, a reason or a name are shown."""
MOST_OF_ERROR = 1_500
MOST_PROPERTIES = 30
_BEGIN_ANEW = {"ServiceBroker": "the rollbacks are counted from 0 again", "Msmq3": "the listener counts its attempts from 0 again"}
"""Systems in which enabling alone gives the suspect fresh attempts (spec SB-7, M3-10)."""


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked.

    :param options: the answers, as they are shown, by what they mean. Those that act name the message that they are about.
    """

    subject: str
    body: str
    options: Mapping[Decision, str]


def question(
    halt: HaltedEndpoint,
    message: MessageRow | None,
    others: int,
    *,
    conversation: ConversationRow | None = None,
    system: str = "",
    to_queue: str | None = None,
    end: EndConversation = REMOVAL,
    most_of_body: int = 2_000,
) -> Question:
    """Return what people are asked about a halt.

    :param message: its suspect; None: there is none, or it is gone.
    :param others: further messages of its conversation in the queue.
    :param conversation: of the suspect, where it is one of the queue's services and has not ended here.
    :param system: the name of the messaging system.
    :param to_queue: where a removed message is kept; None: the poison sub-queue.
    :param end: the error that the partner gets when the conversation is ended.
    :param most_of_body: how many characters of the body are shown.
    """
    options = _options(halt, message, conversation, end)
    blamed = "" if halt.lookup_id is None else f" by message {halt.lookup_id}"
    parts = [f"Queue **{halt.name}** is **{halt.state.value}**{blamed}: nothing is received from it.", _block(halt.reason, MOST_OF_ERROR)]
    if message is not None:
        parts += [_table(_facts(message, others, conversation)), *_error(message), *_body(message, most_of_body)]
    elif halt.lookup_id is not None:
        parts.append(f"Message {halt.lookup_id} is not in the queue any more.")
    means = {each: _ends(conversation, end) if each is Decision.END else _means(each, halt, others, system, to_queue) for each in options}
    parts.append("\n".join(f"* **{options[each]}**: {means[each]}" for each in options))
    return Question(f"Queue {halt.name} is {halt.state.value}{blamed}. What shall be done?", "\n\n".join(parts), options)


LEAVE = "Leave them in poison"
"""The answer that does nothing of what rules propose."""


def proposals(queue: str, proposed: Sequence[PlanView]) -> tuple[str, str, dict[str, str]]:
    """Return what people are asked about plans that rules propose: subject, Markdown, and the answers by the plans that they agree to."""
    answers: dict[str, str] = {}
    parts = [f"Rules of queue **{queue}** propose actions for messages in poison. Messages whose action is not approved stay there."]
    for view in proposed:
        verb, to = view.action.verb.value.replace("_", " "), f" {view.action.target}" if view.action.target else ""
        answers[view.plan] = f"{view.reason}: {verb}{to} {counted(view.messages, 'message')}"
        groups = [(_code(group.type or "no failure"), f"{group.messages:,}, {_code(group.text)}") for group in view.groups[:MOST_PROPERTIES]]
        named = ", ".join(str(sample.lookup_id) for sample in view.samples)
        parts += [f"**{answers[view.plan]}** (plan {_code(view.plan)}); for example {named}.", _table(iter(groups))]
    return f"Rules of queue {queue} propose something. What shall be done?", "\n\n".join(parts), answers


def _options(halt: HaltedEndpoint, message: MessageRow | None, conversation: ConversationRow | None, end: EndConversation) -> dict[Decision, str]:
    number = halt.lookup_id
    gone = "Enable" if number is None else f"Enable, message {number} is gone"
    texts = {
        Decision.END: f"End the conversation of message {number} with error {end.error} and enable",
        Decision.REMOVE: f"Remove message {number} and enable",
        Decision.RETURN: f"Return message {number} and enable",
        Decision.ENABLE: gone if message is None else f"Enable, leave message {number} as it is",
        Decision.LEAVE: f"Leave it {halt.state.value}",
    }
    return {each: texts[each] for each in choices(halt, message, conversation)}


def _ends(conversation: ConversationRow | None, end: EndConversation) -> str:
    assert conversation is not None, "it is offered only with one"
    partner = f"{_code(conversation.far_service)} gets error {end.error}, {_code(end.description)}"
    return f"all messages of the conversation leave the queue for good, and {partner}. The application at this side gets no message from the queue."


def _means(decision: Decision, halt: HaltedEndpoint, others: int, system: str, to_queue: str | None) -> str:
    match decision:
        case Decision.REMOVE:
            apart = dead_letter_queue(halt.queue) if halt.sub_queue is SubQueue.POISON else place_name(halt.queue, SubQueue.POISON)
            together = f", with {others:,} other messages of its conversation" if others else ""
            return f"it is kept in {_code(to_queue or apart)}{together}; what is behind it is received."
        case Decision.RETURN:
            return f"it is in {_code(halt.queue)} with abort count 0 and as many attempts as that gives it, and may halt the queue again."
        case Decision.ENABLE:
            if halt.lookup_id is None:
                return "the queue receives again."
            return f"it keeps its counts, and may halt the queue again{f'; {_BEGIN_ANEW[system]}' if system in _BEGIN_ANEW else ''}."
        case Decision.LEAVE:
            return "nothing is changed."
        case Decision.END:
            raise AssertionError("only conversations are ended")


def _facts(message: MessageRow, others: int, conversation: ConversationRow | None) -> Iterator[tuple[str, str]]:
    yield "message", str(message.lookup_id)
    yield "sent", _instant(message.enqueued_at)
    yield "abort count, move count", f"{message.abort_count}, {message.move_count}"
    if message.crash_count:
        yield "crashes", str(message.crash_count)
    yield "priority", str(message.priority)
    for name, value in (("type", message.message_type), ("group", message.group_id), ("message id", message.message_id)):
        if value:
            yield name, _code(value)
    if message.conversation_id:
        yield "conversation", f"{_code(message.conversation_id)}, with {others:,} other messages in the queue"
    if conversation is not None:
        yield "conversation's state", _code(conversation.state)
        yield "partner", f"{_code(conversation.far_service)}, of {_code(conversation.service)} here"
        yield "waiting in the conversation", ", ".join(f"{count:,} of type {_code(kind)}" for kind, count in conversation.waiting.items())
    for name, value in list(message.properties.items())[:MOST_PROPERTIES]:
        yield f"property {_code(name)}", _code(value)
    if len(message.properties) > MOST_PROPERTIES:
        yield "properties", f"{len(message.properties) - MOST_PROPERTIES} more"


def _error(message: MessageRow) -> Iterator[str]:
    text = (message.last_error or {}).get("message") or message.reason
    if text:
        kind = (message.last_error or {}).get("type") or ""
        yield f"**Last error** {_code(kind) if kind else ''}\n\n{_block(text, MOST_OF_ERROR)}"


def _body(message: MessageRow, most: int) -> Iterator[str]:
    size = f"{len(message.body):,} bytes"
    if not message.body:
        yield "**Body**: empty."
        return
    text = message.shown()
    if text is None:
        shown, what = base64.b64encode(message.body[: most * 3 // 4]).decode(), f"{size}, no UTF-8 text: Base64"
        is_cut = len(message.body) > most * 3 // 4
    else:
        shown, what, is_cut = text.text[:most], f"{size}, XML in {text.encoding}" if text.encoding else size, len(text.text) > most
    language = "json" if text is not None and not is_cut and _is_json(text.text) else ""
    yield f"**Body** ({what}{', the beginning' if is_cut else ''})\n\n{_block(shown, most, language)}"


# Markdown --------------------------------------------------------------------------------------------------------------


def _table(rows: Iterator[tuple[str, str]]) -> str:
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)])


def _block(text: str, most: int, language: str = "") -> str:
    """Return a fenced block; its fence is longer than any that the text has."""
    shown = neutral_text(text[:most]) + ("…" if len(text) > most else "")
    fence = "`" * max(3, _longest(shown) + 1)
    return f"{fence}{language}\n{shown}\n{fence}"


def _code(text: str) -> str:
    """Return a text as code in a line, which may be in a table."""
    shown = " ".join(neutral_text(text[:MOST_IN_LINE]).split()) + ("…" if len(text) > MOST_IN_LINE else "")
    fence = "`" * (_longest(shown) + 1)
    return f"{fence} {shown or '(empty)'} {fence}".replace("|", "\\|")


def _longest(text: str) -> int:
    return max((len(found) for found in re.findall("`+", text)), default=0)


def _instant(instant: datetime | None) -> str:
    return "" if instant is None else f"{instant:%Y-%m-%d %H:%M:%S} UTC"


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def meaning(options: Mapping[str, str], chosen: Sequence[str]) -> Decision | None:
    """Return what an answer means; None for one that was not offered.

    :param options: answers by what they mean.
    """
    return next((Decision(what) for what, answer in options.items() if [answer] == list(chosen)), None)


def tell_about(
    halt: HaltedEndpoint, event: str, reason: str, what_to_do: str, *, key: str, targets: Sequence[Target], context: Mapping[str, Any], log: Log
) -> None:
    """Give receivers an alert about a halted queue.

    :param event: its payload.
    """
    alert = Alert(
        key=key,
        kind=AlertKind.QUEUE_DISABLED,
        queue=halt.queue,
        event=event,
        lookup_ids=() if halt.lookup_id is None else (halt.lookup_id,),
        count=0 if halt.lookup_id is None else 1,
        reason=reason,
        what_to_do=what_to_do,
        details={"endpoint": halt.name, "state": halt.state.value, "reason": halt.reason},
    )
    tell_all(targets, alert, context, log)


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
        from airflow_poison.passes.halts import halted_endpoint

        hook = QueueHook(self.conn_id)
        table = hook.queue_to_read(self.queue_name)
        halt = halted_endpoint(table, self.sub_queue)
        if halt is None:
            raise AirflowSkipException(f"Queue {self.queue_name!r} receives: there is nothing to decide.")
        asked = self._question(table, halt)
        answers = {decision.value: answer for decision, answer in asked.options.items()}
        self.subject, self.body, self.options = asked.subject, asked.body, list(answers.values())
        self.defaults = None if self.on_timeout is OnTimeout.FAIL else [answers.get(self.on_timeout.value, answers["leave"])]
        self.notifiers = [lambda given: self._tell(given, hook, table.uri, halt, asked)]  # type: ignore[list-item]  # it is only called
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

    def _question(self, table: QueueTable, halt: HaltedEndpoint) -> Question:
        from airflow_poison.passes.decide import suspect, suspect_conversation

        message, others = suspect(table, SystemClock(), halt)
        return question(
            halt,
            message,
            others,
            conversation=suspect_conversation(table, message),
            system=str(table.snapshot().control.policy.get("system", "")),
            to_queue=self.to_queue,
            end=ended_with_error(self.error, self.description),
            most_of_body=self.most_of_body,
        )

    def _tell(self, context: Any, hook: QueueHook, uri: str, halt: HaltedEndpoint, asked: Question) -> None:
        if self.on_asked:
            key, todo = task_key(context, hook, uri, WANTED, *halt.identity), f"Answer in the Airflow UI: {self._place(context)}"
            tell_about(halt, WANTED, asked.subject, todo, key=key, targets=self.on_asked, context=context, log=self.log)

    def _place(self, context: Any) -> str:
        try:
            return self.generate_link_to_ui(task_instance=context["ti"])
        except ValueError:  # a worker need not know the address of the UI
            task = context["ti"]
            return f"dags/{task.dag_id}/runs/{task.run_id}/tasks/{task.task_id}/required_actions?map_index={task.map_index}"
