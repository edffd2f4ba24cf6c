"""The desk of a queue at the pages: messages of a selection, error groups, plans and their states, and what people change; thin over `Queue`.

Plans that this server applies or undoes: few at the same time, the others wait their turn. Everything that counts is in the queue's table.

When the server ends, a plan stays as far as it is, and can be resumed here or in a shell.
"""

from __future__ import annotations

import json
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from threading import Event, Lock, Timer
from typing import TYPE_CHECKING, Any

from airflow_poison.desk.sql import Limits, limited
from airflow_poison.store.files import PlanState
from airflow_poison.ui.answers import THREADS, large
from airflow_poison.ui.page_data import NotReadableError, RefusedError, open_queue, shown, with_body
from airflow_poison.values import errors, json_text
from airflow_poison.values.errors import PlanStateError, PoisonError

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator
    from contextlib import AbstractContextManager

    from airflow_poison.desk.plans import Plan, PlanView
    from airflow_poison.desk.selection import Selection
    from airflow_poison.queue import Queue
    from airflow_poison.store.queue_table import QueueTable
    from airflow_poison.ui.posts import ActionRequest, Applied, Asked, OfPlan, OnQueue, Planned

log = logging.getLogger(__name__)

BAD, NOT_THERE, CHANGED, UNREADABLE = 400, 404, 409, 503
STATUSES: dict[int, tuple[type[PoisonError], ...]] = {
    UNREADABLE: (errors.QueryTimeoutError,),
    BAD: (errors.SettingError, errors.InputError, errors.QueryError, errors.QueueNotFoundError, errors.QueueNameError),
    NOT_THERE: (errors.MessageNotFoundError, errors.PlanNotFoundError),
    CHANGED: (
        errors.PlanStateError,
        errors.MessageClaimedError,
        errors.DecisionOutdatedError,
        errors.ClaimLostError,
        errors.ConversationError,
        errors.QueueHaltedError,
        errors.SystemChangeError,
    ),
}
"""Errors whose text people may see, by their statuses; of a queue that is not there, the one that messages are sent to.

Other errors name paths, so the answer to a change has the same text as the answer to a read.
"""

AT_ONCE = 2
"""So many plans are applied or undone at the same time in each worker of the API server."""
MOST = 20
"""So many go on, wait for their turn, or wait for passes."""
AGAIN_SECONDS = 10.0
"""After so long a plan is tried again that waits for passes: they have claimed the rest of its messages, or have to receive its canary."""
REMEMBERED = 100
_WAITS = frozenset({PlanState.RUNNING.value, PlanState.CANARY.value})

Key = tuple[str, str, str]
"""Connection, queue, plan."""
Work = Callable[[Callable[[], bool]], "PlanView"]
"""Goes on with a plan until the function that it is given says that the server ends; returns the plan."""


@dataclass(slots=True)
class _Task:
    work: Work
    turn: int
    state: str = "waiting"
    timer: Timer | None = None


