"""What the handler of the campaign does with messages of dialogs: acts in the conversation as the message says, and notes it before it returns."""

from __future__ import annotations

import os
import random
import signal
from datetime import timedelta
from typing import TYPE_CHECKING, NoReturn

from airflow_poison.values.errors import ConversationError
from airflow_poison.values.fault_points import reach
from tests.faults.ledger import note
from tests.faults.talks import AS_ASKED, Said, reply

if TYPE_CHECKING:
    from airflow_poison.dialogs.transaction import Conversation
    from airflow_poison.values.message import Message

_TIMER = timedelta(seconds=20)


def converse(message: Message, conversation: Conversation, queue: str, call: str) -> None:
    """Do what the message says. A delivery that fails does everything else before: nobody may ever see it."""
    first = message.abort_count == 0
    deed = "reply" if message.is_timer else "end" if is_an_end(message) else Said.of(message.body).deed
    fails = deed == "fail always" or (deed == "fail once" and first)
    dies = deed == "die once" and first
    acts = _Acts(conversation, call)
    if fails or dies or deed.startswith("reply"):
        acts.reply()
    if fails and random.Random(call).random() < 0.5:
        acts.end_with_error()
    elif deed in {"reply and end", "end"}:
        acts.end()
    elif deed == "end with error":
        acts.end_with_error()
    elif deed == "clean up":
        acts.clean_up()
    elif deed == "set a timer":
        acts.set_timer()
    if dies:
        _die()
    how = "bad" if fails else "ok"
    note("end", queue=queue, id=message.lookup_id, how=how, pid=os.getpid(), call=call, said=acts.said, ended=acts.ended)
    if fails:
        raise ValueError(deed)
    reach("handler.end")


def is_an_end(message: Message) -> bool:
    return message.is_error or message.is_end_dialog


class _Acts:
    """Acts of one delivery. One that is refused is left out: an Error or EndDialog of the partner is on its way, and says so itself."""

    def __init__(self, conversation: Conversation, call: str) -> None:
        self._conversation, self._call = conversation, call
        self.said, self.ended = 0, ""

    def reply(self) -> None:
        try:
            self._conversation.reply(reply(random.Random(self._call), self._call))
        except ConversationError:
            return
        self.said += 1

    def end(self) -> None:
        self._end("end", self._conversation.end)

    def end_with_error(self) -> None:
        self._end("error", lambda: self._conversation.end(error=AS_ASKED, description=self._call))

    def clean_up(self) -> None:
        self._end("cleanup", self._conversation.end_with_cleanup)

    def set_timer(self) -> None:
        try:
            self._conversation.set_timer(_TIMER)
        except ConversationError:
            return

    def _end(self, how: str, act: object) -> None:
        assert callable(act)
        try:
            act()
        except ConversationError:
            return
        self.ended = how


def _die() -> NoReturn:
    note("fault", what="kill", point="handler")
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError
