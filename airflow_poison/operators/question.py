"""What people are asked about halted queues and proposals of rules, as Markdown that no message can break out of; alerts about such decisions."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_poison.notifications import Log, Target, notify_all
from airflow_poison.passes.alerts import Alert, AlertKind
from airflow_poison.passes.decide import Decision, choices
from airflow_poison.passes.relay import dead_letter_queue
from airflow_poison.rules.queue_disabling import REMOVAL, EndConversation
from airflow_poison.ui.page_data import neutral_text
from airflow_poison.values import json_text
from airflow_poison.values.clock import show_instant
from airflow_poison.values.schema import SubQueue, place_name
from airflow_poison.values.texts import counted

if TYPE_CHECKING:
    from airflow_poison.desk.plans import PlanView
    from airflow_poison.passes.browse import MessageRow
    from airflow_poison.passes.conversations import ConversationRow
    from airflow_poison.passes.halts import HaltedEndpoint


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
    yield "sent", "" if message.enqueued_at is None else show_instant(message.enqueued_at)
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
    language = "json" if text is not None and not is_cut and json_text.syntax_error(text.text.encode()) is None else ""
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


def meaning(options: Mapping[str, str], chosen: Sequence[str]) -> Decision | None:
    """Return what an answer means; None for one that was not offered.

    :param options: answers by what they mean.
    """
    return next((Decision(what) for what, answer in options.items() if [answer] == list(chosen)), None)


def notify_about(
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
    notify_all(targets, alert, context, log)