@dataclass(slots=True, eq=False)
class Applies:
    """What goes on, by plan.

    :param again: seconds until a plan is tried again that waits for passes.
    """

    again: float = AGAIN_SECONDS
    _tasks: dict[Key, _Task] = field(default_factory=dict)
    _errors: dict[Key, str] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)
    _stop: Event = field(default_factory=Event)
    _turns: int = 0
    _pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(AT_ONCE, "poison-apply"))

    @property
    def full(self) -> bool:
        """Whether no further plan is taken."""
        return len(self._tasks) >= MOST

    def begin(self, key: Key, work: Work) -> None:
        """Go on with a plan as soon as it is its turn; nothing happens when this server does so already."""
        with self._lock:
            if key in self._tasks or self._stop.is_set():
                return
            self._errors.pop(key, None)
            self._turns += 1
            self._tasks[key] = _Task(work, self._turns)
            self._pool.submit(self._run, key)

    def position(self, key: Key) -> dict[str, object]:
        """Return what this server does with a plan: ``running``, ``waiting`` (behind so many), ``later`` (for passes), or nothing; its last error."""
        with self._lock:
            task = self._tasks.get(key)
            before = 0 if task is None else sum(each.state == "waiting" and each.turn < task.turn for each in self._tasks.values())
            return {"state": "" if task is None else task.state, "before": before, "error": self._errors.get(key, "")}

    def close(self) -> None:
        """End everything soon; what is begun is ended with its chunk."""
        self._stop.set()
        with self._lock:
            for task in self._tasks.values():
                if task.timer is not None:
                    task.timer.cancel()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _run(self, key: Key) -> None:
        with self._lock:
            task = self._tasks[key]
            task.state = "running"
        state, error = "", ""
        try:
            state = task.work(self._stop.is_set).state
        except PoisonError as refused:
            log.warning("Plan %s of queue %r, connection %r, does not go on: %s", key[2], key[1], key[0], refused)
            error = f"{type(refused).__name__}. The log of the API server says why."
        except Exception as failed:
            log.exception("Plan %s of queue %r, connection %r, does not go on", key[2], key[1], key[0])
            error = f"{type(failed).__name__}. The log of the API server says why."
        with self._lock:
            if state in _WAITS and not self._stop.is_set():
                task.state, task.timer = "later", Timer(self.again, self._once_more, [key])
                task.timer.daemon = True
                task.timer.start()
                return
            del self._tasks[key]
            if error:
                self._errors[key] = error
                while len(self._errors) > REMEMBERED:
                    self._errors.pop(next(iter(self._errors)))

    def _once_more(self, key: Key) -> None:
        with self._lock:
            if key in self._tasks and not self._stop.is_set():
                self._turns += 1
                self._tasks[key].state, self._tasks[key].turn = "waiting", self._turns
                self._pool.submit(self._run, key)


_FULL = "The API server applies as many plans as it can at this time. Nothing was done; try again when one has ended."
_OF_CODE = (
    "edits with a function run where tasks run, not in the API server: use QueueHook, QueueRedriveOperator or 'airflow poison redrive'; or edit with "
    "a patch"
)


_going_on: list[Applies] = []


def applies() -> Applies:
    """Return what this process applies."""
    if not _going_on:
        _going_on.append(Applies())
    return _going_on[0]


def end() -> None:
    """End what this process applies, with the chunks that are begun."""
    while _going_on:
        _going_on.pop().close()


# What was read of a version does not change; the page asks for it every 15 seconds, for everybody who looks.

LIMITS = Limits(memory="512MB", threads=THREADS, seconds=20.0, only_plain=True)
"""What a query may take in the API server."""
MOST_KEPT = 64
_kept: OrderedDict[Hashable, dict[str, object]] = OrderedDict()
_kept_lock = Lock()


def _of_version(table: QueueTable, question: Hashable, ask: Callable[[], dict[str, object]], what: str) -> dict[str, object]:
    """Return the answer to a question about the newest version of a queue, from memory where it was asked before. Raises LargeReadError.

    :param what: it is, in words.
    """
    version = table.snapshot().version
    mark = table.mark(version)
    key = (table.uri, version, mark, question)
    with _kept_lock:
        if mark is not None and key in _kept:
            _kept.move_to_end(key)
            return _kept[key]
    large(what)
    with limited(LIMITS):
        found = ask()
    with _kept_lock:
        if mark is not None and found["version"] == version:
            _kept[key] = found
            while len(_kept) > MOST_KEPT:
                _kept.popitem(last=False)
    return found


# A plan that was shown is applied as it is: a million messages take seconds to be found again.

MOST_PLANNED, MOST_PLANNED_BYTES, PLANNED_SECONDS = 4, 32 * 1024 * 1024, 900.0
"""The last plan of so many people is kept, of so many bytes in all, for so long. Others are made again when they are applied."""
_planned: OrderedDict[str, tuple[Hashable, float, Plan]] = OrderedDict()


