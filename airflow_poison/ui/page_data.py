"""The data of the pages in the Airflow UI, as plain values: read, never written, without what a connection hides, harmless.

The overview of a connection's queues: what each holds, what needs a person, how it went in the last day, and totals. One message: its body and the
one that was sent, and everything that has happened to it, with who did it and where that is.
"""

from __future__ import annotations

import logging
import shlex
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, timedelta
from threading import Lock
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from airflow_poison.dialogs.acts import ConversationState
from airflow_poison.hooks.poison import QueueHook
from airflow_poison.rules.queue_disabling import REMOVAL
from airflow_poison.store.files import PlanState
from airflow_poison.values.clock import SystemClock
from airflow_poison.values.errors import (
    CheckpointDamagedError,
    ConversationNotFoundError,
    PoisonError,
    QueueNameError,
    QueueNotFoundError,
    TableChangedError,
)
from airflow_poison.values.events import WHO
from airflow_poison.values.schema import SubQueue
from airflow_poison.values.texts import counted, visible

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable, Iterator
    from datetime import datetime

    from airflow_poison.hooks.connection import StoreConnection
    from airflow_poison.passes.browse import MessageRow, QueueOverview
    from airflow_poison.passes.conversations import ConversationRow
    from airflow_poison.queue import Queue
    from airflow_poison.store import QueueStore
    from airflow_poison.values.events import EventType
    from airflow_poison.watching.poller import QueueReader, Reading
    from airflow_poison.watching.trends import Trend, Trends

log = logging.getLogger(__name__)

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


MOST_STORES = 20
"""Of so many connections the server remembers what it has seen, so that a look at queues that have not changed reads nothing."""
TREND_SECONDS = 0.25
"""So long one look may read for trends; what is missing then comes with the next looks."""
OVERDUE = timedelta(hours=1)
"""Messages that have been due for so long need a person: nothing receives or returns them."""


@dataclass(slots=True)
class _Seen:
    """What was seen of a store, used by one thread at a time; ``settings`` of the connection say which store it is."""

    settings: StoreConnection
    reader: QueueReader
    trends: Trends
    plans: dict[str, tuple[Hashable, Mapping[str, str]]] = field(default_factory=dict)
    plan_ids: dict[str, str] = field(default_factory=dict)
    lock: Lock = field(default_factory=Lock)


_seen: OrderedDict[str, _Seen] = OrderedDict()
_seen_lock = Lock()


def queues(conn_id: str) -> dict[str, object]:
    """Return every queue of a connection's store, which cannot be read, and whether there is a store. Raises NotThereError, NotReadableError."""
    from airflow_poison.passes.browse import overview_of

    settings, store = opened_connection(conn_id)
    with named_errors(f"The store of connection {conn_id!r}"):
        names, missing_reason = store.names(), store.missing_reason
    if missing_reason:
        log.warning("Connection %r has no queues to show: %s.", conn_id, missing_reason)
    found, unreadable = [], list[str]()
    overviews: list[QueueOverview] = []
    memory = _memory(conn_id, settings, store)
    with memory.lock:
        now, until = SystemClock().now(), time.monotonic() + TREND_SECONDS
        memory.trends.forget_others(names)
        for name, sight in memory.reader.at(names).items():
            if isinstance(sight, PoisonError):
                log.warning("Queue %r of connection %r cannot be shown: %s", name, conn_id, sight)
                unreadable.append(name)
                continue
            shown = overview_of(sight.table, sight.snapshot, now)
            trend = _trend(memory.trends, sight, now, until)
            overviews.append(shown)
            wants = list(needs(shown, trend, _open_plans(memory, sight)))
            found.append(plain_overview(shown) | {"needs": wants, "trend": None if trend is None else trend.to_dict()})
    return {
        "conn_id": conn_id,
        "at": now.isoformat(),
        "exists": not missing_reason,
        "queues": found,
        "unreadable": unreadable,
        "totals": _totals(overviews),
    }


def _memory(conn_id: str, settings: StoreConnection, store: QueueStore) -> _Seen:
    """Return what was seen of a connection's store; nothing, when the connection names another one now."""
    from airflow_poison.watching.poller import QueueReader
    from airflow_poison.watching.trends import Trends

    with _seen_lock:
        known = _seen.get(conn_id)
        if known is None or known.settings != settings:
            known = _seen[conn_id] = _Seen(settings, QueueReader(store), Trends())
        _seen.move_to_end(conn_id)
        while len(_seen) > MOST_STORES:
            _seen.popitem(last=False)
        return known


