"""The data of the pages in the Airflow UI, as plain values: read, never written, without what a connection hides, harmless."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from airflow_poison.dialogs.endpoint import ConversationState
from airflow_poison.hooks.poison import QueueHook
from airflow_poison.rules.recovery import REMOVAL
from airflow_poison.values.clock import SystemClock
from airflow_poison.values.errors import (
    CheckpointDamagedError,
    ConversationNotFoundError,
    PoisonError,
    QueueNameError,
    QueueNotFoundError,
    TableChangedError,
)
from airflow_poison.values.texts import visible

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_poison.hooks.connection import StoreConnection
    from airflow_poison.passes.browse import QueueOverview
    from airflow_poison.passes.conversations import ConversationRow
    from airflow_poison.store import QueueStore
    from airflow_poison.store.queue_table import QueueTable


log = logging.getLogger(__name__)


def queue(conn_id: str, name: str) -> dict[str, object]:
    """Return one queue: state, reason, depths, ages, policy, claims, and how many conversations go on. Raises NotThereError, NotReadableError."""
    from airflow_poison.passes.browse import overview

    with opened(conn_id, name) as table:
        return {"conn_id": conn_id, **plain_overview(overview(table, SystemClock())), **_conversations(table)}


def plain_overview(seen: QueueOverview) -> dict[str, object]:
    """Return an overview without the place of its table: connections are for few eyes."""
    return {name: value for name, value in seen.to_dict().items() if name != "uri"} | {"at": seen.at.isoformat(), "halted": seen.halted}


def _conversations(table: QueueTable) -> dict[str, object]:
    """Return whether a queue has conversations, and how many go on; None where counting them takes long, or cannot be done."""
    from airflow_poison.passes.conversations import number

    if not table.snapshot().has_conversations:
        return {"has_conversations": False, "conversations": 0}
    try:
        return {"has_conversations": True, "conversations": number(table)}
    except DAMAGED as error:  # all else of the queue can be read
        log.warning("The conversations of queue %r cannot be counted: %s", table.name, error)
        return {"has_conversations": True, "conversations": None}


_OVER = frozenset({ConversationState.DISCONNECTED_OUTBOUND, ConversationState.CLOSED})
_TELLS = frozenset({ConversationState.STARTED_INBOUND, ConversationState.CONVERSING})


def conversations(conn_id: str, name: str, limit: int, *, ended: bool) -> dict[str, object]:
    """Return the conversations of a queue; those with failures, errors and waiting messages first. Raises NotThereError, NotReadableError."""
    from airflow_poison.passes.conversations import conversations as browse

    def urgency(row: ConversationRow) -> tuple[int, bool, int, str]:
        return -row.failures, row.error is None, -sum(row.waiting.values()), row.handle

    with opened(conn_id, name) as table:
        rows = sorted(browse(table, ended=ended), key=urgency)
    shown = [row.to_dict() for row in rows[:limit]]
    return {"conn_id": conn_id, "queue": name, "at": SystemClock().now().isoformat(), "conversations": shown, "more": len(rows) - len(shown)}


def conversation(conn_id: str, name: str, handle: str, limit: int) -> dict[str, object]:
    """Return one conversation: what waits for it, what has not left for its partner, and what ends it. Raises NotThereError, NotReadableError."""
    from airflow_poison.passes.conversations import conversation as browse

    with opened(conn_id, name) as table:
        try:
            seen = browse(table, handle, limit)
        except ConversationNotFoundError as error:
            why = "nothing of it was received, it was forgotten after its end, or the handle is the partner's"
            raise NotThereError(f"Queue {name!r} has no conversation {handle!r}: {why}.") from error
        halts = _halts(table, handle)
        return {
            "conn_id": conn_id,
            "queue": name,
            "at": SystemClock().now().isoformat(),
            "conversation": {**seen.row.to_dict(), "far_handle": seen.row.far_handle},
            "far_queue": _far_queue(opened_store(conn_id), seen.row.far_service),
            "messages": [row.without_body() for row in seen.messages],
            "more": seen.more,
            "unsent": dict(seen.unsent),
            "halts": halts,
            "ended_by": _command(conn_id, name, seen.row, enable=halts),
        }


def _halts(table: QueueTable, handle: str) -> bool:
    """Return whether it is a message of this conversation that has halted the queue."""
    from airflow_poison.passes.browse import look_up
    from airflow_poison.passes.messages import Chosen

    suspect = table.snapshot().control.halted_by
    return suspect is not None and any(row.conversation_id == handle for row in look_up(table, Chosen.ids([suspect])))


def _far_queue(store: QueueStore, service: str) -> dict[str, object] | None:
    """Return the queue of the partner's service; None when there is none, or it cannot be found out."""
    from airflow_poison.passes.conversations import found_queue

    try:
        found = found_queue(store, service)
        return None if found is None else {"queue": found.name, "state": found.snapshot().control.state.value}
    except DAMAGED as error:
        log.warning("The queue of service %r cannot be looked for: %s", service, error)
        return None


