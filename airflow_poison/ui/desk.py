"""The desk of a queue at the pages: messages of a selection, error groups, plans and their states; thin over the room `desk`.

Plans that this server applies or undoes: few at the same time, the others wait their turn. Everything that counts is in the queue's table.

When the server ends, a plan stays as far as it is, and can be resumed here or in a shell.
"""

from __future__ import annotations

import json
import logging
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Event, Lock, Timer
from typing import TYPE_CHECKING, Any

from airflow_poison.desk.sql import Limits, limited
from airflow_poison.store.files import PlanState
from airflow_poison.ui.changes import BAD, CHANGED, changing, refusing
from airflow_poison.ui.page_data import NotReadableError, RefusedError, opened, opened_store, shown
from airflow_poison.values.clock import SystemClock
from airflow_poison.values.errors import PoisonError

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping

    from airflow_poison.desk.actions import PlanAction
    from airflow_poison.desk.plans import PlanView
    from airflow_poison.desk.selection import Selection
    from airflow_poison.store import QueueStore
    from airflow_poison.store.queue_table import QueueTable

log = logging.getLogger(__name__)

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

    def told(self, key: Key) -> dict[str, object]:
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


_GOES_ON = frozenset({PlanState.RUNNING.value, PlanState.CANARY.value})
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

LIMITS = Limits(memory="512MB", seconds=20.0, only_plain=True)
"""What a query may take in the API server."""
MOST_KEPT = 64
_kept: OrderedDict[Hashable, dict[str, object]] = OrderedDict()
_kept_lock = Lock()


def _of_version(table: QueueTable, question: Hashable, ask: Callable[[], dict[str, object]]) -> dict[str, object]:
    """Return the answer to a question about the newest version of a queue, from memory where it was asked before."""
    version = table.snapshot().version
    mark = table.mark(version)
    key = (table.uri, version, mark, question)
    with _kept_lock:
        if mark is not None and key in _kept:
            _kept.move_to_end(key)
            return _kept[key]
    with limited(LIMITS):
        found = ask()
    with _kept_lock:
        if mark is not None and found["version"] == version:
            _kept[key] = found
            while len(_kept) > MOST_KEPT:
                _kept.popitem(last=False)
    return found


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

    :param place: the sub-queue, where the selection does not say it. :param selection: JSON.
    """
    from airflow_poison.desk.found import find

    def ask() -> dict[str, object]:
        found = find(table, wanted, offset=page.offset, limit=page.limit, order=page.order, descending=page.desc)
        rows = [shown(row.without_body()) for row in found.messages]
        return {"version": found.version, "messages": rows, "total": found.total, "more": max(0, found.total - page.offset - len(rows))}

    with opened(conn_id, name) as table, refusing(opened_store(conn_id)):
        wanted = _selection(selection, place)
        where = None if wanted.sub_queue is None else wanted.sub_queue.value
        return {"conn_id": conn_id, "queue": name, "sub_queue": where, **_of_version(table, ("messages", _text(wanted), page), ask)}


def groups(conn_id: str, name: str, selection: str) -> dict[str, object]:
    """Return the error groups of a selection."""
    from airflow_poison.desk.found import groups as counted

    with opened(conn_id, name) as table, refusing(opened_store(conn_id)):
        wanted = _selection(selection)
        return {"conn_id": conn_id, **_of_version(table, ("groups", _text(wanted)), lambda: counted(table, wanted, SystemClock()).to_dict())}


def plans(conn_id: str, name: str) -> dict[str, object]:
    """Return the recorded plans of a queue, the newest first."""
    from airflow_poison.desk.plans import plans as recorded

    with opened(conn_id, name) as table:
        return {"conn_id": conn_id, "queue": name, "plans": [_plain(conn_id, each) for each in recorded(table)]}


def plan(conn_id: str, name: str, plan_id: str) -> dict[str, object]:
    """Return a recorded plan, and what this server does with it."""
    from airflow_poison.desk.plans import find_plan

    with opened(conn_id, name) as table, refusing(opened_store(conn_id)):
        return _plain(conn_id, find_plan(table, plan_id))


def _plain(conn_id: str, view: PlanView) -> dict[str, object]:
    return view.to_dict() | {"server": applies().told((conn_id, view.queue, view.plan))}


def _selection(text: str, place: str | None = None) -> Selection:
    """Return the selection of a query's parameter. Raises RefusedError, SettingError."""
    try:
        found = json.loads(text or "{}")
    except (ValueError, RecursionError) as error:
        raise RefusedError(BAD, f'selection={text[:100]!r} is no JSON; expected an object, for example {{"sub_queue": "poison"}}.') from error
    return _selected({"sub_queue": place} | found if place is not None and isinstance(found, dict) else found)


def _text(selection: Selection) -> str:
    return json.dumps(selection.to_dict(), sort_keys=True)


def _selected(values: object) -> Selection:
    from airflow_poison.desk.selection import Selection

    if not isinstance(values, dict):
        raise RefusedError(BAD, f'selection={str(values)[:100]!r}: expected an object, for example {{"sub_queue": "poison"}}.')
    return Selection.from_dict(values)


# Acting -----------------------------------------------------------------------------------------------------------------