def _trend(trends: Trends, sight: Reading, now: datetime, until: float) -> Trend | None:
    """Return the trend of a queue; None as long as it is not read, and where an event file is damaged: all else of the queue can be shown."""
    try:
        return trends.of(sight, now, until)
    except DAMAGED as error:
        log.warning("The trend of queue %r cannot be read: %s", sight.table.name, error)
        return None


def _open_plans(memory: _Seen, sight: Reading) -> Mapping[str, str]:
    """Return the states of a queue's plans that have not ended, by their ids; nothing where a plan's file is damaged: all else can be shown."""
    name, version = sight.table.name, (sight.snapshot.version, sight.mark)
    if not sight.snapshot.plans:
        return {}
    if sight.mark is None or name not in memory.plans or memory.plans[name][0] != version:
        try:
            states = sight.table.plan_states(memory.plan_ids)
        except DAMAGED as error:
            log.warning("The plans of queue %r cannot be read: %s", name, error)
            return {}
        memory.plans[name] = version, {plan: state.value for plan, state in states.items() if state in _OPEN_PLANS}
    return memory.plans[name][1]


def _totals(seen: Sequence[QueueOverview]) -> dict[str, object]:
    return {
        "queues": len(seen),
        "halted": sum(each.halted for each in seen),
        "outages": sum(bool(each.outage or each.poison_outage) for each in seen),
        "messages": {place.value: sum(each.sub_queues[place].messages for each in seen) for place in SubQueue},
    }


# What needs a person, the most urgent first -----------------------------------------------------------------------------


_STUCK = {
    PlanState.FAILED: "has failed; its page says why",
    PlanState.STOPPED: "was stopped by its canary: too few of the messages that went first were settled",
    PlanState.PAUSED: "is paused: nothing more happens until it is resumed",
}
_AT_WORK = {PlanState.RUNNING: "is under way", PlanState.CANARY: "waits for its canary", PlanState.UNDOING: "is being undone"}
_OPEN_PLANS = frozenset(_STUCK) | frozenset(_AT_WORK)


def needs(seen: QueueOverview, trend: Trend | None, plans: Mapping[str, str]) -> Iterator[Mapping[str, str]]:
    """Yield what in a queue needs a person. Instants are ISO 8601 in UTC: the page shows them in the zone of its user.

    :param plans: the states of those that have not ended, by id.
    """
    if seen.halted:
        state, reason = (seen.state, seen.reason) if seen.state != "enabled" else (seen.poison_state, seen.poison_reason)
        yield {"kind": "halted", "text": f"{state}: {reason}" if reason else state}
    for outage in filter(None, (seen.outage, seen.poison_outage)):
        yield {"kind": "outage", "text": f"What its handler needs is away since {_instant(outage.since)}."}
    yield from _of_plans(plans, _STUCK, "plan")
    if poison := seen.sub_queues[SubQueue.POISON].messages:
        more, new = (0, 0) if trend is None else (min(trend.growth, poison), min(sum(trend.poison), poison))
        grown = f", {more:,} more than an hour ago" if more > 0 else f", {new:,} of them new since yesterday" if new else ""
        yield {"kind": "poison_growing" if more > 0 else "poison", "text": f"{counted(poison, 'poison message')}{grown}."}
    yield from _overdue(seen)
    expired = [claim for claim in seen.claims if claim.expired and not claim.given_up]
    if expired:
        held = counted(sum(claim.messages for claim in expired), "message")
        yield {"kind": "expired_claim", "text": f"A pass that held {held} has not answered in time; the next one goes on with them."}
    yield from _of_plans(plans, _AT_WORK, "plan_at_work")


def _of_plans(plans: Mapping[str, str], words: Mapping[PlanState, str], kind: str) -> Iterator[Mapping[str, str]]:
    for plan_id, state in plans.items():
        if PlanState(state) in words:
            yield {"kind": kind, "text": f"Plan {plan_id} {words[PlanState(state)]}.", "plan": plan_id}


