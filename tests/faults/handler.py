"""The handler of the campaign: notes each call before it does anything, then does what the body says."""

from __future__ import annotations

import os
import signal
from datetime import timedelta
from typing import TYPE_CHECKING
from uuid import uuid4

from airflow_poison.values.failures import Postpone, Unprocessable
from airflow_poison.values.fault_points import reach
from tests.faults.conversing import converse
from tests.faults.exact import digest, digest_of_given
from tests.faults.ledger import FOLDER, PARENT, QUEUE, note
from tests.faults.records import deed_of
from tests.faults.world import WITH_OUTAGES, FastClock, is_away

if TYPE_CHECKING:
    from datetime import datetime

    from airflow_poison.values.message import Message

ORIGIN = "POISON_FAULTS_ORIGIN"
LANDED = 4_096
"""So many bytes of a body land in the output, at most."""
_POSTPONED_FOR = timedelta(seconds=15)


def handle(message: Message) -> dict[str, object] | None:
    """Return a row for the queue's output, with the begin of the body, unless the message is one of a dialog."""
    queue, number = os.environ[QUEUE], message.lookup_id
    child = os.getpid() != int(os.environ[PARENT])
    counts = {"a": message.abort_count, "m": message.move_count}
    call, conversation = uuid4().hex, message.conversation
    dialog = {} if conversation is None else {"call": call, "dialog": conversation.conversation_id, "what": message.message_type}
    was_given = {"body": digest(message.body), "given": digest_of_given(message.properties.items())}
    note("call", queue=queue, id=number, mid=message.message_id, pid=os.getpid(), child=child, **counts, **was_given, **dialog)
    reach("handler.begin")
    if conversation is not None:
        converse(message, conversation, queue, call)
        return None
    if queue == WITH_OUTAGES and is_away(os.environ[FOLDER], _now()):
        _end(queue, number, "away", ConnectionError("the system is away"))
    first = message.abort_count == message.move_count == 0
    match deed_of(message.body):
        case [b"bad"]:
            _end(queue, number, "bad", _unlike(number)("always"))
        case [b"flaky", times] if message.move_count == 0 and message.abort_count < int(times):
            _end(queue, number, "bad", _unlike(number)("for now"))
        case [b"unprocessable"]:
            _end(queue, number, "unprocessable", Unprocessable("never"))
        case [b"postpone"] if _early(message):
            _end(queue, number, "postpone", Postpone(timedelta(seconds=5)))
        case [b"die"] if first:
            _die()
        case [b"killer"]:
            _die()
        case _:
            _note_end(queue, number, "ok")
            reach("handler.end")
    return {"id": number, "body": message.body[:LANDED]}


def _end(queue: str, number: int, how: str, error: Exception) -> None:
    _note_end(queue, number, how)
    raise error


def _unlike(number: int) -> type[ValueError]:
    """Return an exception of which no other message's has the fingerprint: messages that fail alike are an outage, where passes look for one."""
    return type(f"Bad{number}", (ValueError,), {})


def _note_end(queue: str, number: int, how: str) -> None:
    note("end", queue=queue, id=number, how=how, pid=os.getpid())


def _die() -> None:
    note("fault", what="kill", point="handler")
    os.kill(os.getpid(), signal.SIGKILL)


def _early(message: Message) -> bool:
    assert message.enqueued_at is not None
    return _now() < message.enqueued_at + _POSTPONED_FOR


def _now() -> datetime:
    return FastClock(float(os.environ[ORIGIN])).now()