def _question(queue: Queue, given: Planned, version: int) -> Hashable:
    """Return what a plan was asked for: equal questions have equal plans. None where a version is not known from another one of the same number."""
    mark = queue.reading.mark(version)
    asked = json.dumps([given.selection, _values(given.action), given.limit], sort_keys=True, default=str)
    return None if mark is None else (queue.reading.uri, version, mark, asked)


def _keep(who: str, question: Hashable, planned: Plan) -> None:
    with _kept_lock:
        _planned.pop(who, None)
        if question is not None and planned.view.messages and planned.members.nbytes <= MOST_PLANNED_BYTES:
            _planned[who] = question, time.monotonic() + PLANNED_SECONDS, planned
        while len(_planned) > MOST_PLANNED or sum(each.members.nbytes for *_, each in _planned.values()) > MOST_PLANNED_BYTES:
            _planned.popitem(last=False)


def _kept_plan(who: str, question: Hashable) -> Plan | None:
    """Return the plan that was shown; it is kept no longer."""
    with _kept_lock:
        asked, until, planned = _planned.pop(who, (None, 0.0, None))
        return planned if asked == question and time.monotonic() < until else None


@contextmanager
def asking(conn_id: str, name: str, who: str | None = None) -> Iterator[Queue]:
    """Open a queue, for ``who`` to change it; errors of ``STATUSES`` become what people see: their text, without the place of the store.

    Raises NotThereError, RefusedError and NotReadableError.
    """
    with open_queue(conn_id, name, who) as queue:
        try:
            yield queue
        except PoisonError as error:
            status = next((status for status, kinds in STATUSES.items() if isinstance(error, kinds)), None)
            if status is None:
                raise
            log.warning("A change was refused: %s", error)
            raise RefusedError(status, str(error).replace(queue.store.tables.uri, "the store")) from error


# Reading ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Page:
    """Which of the selected messages are shown, in the order of a column."""

    offset: int
    limit: int
    order: str
    desc: bool


def messages(conn_id: str, name: str, place: str | None, selection: str, page: Page) -> dict[str, object]:
    """Return a page of the messages of a selection, without their bodies.

    :param place: the sub-queue, where the selection does not say it.
    :param selection: JSON.
    """

    def ask() -> dict[str, object]:
        found = queue.find(wanted, offset=page.offset, limit=page.limit, order=page.order, descending=page.desc)
        rows = [shown(row.without_body()) for row in found.messages]
        return {"version": found.version, "messages": rows, "total": found.total, "more": max(0, found.total - page.offset - len(rows))}

    with asking(conn_id, name) as queue:
        wanted = _selection(selection, place)
        where = None if wanted.sub_queue is None else wanted.sub_queue.value
        answer = _of_version(queue.reading, ("messages", _text(wanted), page), ask, f"messages of queue {name!r} {wanted}")
        return {"conn_id": conn_id, "queue": name, "sub_queue": where, **answer}


def samples(conn_id: str, name: str, selection: str, limit: int) -> dict[str, object]:
    """Return some messages of a selection with their bodies, without what the queue hides."""
    with asking(conn_id, name) as queue:
        wanted = _selection(selection)

        def ask() -> dict[str, object]:
            found = queue.find(wanted, limit=limit)
            rows = queue.look_up([row.lookup_id for row in found.messages])
            return {"version": found.version, "samples": [with_body(row) for row in rows], "total": found.total}

        return {
            "conn_id": conn_id,
            "queue": name,
            **_of_version(queue.reading, ("samples", _text(wanted), limit), ask, f"samples of queue {name!r} {wanted}"),
        }


@dataclass(frozen=True, slots=True)
class Listed:
    """Which error groups are shown, and in which order.

    :param since: groups that were first seen then or later are new; None: in the last day.
    """

    order: str
    desc: bool
    search: str
    limit: int
    since: datetime | None