def _overdue(seen: QueueOverview) -> Iterator[Mapping[str, str]]:
    for place in (SubQueue.RETRY, SubQueue.POSTPONED):
        depth = seen.sub_queues[place]
        if depth.next_due_at is not None and depth.due and seen.at - depth.next_due_at >= OVERDUE:
            text = f"{counted(depth.due, 'message')} in {place.value} should have been returned; the oldest since {_instant(depth.next_due_at)}."
            yield {"kind": "overdue", "text": text}


def _instant(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="seconds")


MOST_EVENTS = 200
_BY_DAG = "dag:"


def message(conn_id: str, name: str, lookup_id: int, *, unmask: bool) -> dict[str, object]:
    """Return one message with the first 64 KiB of its body, wherever it is. Raises NotThereError, NotReadableError.

    :param unmask: with the values that the queue hides; ``masked`` are the paths of those that are not shown.
    """
    from airflow_poison.passes.browse import recorded_mask

    with open_queue(conn_id, name) as queue:
        mask = None if unmask else recorded_mask(queue.reading)
        found = queue.look_up([lookup_id], unmask=unmask)
        if not found:
            raise NotThereError(
                f"Message {lookup_id} is not in queue {name!r}: it was settled, moved or removed, or never sent. Its events may say which."
            )
        [row] = found
        return {
            "conn_id": conn_id,
            "queue": name,
            "message": with_body(row),
            "original": _original(row),
            "masked": [] if mask is None else list(mask.paths),
            "history": _history(queue, lookup_id),
        }


def events(conn_id: str, name: str, lookup_id: int | None, types: Collection[EventType], limit: int) -> dict[str, object]:
    """Return the newest events of a queue or of one of its messages, oldest first, with where the task that has acted is in Airflow.

    Raises NotThereError, NotReadableError.
    """
    from airflow_poison.passes.history import plain

    with open_queue(conn_id, name) as queue:
        found = queue.history(lookup_ids=None if lookup_id is None else [lookup_id], types=types or None, limit=limit)
        listed = [
            each | {"links": links_of(str(event.details.get(WHO, "")))} for each, event in zip(map(plain, found.events), found.events, strict=True)
        ]
        return {"conn_id": conn_id, "queue": found.queue, "events": listed, "earlier": found.earlier}


def with_body(row: MessageRow) -> dict[str, object]:
    """Return a message with its body as people read it; XML in another encoding than plain UTF-8 says which."""
    from airflow_poison.passes.browse import MOST_BODY_BYTES

    text = row.shown(MOST_BODY_BYTES)
    return shown(row.to_dict()) | ({"body": text.text, "body_encoding": text.encoding} if text is not None and text.encoding else {})


def _original(row: MessageRow) -> dict[str, object] | None:
    """Return the body that was sent; None where it was not edited."""
    from airflow_poison.desk.actions import original_body

    body = original_body(row.body, row.properties)
    if body is None:
        return None
    sent = with_body(replace(row, body=body))
    return {name: sent[name] for name in ("body", "body_encoding", "body_bytes", "body_cut")}


def _history(queue: Queue, lookup_id: int) -> list[dict[str, object]]:
    from airflow_poison.passes.history import plain

    found = queue.history(lookup_ids=[lookup_id], limit=MOST_EVENTS).events
    return [plain(event) | {"type": event.type.value, "links": links_of(str(event.details.get(WHO, "")))} for event in found]


def links_of(who: str) -> dict[str, str | None]:
    """Return where Airflow's UI shows the run and the log of the task that has acted, relative to its own address."""
    dag_id, first, rest = who.removeprefix(_BY_DAG).partition("/")
    run_id, second, task_id = rest.rpartition("/")
    if not (who.startswith(_BY_DAG) and first and second):
        return {"dag_run": None, "task_log": None}
    run = f"dags/{quote(dag_id, '')}/runs/{quote(run_id, '')}"
    return {"dag_run": run, "task_log": f"{run}/tasks/{quote(task_id, '')}"}


def queue(conn_id: str, name: str) -> dict[str, object]:
    """Return one queue: state, reason, depths, ages, policy, claims, and how many conversations go on. Raises NotThereError, NotReadableError."""
    with open_queue(conn_id, name) as queue:
        return {"conn_id": conn_id, **plain_overview(queue.overview()), **_conversations(queue)}


def plain_overview(seen: QueueOverview) -> dict[str, object]:
    """Return an overview without the place of its table: connections are for few eyes."""
    return {name: value for name, value in seen.to_dict().items() if name != "uri"} | {"at": seen.at.isoformat(), "halted": seen.halted}


