"""Operators on many messages: redrive what a selection has, count it by error group, query it."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import conf
from airflow.sdk.exceptions import AirflowFailException

from airflow_poison.hooks.actor import actor_here
from airflow_poison.hooks.poison import QueueHook
from airflow_poison.links.queue import EventsLink, PoisonLink, QueueLink
from airflow_poison.operators.base import PATIENCE_SECONDS, QueueOperator, whole
from airflow_poison.operators.identity import task_key
from airflow_poison.triggers.plan import ENDED, PlanTrigger
from airflow_poison.values.clock import SystemClock
from airflow_poison.values.errors import PlanStateError, recalled
from airflow_poison.values.texts import Plain, visible

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow.sdk import Context

    from airflow_poison.desk.actions import PlanAction
    from airflow_poison.desk.plans import Canary, PlanView
    from airflow_poison.desk.selection import Selection
    from airflow_poison.store.queue_table import QueueTable

SHORT = 10.0
"""Seconds for which it is not worth the while to defer."""
_TICK = 0.1
TOLD = 10.0
"""Seconds between two lines of progress in the log."""


class QueueRedriveOperator(QueueOperator):
    """Do something with the messages of a selection, each once: put back, move, send to another queue, remove, edit. Starts no JVM.

    What is selected is the queue as it is when the task runs first; it is recorded there as a plan of this task instance. A task that is killed
    anywhere, retried or cleared goes on with the same plan. With ``canary`` some messages of each error group go first; the others follow when passes
    have settled at least the given share of them. Otherwise the plan stops, and the task fails without retries.

    A worker that dies leaves the plan as it is. Marking the task, clearing it, or its time-out pauses the plan; the task goes on with it when it runs
    again. While the plan is paused by a person or another task, the task waits; when the plan was cancelled, the task fails.

    Returns the plan: ``{"queue", "plan", "version", "action", "selection", "at", "messages", "claimed", "groups", "samples", "state", "done",
    "skipped", "who", "reason", "rate", "chunk", "canary", "undoable"}``.

    :param selection: conditions by name, as ``Selection`` has them, a ``Selection``, or JSON text; None: all poison. (templated)
    :param action: ``put_back``, ``remove``, or a dict with ``verb`` and what it needs: ``{"verb": "move", "target": "main"}``,
        ``{"verb": "send_to", "target": "orders"}``, ``{"verb": "edit", "patch": {...}}``; or JSON text. (templated)
    :param canary: so many messages go first, or ``{"messages": 100, "share": 0.95}``; None: all at once. (templated)
    :param rate: messages a second, at most; None: as fast as it goes. (templated)
    :param limit: only so many messages, those with the lowest lookup ids; None: all. (templated)
    :param chunk: messages of one commit; None: 50,000, or what ``rate`` allows in a second. (templated)
    :param reason: why, for the events. (templated)
    :param deferrable: wait for passes, and for more than 10 seconds between two chunks, in the triggerer; default: Airflow's ``[operators]
        default_deferrable``.
    :param poll_interval: seconds between two looks at the queue while it waits.
    """

    template_fields: Sequence[str] = ("queue_name", "selection", "action", "canary", "rate", "limit", "chunk", "reason", "conn_id")
    ui_color = "#fdf3d8"
    operator_extra_links = (QueueLink(), PoisonLink(), EventsLink())

    def __init__(
        self,
        *,
        selection: Selection | Mapping[str, Any] | str | None = None,
        action: PlanAction | Mapping[str, Any] | str = "put_back",
        canary: Canary | Mapping[str, Any] | int | str | None = None,
        rate: int | str | None = None,
        limit: int | str | None = None,
        chunk: int | str | None = None,
        reason: str = "",
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        poll_interval: float = 5.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.selection = as_given(selection)
        self.action = as_given(action)
        self.canary = as_given(canary)
        self.rate = rate
        self.limit = limit
        self.chunk = chunk
        self.reason = reason
        self.deferrable = deferrable
        self.poll_interval = poll_interval
        self._ended = False
        self._pause: Any = None
        self._told = 0.0

    def execute(self, context: Context) -> dict[str, Any]:
        """Do it, or what is left of it.

        Raises SettingError, QueryError, QueueNotFoundError, PlanStateError when the task was ended; AirflowFailException for a plan that its canary
        has stopped, or that was cancelled or undone.
        """
        from airflow_poison.desk.plans import paused_by, resume
        from airflow_poison.store.files import PlanState

        hook, clock, who = QueueHook(self.conn_id), SystemClock(), actor_here()
        table = hook.store().open(self.queue_name)
        hook.import_here()
        plan = hook.record(
            self.queue_name,
            self.selection,
            self.action,
            limit=number("limit", self.limit),
            rate=number("rate", self.rate),
            chunk=number("chunk", self.chunk),
            canary=self.canary,
            reason=self.reason,
            key=task_key(context, hook, table.uri, "redrive"),
        )
        view = hook.find_plan(self.queue_name, plan)
        self.log.info("Queue %r, plan %s: %s %s messages, %s.", self.queue_name, plan, view.action.verb.value, f"{view.messages:,}", view.state)
        if view.state == PlanState.PAUSED and paused_by(table, plan) == who:
            resume(table, plan, clock, who=who, reason="the task runs again")
        self._pause = lambda: pause_when_ended(hook, self.queue_name, plan, who)
        try:
            view = self._followed(hook, table, plan, who)
        except PlanStateError:  # it was cancelled or undone
            view = hook.find_plan(self.queue_name, plan)
        return self._result(table, view)

    def execute_complete(self, context: Context, event: Mapping[str, Any]) -> dict[str, Any]:
        """Go on. Raises the error with which the queue could not be looked at."""
        if "error" in event:
            raise recalled(event["error"], event["message"])
        return self.execute(context)

    def on_kill(self) -> None:
        """Pause the plan. A signal may have interrupted a commit, so another thread does it; a chunk that is being committed is the last one."""
        self._ended = True
        if self._pause is not None:
            pausing = threading.Thread(target=self._pause, name="poison-pause", daemon=True)
            pausing.start()
            pausing.join(PATIENCE_SECONDS)

    def _followed(self, hook: QueueHook, table: QueueTable, plan: str, who: str) -> PlanView:
        from airflow_poison.desk.applying import apply
        from airflow_poison.desk.following import follow
        from airflow_poison.desk.plans import find_plan
        from airflow_poison.store.files import PlanState

        waiting = {PlanState.RUNNING, PlanState.CANARY, PlanState.PAUSED}
        clock, store = SystemClock(), hook.store()

        def stop() -> bool:
            return self._ended

        if not self.deferrable:
            return follow(table, plan, clock, store=store, progress=self._tell, stop=stop, wait=self._wait, through_pauses=True)
        version, at = table.snapshot().version, None
        try:
            view = apply(table, plan, clock, store=store, progress=self._tell, stop=stop, wait=self._wait_or_defer)
        except _LongWaitError as wait:
            view, version, at = find_plan(table, plan), -1, (datetime.now(UTC) + timedelta(seconds=wait.seconds)).isoformat()
        if view.state in waiting and not stop():
            name, conn_id, interval = self.queue_name, self.conn_id, self.poll_interval
            trigger = PlanTrigger(name, plan, version=version, not_before=at, who=who, conn_id=conn_id, poll_interval=interval)
            self.defer(trigger=trigger, method_name="execute_complete")
        return view

    def _wait(self, seconds: float) -> None:
        """Sleep until the task is ended. A flag is looked at: the handler of a signal must not wait for the lock that an Event has."""
        end = time.monotonic() + seconds
        while not self._ended and (left := end - time.monotonic()) > 0:
            time.sleep(min(_TICK, left))

    def _wait_or_defer(self, seconds: float) -> None:
        if seconds > SHORT:
            raise _LongWaitError(seconds)
        self._wait(seconds)

    def _tell(self, view: PlanView) -> None:
        if time.monotonic() - self._told > TOLD:
            self._told = time.monotonic()
            self.log.info("Plan %s: %s of %s messages.", view.plan, f"{view.done:,}", f"{view.messages:,}")

    def _result(self, table: QueueTable, view: PlanView) -> dict[str, Any]:
        from airflow_poison.desk.plans import why_stopped
        from airflow_poison.store.files import PlanState

        if self._ended:
            raise PlanStateError(f"The task was ended; plan {view.plan!r} of queue {view.queue!r} goes on when it runs again.")
        if view.state == PlanState.STOPPED:
            anyway = (
                f"'airflow poison resume {view.queue} {view.plan}' goes on without a canary, 'undo' takes back messages that were not received since."
            )
            what = f"has stopped after {view.done:,} of {view.messages:,} messages: {why_stopped(table, view.plan)}"
            raise AirflowFailException(f"Plan {view.plan!r} of queue {view.queue!r} {what}. {anyway}")
        if view.state != PlanState.DONE:
            what = f"is {view.state} after {view.done:,} of {view.messages:,} messages"
            raise AirflowFailException(f"Plan {view.plan!r} of queue {view.queue!r} {what}; a new run of the DAG makes a new plan.")
        self.log.info("Plan %s: done %s, skipped %s that have changed since.", view.plan, f"{view.done:,}", f"{view.skipped:,}")
        return view.to_dict()


class _LongWaitError(BaseException):
    """The rate of a plan wants a long wait before the next chunk. It is no error of the plan.

    :param seconds: how long.
    """

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self.seconds = seconds


class QueueGroupsOperator(QueueOperator):
    """Count the messages of a selection by error group: messages that failed alike. Reads only; starts no JVM.

    Returns ``{"queue", "version", "at", "messages", "groups", "more"}``; a group has ``error`` (its id, for selections), ``kind``, ``type``,
    ``text``, ``messages``, ``share``, ``first_seen``, ``last_seen``, ``sample`` (a lookup id) and ``trend``.

    :param selection: conditions by name, as ``Selection`` has them, a ``Selection``, or JSON text; None: all poison. (templated)
    :param limit: the largest groups, so many; ``more`` says how many are left out.
    """

    template_fields: Sequence[str] = ("queue_name", "selection", "conn_id")
    ui_color = "#e3ecf7"
    operator_extra_links = (QueueLink(), PoisonLink())

    def __init__(self, *, selection: Selection | Mapping[str, Any] | str | None = None, limit: int = 100, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.selection = as_given(selection)
        self.limit = limit

    def execute(self, context: Context) -> dict[str, Any]:
        """Count them. Raises SettingError, QueryError, QueueNotFoundError."""
        del context
        found = QueueHook(self.conn_id).groups(self.queue_name, self.selection, limit=self.limit)
        for group in found.groups:
            self.log.info("%s: %s x %s: %s", group.error, f"{group.messages:,}", group.type, visible(group.text))
        return found.to_dict()


class QueueQueryOperator(QueueOperator):
    """Answer a SELECT on the messages of a queue and its events. Reads only; starts no JVM.

    ``messages`` has the columns of a queue and its JSON bodies, ``events`` what has happened. Returns ``{"queue", "columns", "rows", "more"}``: rows
    as dicts of JSON values.

    :param sql: the SELECT, for example ``select error_type, count(*) as messages from messages group by 1``. (templated)
    :param limit: at most so many rows; ``more`` says whether there are others.
    """

    template_fields: Sequence[str] = ("queue_name", "sql", "conn_id")
    template_fields_renderers = {"sql": "sql"}  # noqa: RUF012  (as Airflow's operators have it)
    ui_color = "#e3ecf7"
    operator_extra_links = (QueueLink(),)

    def __init__(self, *, sql: str, limit: int = 1_000, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.sql = sql
        self.limit = limit

    def execute(self, context: Context) -> dict[str, Any]:
        """Answer it. Raises QueryError, QueueNotFoundError."""
        del context
        from airflow_poison.desk.found import answer_as_dict

        return answer_as_dict(self.queue_name, QueueHook(self.conn_id).query(self.queue_name, self.sql, limit=self.limit + 1), self.limit)


def as_given(value: Any) -> Any:
    """Return what templates can be in: the plain values of a selection, an action or a canary."""
    return value.to_dict() if isinstance(value, Plain) else value


def number(name: str, given: int | str | None) -> int | None:
    """Return a whole number, or text of one; None for nothing. Raises SettingError."""
    return None if given is None or given == "" else whole(name, given)


def pause_when_ended(hook: QueueHook, queue_name: str, plan: str, who: str) -> None:
    """Pause a plan, as its task was ended; nothing happens when the plan has ended, too."""
    from airflow_poison.desk.plans import pause

    try:
        pause(hook.store().open(queue_name), plan, SystemClock(), who=who, reason=ENDED)
    except PlanStateError as error:  # it has ended, or was stopped
        hook.log.info("%s", error)