def dry_run(conn_id: str, name: str, selection: Mapping[str, Any], action: Mapping[str, Any], limit: int | None) -> dict[str, object]:
    """Say what an action would do to a selection's messages; nothing is written."""
    from airflow_poison.desk.plans import plan as planned

    store = opened_store(conn_id)
    with opened(conn_id, name) as table, refusing(store), limited(LIMITS):
        return planned(table, _selected(selection), _action(action, table, store), SystemClock(), limit=limit).view.to_dict()


def begin(
    conn_id: str,
    name: str,
    selection: Mapping[str, Any],
    action: Mapping[str, Any],
    *,
    version: int,
    limit: int | None,
    who: str,
    reason: str,
    pace: tuple[int | None, int | None],
    canary: Mapping[str, Any] | None,
) -> dict[str, object]:
    """Record the plan for the version that was shown, and begin to apply it; what has changed since then is left out.

    :param pace: messages a second, and of one commit.
    """
    from airflow_poison.desk.plans import find_plan, record
    from airflow_poison.desk.plans import plan as planned
    from airflow_poison.passes.declaration import Canary

    if applies().full:
        raise NotReadableError(_FULL)
    with changing(conn_id, name) as (table, store):
        first = None if canary is None else Canary(**canary)
        with limited(LIMITS):
            found = planned(table, _selected(selection), _action(action, table, store), SystemClock(), limit=limit, version=version)
        if not found.view.messages:
            raise RefusedError(CHANGED, f"No message of queue {name!r} is in the selection any more. Nothing was done; look at it again.")
        rate, chunk = pace
        plan_id = record(table, found, SystemClock(), who=who, reason=reason, rate=rate, chunk=chunk, canary=first)
        _go_on(conn_id, table, store, plan_id)
        return _plain(conn_id, find_plan(table, plan_id))


def pause(conn_id: str, name: str, plan_id: str, who: str, reason: str) -> dict[str, object]:
    """Let nothing more become of a plan until it is resumed."""
    from airflow_poison.desk.plans import pause

    with changing(conn_id, name) as (table, _):
        return _plain(conn_id, pause(table, plan_id, SystemClock(), who=who, reason=reason))


def resume(conn_id: str, name: str, plan_id: str, who: str, reason: str) -> dict[str, object]:
    """Go on with a plan that is paused, that its canary has stopped, or whose process has ended."""
    from airflow_poison.desk.plans import find_plan, resume

    with changing(conn_id, name) as (table, store):
        view = find_plan(table, plan_id)
        if view.action.function:
            raise RefusedError(CHANGED, f"Plan {plan_id!r} cannot go on here: {_OF_CODE}.")
        if view.state == PlanState.UNDOING.value:
            _take_back(conn_id, table, plan_id, who, reason)
        else:
            if view.state not in _GOES_ON:
                resume(table, plan_id, SystemClock(), who=who, reason=reason)
            _go_on(conn_id, table, store, plan_id)
        return _plain(conn_id, find_plan(table, plan_id))


def cancel(conn_id: str, name: str, plan_id: str, who: str, reason: str) -> dict[str, object]:
    """End a plan; what it has done stays done."""
    from airflow_poison.desk.plans import cancel

    with changing(conn_id, name) as (table, _):
        return _plain(conn_id, cancel(table, plan_id, SystemClock(), who=who, reason=reason))


def undo(conn_id: str, name: str, plan_id: str, who: str, reason: str) -> dict[str, object]:
    """Begin to take back what a plan has done to messages that were not received, moved or edited since."""
    from airflow_poison.desk.plans import find_plan

    with changing(conn_id, name) as (table, _):
        view = find_plan(table, plan_id)
        if not view.undoable or view.state == PlanState.UNDONE.value:
            why = "it has been undone" if view.undoable else "its messages are in other queues, and can be moved back only from there"
            raise RefusedError(CHANGED, f"Plan {plan_id!r} of queue {name!r} cannot be undone: {why}. Nothing has changed.")
        _take_back(conn_id, table, plan_id, who, reason)
        return _plain(conn_id, find_plan(table, plan_id))


def _go_on(conn_id: str, table: QueueTable, store: QueueStore, plan_id: str) -> None:
    from airflow_poison.desk.applying import apply

    applies().begin((conn_id, table.name, plan_id), lambda stop: apply(table, plan_id, SystemClock(), store=store, stop=stop))


def _take_back(conn_id: str, table: QueueTable, plan_id: str, who: str, reason: str) -> None:
    from airflow_poison.desk.applying import undo

    applies().begin((conn_id, table.name, plan_id), lambda stop: undo(table, plan_id, SystemClock(), who=who, reason=reason, stop=stop))


def _action(values: Mapping[str, Any], table: QueueTable, store: QueueStore) -> PlanAction:
    """Return the action of a request; refuses one that would run code by a name from the request, or that sends to a missing queue.

    Raises RefusedError, SettingError, QueueNotFoundError.
    """
    from airflow_poison.desk.actions import PlanAction, Verb
    from airflow_poison.desk.applying import check_target

    if values.get("function"):
        raise RefusedError(BAD, f"function={str(values['function'])[:100]!r}: {_OF_CODE}.")
    action = PlanAction.from_dict(values)
    if action.verb is Verb.SEND_TO and action.target:
        check_target(action.target, table, store)
    return action