def _conversations(queue: Queue) -> dict[str, object]:
    """Return whether a queue has conversations, and how many go on; None where counting them takes long, or cannot be done."""
    from airflow_poison.passes.conversations import number

    if not queue.reading.snapshot().has_conversations:
        return {"has_conversations": False, "conversations": 0}
    try:
        return {"has_conversations": True, "conversations": number(queue.reading)}
    except DAMAGED as error:  # all else of the queue can be read
        log.warning("The conversations of queue %r cannot be counted: %s", queue.name, error)
        return {"has_conversations": True, "conversations": None}


_OVER = frozenset({ConversationState.DISCONNECTED_OUTBOUND, ConversationState.CLOSED})
_TELLS = frozenset({ConversationState.STARTED_INBOUND, ConversationState.CONVERSING})


def conversations(conn_id: str, name: str, limit: int, *, ended: bool) -> dict[str, object]:
    """Return the conversations of a queue; those with failures, errors and waiting messages first. Raises NotThereError, NotReadableError."""

    def urgency(row: ConversationRow) -> tuple[int, bool, int, str]:
        return -row.failures, row.error is None, -sum(row.waiting.values()), row.handle

    with open_queue(conn_id, name) as queue:
        rows = sorted(queue.conversations(ended=ended), key=urgency)
    shown = [row.to_dict() for row in rows[:limit]]
    return {"conn_id": conn_id, "queue": name, "at": queue.clock.now().isoformat(), "conversations": shown, "more": len(rows) - len(shown)}


def conversation(conn_id: str, name: str, handle: str, limit: int) -> dict[str, object]:
    """Return one conversation: what waits for it, what has not left for its partner, and what ends it. Raises NotThereError, NotReadableError."""
    with open_queue(conn_id, name) as queue:
        try:
            seen = queue.conversation(handle, limit)
        except ConversationNotFoundError as error:
            why = "nothing of it was received, it was forgotten after its end, or the handle is the partner's"
            raise NotThereError(f"Queue {name!r} has no conversation {handle!r}: {why}.") from error
        halts = _halts(queue, handle)
        return {
            "conn_id": conn_id,
            "queue": name,
            "at": queue.clock.now().isoformat(),
            "conversation": {**seen.row.to_dict(), "far_handle": seen.row.far_handle},
            "far_queue": _far_queue(queue.store.tables, seen.row.far_service),
            "messages": [row.without_body() for row in seen.messages],
            "more": seen.more,
            "unsent": dict(seen.unsent),
            "halts": halts,
            "ended_by": _command(conn_id, name, seen.row, enable=halts),
        }


def _halts(queue: Queue, handle: str) -> bool:
    """Return whether it is a message of this conversation that has halted the queue."""
    suspect = queue.reading.snapshot().control.halted_by
    return suspect is not None and any(row.conversation_id == handle for row in queue.look_up([suspect]))


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


@contextmanager
def open_queue(conn_id: str, name: str, who: str | None = None) -> Iterator[Queue]:
    """Open a queue to read it, or for ``who`` changes it. Raises NotThereError, and NotReadableError also for what the block raises."""
    from airflow_poison.queue import Queue, Store

    _, store = opened_connection(conn_id)
    with named_errors(f"Queue {name!r} of connection {conn_id!r}"):
        queue = Queue(Store(store, actor=who), name)
        try:
            _ = queue.table if who else queue.reading
        except (QueueNotFoundError, QueueNameError) as error:
            why = ""
            if store.missing_reason and not who:
                why = ": its folder does not exist where the API server runs, whose log says which"
                log.warning("Queue %r of connection %r cannot be shown: %s", name, conn_id, error)
            raise NotThereError(f"There is no queue {name!r} in the store of connection {conn_id!r}{why}.") from error
        yield queue


def opened_connection(conn_id: str) -> tuple[StoreConnection, QueueStore]:
    """Return what a connection of type ``poison`` says, and its store. Raises NotThereError for every other id, so that ids cannot be guessed."""
    hook = QueueHook(conn_id)
    if not _is_poison(hook):
        raise NotThereError(f"No connection of type 'poison' has the id {conn_id!r}.")
    with named_errors(f"Connection {conn_id!r}"):
        return hook.settings, hook.store()


@contextmanager
def named_errors(what: str) -> Iterator[None]:
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
