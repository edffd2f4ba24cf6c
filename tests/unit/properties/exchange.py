"""Two services that converse as their messages say, and what they did: the handlers of the exchange's passes.

A body says what its receiver does with it. Every call of a handler is written down, also of deliveries that are rolled back afterwards.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING

from airflow_poison.values.errors import ConversationError

if TYPE_CHECKING:
    from airflow_poison.dialogs.transaction import Conversation
    from airflow_poison.values.message import Message

DEEDS = ("nothing", "reply", "reply and end", "end", "end with error", "set a timer", "fail once", "fail always", "clean up")


class RolledBackError(Exception):
    """What a message that says so makes its handler raise, when it has done everything else."""


@dataclass
class Log:
    """What happened in the handlers.

    :param heard: by receiving service and conversation id, the messages in the order of their first delivery.
    :param said: by conversation id and sending service, in order: the messages of each delivery, by what it received and its attempt.
    :param attempts: the number of the last delivery of each message.
    :param ghosts: messages of deliveries that were rolled back: nobody may ever receive one.
    :param ends: Error and EndDialog messages received, by service and conversation id.
    """

    heard: dict[tuple[str, str], list[int]] = field(default_factory=dict)
    attempts: dict[int, int] = field(default_factory=dict)
    said: dict[tuple[str, str], list[int]] = field(default_factory=dict)
    ghosts: set[int] = field(default_factory=set)
    ends: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    timers: dict[tuple[str, str], int] = field(default_factory=dict)
    numbers: count[int] = field(default_factory=lambda: count(1))

    def body(self, deed: str) -> tuple[int, bytes]:
        """Return a new message that asks for a deed, with its number."""
        number = next(self.numbers)
        return number, json.dumps({"number": number, "deed": deed}).encode()


LOG = Log()


def begin_anew() -> Log:
    """Forget everything."""
    LOG.__dict__.update(Log().__dict__)
    return LOG


def handle(message: Message) -> None:
    """Do what the message says."""
    conversation = message.conversation
    assert conversation is not None, "every message of this exchange belongs to a dialog"
    place = (conversation.service, conversation.conversation_id)
    if message.is_error or message.is_end_dialog:
        LOG.ends.setdefault(place, []).append("error" if message.is_error else "end")
        conversation.end()
    elif message.is_timer:
        LOG.timers[place] = LOG.timers.get(place, 0) + 1
    else:
        _hear(message, conversation, place)


def _hear(message: Message, conversation: Conversation, place: tuple[str, str]) -> None:
    said = json.loads(message.body)
    number, deed = said["number"], said["deed"]
    again = number in LOG.attempts
    LOG.attempts[number] = LOG.attempts.get(number, 0) + 1
    if not again:
        LOG.heard.setdefault(place, []).append(number)
    fails = deed == "fail always" or (deed == "fail once" and not again)
    _do(conversation, place, deed, fails=fails)
    if fails:
        raise RolledBackError(number)


def _do(conversation: Conversation, place: tuple[str, str], deed: str, *, fails: bool) -> None:
    try:
        if fails or deed.startswith("reply"):
            reply, body = LOG.body("nothing")
            conversation.reply(body)
            (LOG.ghosts.add(reply) if fails else LOG.said.setdefault(place, []).append(reply))
        if deed in {"reply and end", "end"}:
            conversation.end()
        elif deed == "end with error":
            conversation.end(error=7, description="as asked")
        elif deed == "clean up":
            conversation.end_with_cleanup()
        elif deed == "set a timer":
            conversation.set_timer(60)
    except ConversationError:
        return  # an Error or EndDialog is on its way to this side: it says so itself