def groups(conn_id: str, name: str, selection: str, listed: Listed) -> dict[str, object]:
    """Return the error groups of a selection."""
    from airflow_poison.desk.queries import NEW

    def ask() -> dict[str, object]:
        return queue.groups(wanted, limit=listed.limit, order=listed.order, descending=listed.desc, search=listed.search).to_dict()

    with asking(conn_id, name) as queue:
        wanted = _selection(selection)
        question = ("groups", _text(wanted), replace(listed, since=None))
        answer = _of_version(queue.reading, question, ask, f"error groups of queue {name!r} {wanted}")
        return {"conn_id": conn_id, **answer, "groups": _marked(answer["groups"], listed.since or queue.clock.now() - NEW)}


def _marked(found: Any, since: datetime) -> list[dict[str, Any]]:
    """Return groups with whether they are new now: what is kept of a version may be older."""
    return [group | {"new": bool(group["first_seen"]) and datetime.fromisoformat(group["first_seen"]) >= since} for group in found]


def plans(conn_id: str, name: str) -> dict[str, object]:
    """Return the recorded plans of a queue, the newest first."""
    with open_queue(conn_id, name) as queue:
        return {"conn_id": conn_id, "queue": name, "plans": [_plain(conn_id, each) for each in queue.plans()]}


def plan(conn_id: str, name: str, plan_id: str) -> dict[str, object]:
    """Return a recorded plan, what this server does with it, and how its canary fares as long as that decides whether it goes on."""
    with asking(conn_id, name) as queue:
        return _plain(conn_id, queue.find_plan(plan_id)) | {"canary_seen": _canary_seen(queue.reading, plan_id)}


def _canary_seen(table: QueueTable, plan_id: str) -> dict[str, object] | None:
    """Return how many messages of a plan's canary were settled, have failed by which errors, and wait; None: there is none, or it is decided."""
    from airflow_poison.desk.plans import OPEN, canary_errors, judged, stored

    found = stored(table, plan_id)
    if found.record.get("canary") is None or found.canary_passed or found.state not in OPEN:
        return None

    def ask() -> dict[str, object]:
        seen = judged(table, found)
        errors = [each.to_dict() for each in canary_errors(table, seen.again)]
        return {"version": version, "settled": seen.settled, "failed": seen.failed, "waiting": seen.waiting, "errors": errors}

    version = table.snapshot().version
    return _of_version(table, ("canary", plan_id), ask, f"the canary of plan {plan_id}")


def _plain(conn_id: str, view: PlanView) -> dict[str, object]:
    return view.to_dict() | {"server": applies().position((conn_id, view.queue, view.plan))}


def _selection(text: str, place: str | None = None) -> Selection:
    """Return the selection of a query's parameter. Raises RefusedError, SettingError."""
    from airflow_poison.desk.selection import Selection

    expected = 'expected an object, for example {"sub_queue": "poison"}.'
    try:
        found = json_text.natural_values(text or "{}")
    except json_text.JsonError as error:
        raise RefusedError(BAD, f"selection={text[:100]!r} is no JSON: {error}; {expected}") from error
    if not isinstance(found, dict):
        raise RefusedError(BAD, f"selection={str(found)[:100]!r}: {expected}")
    return Selection.from_dict(found if place is None else {"sub_queue": place} | found)


def _text(selection: Selection) -> str:
    return json.dumps(selection.to_dict(), sort_keys=True)


# Acting: each function has the name of its path, or says which ----------------------------------------------------------


def changing(asked: Asked[Any]) -> AbstractContextManager[Queue]:
    """Open the queue of a request for who has sent it."""
    return asking(asked.conn_id, asked.fields.queue, asked.who)


def enable(asked: Asked[OnQueue]) -> dict[str, object]:
    """Let a queue receive again; what was sent to it meanwhile arrives."""
    with changing(asked) as queue:
        return queue.enable(reason=asked.fields.reason).to_dict()


def disable(asked: Asked[OnQueue]) -> dict[str, object]:
    """Set a queue to OFF."""
    with changing(asked) as queue:
        return queue.disable(asked.fields.reason).to_dict()