def _command(conn_id: str, name: str, row: ConversationRow, *, enable: bool) -> str | None:
    """Return what a person types to end a conversation as the manual removes a poison message (spec SB-26); None: this side has ended it.

    The partner gets an error where it has not ended its side.
    """
    state = ConversationState(row.state)
    if state in _OVER:
        return None
    words = ["airflow", "poison", "end-conversation", name, row.handle]
    if state in _TELLS:
        words += ["--error", str(REMOVAL.error), "--description", REMOVAL.description]
    if enable:
        words.append("--enable")
    if conn_id != QueueHook.default_conn_name:
        words += ["--conn-id", conn_id]
    return shlex.join(words)


DAMAGED = (PoisonError, ValueError, KeyError, TypeError)
"""What reading raises where a file is gone or damaged, or another program has written a row."""


class NotThereError(Exception):
    """The requested thing is not there, or this user may not see it; the answer does not say which."""


class NotReadableError(Exception):
    """It is there and cannot be read; the log of the API server says why."""


class RefusedError(Exception):
    """It cannot be done as it was asked for; the text says why."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


@contextmanager
def opened(conn_id: str, name: str) -> Iterator[QueueTable]:
    """Open a queue to read it. Raises NotThereError, and NotReadableError also for what the block raises."""
    store = opened_store(conn_id)
    with told(f"Queue {name!r} of connection {conn_id!r}"):
        try:
            table = store.open(name, read_only=True)
        except (QueueNotFoundError, QueueNameError) as error:
            why = ""
            if store.absence:
                why = ": its folder does not exist where the API server runs, whose log says which"
                log.warning("Queue %r of connection %r cannot be shown: %s", name, conn_id, error)
            raise NotThereError(f"There is no queue {name!r} in the store of connection {conn_id!r}{why}.") from error
        yield table


def opened_store(conn_id: str) -> QueueStore:
    """Return the store of a connection of type ``poison``. Raises NotThereError for every other id, so that ids cannot be guessed."""
    return opened_connection(conn_id)[1]


def opened_connection(conn_id: str) -> tuple[StoreConnection, QueueStore]:
    """Do the same; return also what the connection says."""
    hook = QueueHook(conn_id)
    if not _is_poison(hook):
        raise NotThereError(f"No connection of type 'poison' has the id {conn_id!r}.")
    with told(f"Connection {conn_id!r}"):
        return hook.settings, hook.store()


@contextmanager
def told(what: str) -> Iterator[None]:
    """Keep errors from the page: they name paths and settings. Raises NotReadableError."""
    try:
        yield
    except DAMAGED as error:
        log.warning("%s cannot be shown: %s", what, error, exc_info=not isinstance(error, PoisonError))
        raise NotReadableError(f"{what} cannot be read ({type(error).__name__}).{_damage(error)} The log of the API server says why.") from error


def _damage(error: Exception) -> str:
    if isinstance(error, CheckpointDamagedError):
        return " A checkpoint of its log is damaged: no message is concerned, and the next verb that writes sets it aside."
    if isinstance(error, TableChangedError):
        return " Its table is damaged, or another program has changed it: 'airflow poison check' says what is wrong and what to do."
    return ""


def _is_poison(hook: QueueHook) -> bool:
    from airflow.sdk.exceptions import AirflowException

    try:
        return bool(hook.get_connection(hook.conn_id).conn_type == hook.conn_type)
    except AirflowException:  # not defined, or not for this process
        return hook.conn_id == hook.default_conn_name


def shown(row: dict[str, Any]) -> dict[str, Any]:
    """Return a message as people see it: what edits keep of it for themselves is no property of its sender."""
    from airflow_poison.values.masking import EDITS, edits_of

    properties, edited = row["properties"], bool(edits_of(row["properties"]))
    return row | {"properties": {name: value for name, value in properties.items() if not edited or name != EDITS}, "edited": edited}


def neutral(value: object) -> object:
    """Return plain values whose texts show control and format characters as escapes; keys, too."""
    if isinstance(value, str):
        return neutral_text(value)
    if isinstance(value, Mapping):
        return {neutral_text(str(key)): neutral(each) for key, each in value.items()}
    if isinstance(value, Sequence):
        return [neutral(each) for each in value]
    return value


def neutral_text(text: str) -> str:
    """Return a text in which each sign can be seen; line ends and tabs stay."""
    return visible(text, "\n\t")