def dry_run(asked: Asked[Planned]) -> dict[str, object]:
    """Say what an action would do to a selection's messages (``plan``); nothing is written."""
    given = asked.fields
    with asking(asked.conn_id, given.queue) as queue, limited(LIMITS):
        planned = queue.planned(given.selection, _values(given.action), limit=given.limit)
        _keep(asked.who, _question(queue, given, planned.view.version), planned)
        return planned.view.to_dict() | {"queue_id": queue.reading.identity()}


def begin(asked: Asked[Applied]) -> dict[str, object]:
    """Record the plan for the version that was shown, and begin to apply it (``apply``); what has changed since then is left out."""
    if applies().full:
        raise NotReadableError(_FULL)
    given = asked.fields
    pace: dict[str, Any] = {"rate": given.rate, "chunk": given.chunk, "canary": None if given.canary is None else given.canary.model_dump()}
    with changing(asked) as queue:
        if given.queue_id not in {"", queue.reading.identity()}:
            raise PlanStateError(
                f"Queue {given.queue!r} was removed and declared anew after this plan was shown. Nothing was done; make the plan anew."
            )
        shown_before = _kept_plan(asked.who, _question(queue, given, given.version))
        with limited(LIMITS):
            if shown_before is None:
                action = _values(given.action)
                plan_id = queue.record(given.selection, action, limit=given.limit, reason=given.reason, version=given.version, **pace)
            else:
                plan_id = queue.record_plan(shown_before, reason=given.reason, **pace)
        return _begun(asked, queue, plan_id, lambda stop: queue.apply(plan_id, stop=stop))


def pause(asked: Asked[OfPlan]) -> dict[str, object]:
    """Let nothing more become of a plan until it is resumed."""
    with changing(asked) as queue:
        return _plain(asked.conn_id, queue.pause(asked.fields.plan, asked.fields.reason))


def resume(asked: Asked[OfPlan]) -> dict[str, object]:
    """Go on with a plan that is paused, that its canary has stopped, or whose process has ended."""
    plan_id, reason = asked.fields.plan, asked.fields.reason
    with changing(asked) as queue:
        view = queue.find_plan(plan_id)
        if view.action.function:
            raise RefusedError(CHANGED, f"Plan {plan_id!r} cannot go on here: {_OF_CODE}.")
        if view.state == PlanState.UNDOING.value:
            return _begun(asked, queue, plan_id, lambda stop: queue.undo(plan_id, reason, stop=stop))
        if view.state not in _WAITS:
            queue.resume(plan_id, reason, apply=False)
        return _begun(asked, queue, plan_id, lambda stop: queue.apply(plan_id, stop=stop))


def cancel(asked: Asked[OfPlan]) -> dict[str, object]:
    """End a plan; what it has done stays done."""
    with changing(asked) as queue:
        return _plain(asked.conn_id, queue.cancel(asked.fields.plan, asked.fields.reason))


def undo(asked: Asked[OfPlan]) -> dict[str, object]:
    """Begin to take back what a plan has done to messages that were not received, moved or edited since."""
    plan_id, reason = asked.fields.plan, asked.fields.reason
    with changing(asked) as queue:
        view = queue.find_plan(plan_id)
        if not view.undoable or view.state == PlanState.UNDONE.value:
            why = "it has been undone" if view.undoable else "its messages are in other queues, and can be moved back only from there"
            raise RefusedError(CHANGED, f"Plan {plan_id!r} of queue {queue.name!r} cannot be undone: {why}. Nothing has changed.")
        return _begun(asked, queue, plan_id, lambda stop: queue.undo(plan_id, reason, stop=stop))


def _begun(asked: Asked[Any], queue: Queue, plan_id: str, work: Work) -> dict[str, object]:
    """Begin to go on with a plan, and return it."""
    applies().begin((asked.conn_id, queue.name, plan_id), work)
    return _plain(asked.conn_id, queue.find_plan(plan_id))


def _values(action: ActionRequest) -> dict[str, Any]:
    """Return the values of a request's action; refuses one that would run code by a name from the request. Raises RefusedError."""
    if action.function:
        raise RefusedError(BAD, f"function={action.function[:100]!r}: {_OF_CODE}.")
    return action.model_dump(exclude_unset=True)
