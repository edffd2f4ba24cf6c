"""Verbs of a hook on many messages: find and group them, plan what is to become of them, apply, pause, resume, cancel and undo it."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, TypeAlias

from airflow_poison.hooks.connection import actor_here
from airflow_poison.values.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import pyarrow as pa

    from airflow_poison.desk.actions import PlanAction
    from airflow_poison.desk.found import FindResult, GroupsResult
    from airflow_poison.desk.plans import Canary, PlanView
    from airflow_poison.desk.selection import Selection
    from airflow_poison.store import QueueStore
    from airflow_poison.store.queue_table import QueueTable

    SelectionLike: TypeAlias = Selection | Mapping[str, object] | str | None
    ActionLike: TypeAlias = PlanAction | Mapping[str, object] | str
    CanaryLike: TypeAlias = Canary | Mapping[str, object] | int | str | None

NOT_AT_ALL = timedelta(0)


class DeskVerbs:
    """Verbs on the messages of a selection. A selection is a ``Selection``, a dict of its parameters, or that dict as JSON text; None: all poison."""

    if TYPE_CHECKING:  # the hook has them

        def store(self) -> QueueStore: ...  # noqa: D102

        def queue_to_read(self, queue_name: str) -> QueueTable: ...  # noqa: D102

    def groups(self, queue_name: str, selection: SelectionLike = None, *, limit: int = 1_000) -> GroupsResult:
        """Count the messages of a selection by what they failed with, the largest group first. Raises SettingError, QueryError.

        :param limit: at most so many groups.
        """
        from airflow_poison.desk.found import groups
        from airflow_poison.desk.given import selection_of

        return groups(self.queue_to_read(queue_name), selection_of(selection), SystemClock(), limit=limit)

    def find(
        self,
        queue_name: str,
        selection: SelectionLike = None,
        *,
        offset: int = 0,
        limit: int = 50,
        order: str = "lookup_id",
        descending: bool = False,
    ) -> FindResult:
        """Return a page of the messages of a selection, without their bodies. Raises SettingError, QueryError.

        :param limit: at most 200.
        :param order: ``lookup_id``, ``enqueued_at``, ``move_count``, ``abort_count``, ``crash_count``, ``error_type``, ``message_type`` or
            ``group_id``.
        """
        from airflow_poison.desk.found import find
        from airflow_poison.desk.given import selection_of

        table = self.queue_to_read(queue_name)
        return find(table, selection_of(selection), offset=offset, limit=limit, order=order, descending=descending)

    def query(self, queue_name: str, sql: str, *, limit: int | None = None) -> pa.Table:
        """Answer a SELECT on ``messages``, all of the queue, and its ``events``. Raises QueryError.

        :param limit: at most so many rows.
        """
        from airflow_poison.desk.found import query

        return query(self.queue_to_read(queue_name), sql, limit=limit)

    def plan(self, queue_name: str, selection: SelectionLike = None, action: ActionLike = "put_back", *, limit: int | None = None) -> PlanView:
        """Say what would become of the messages of a selection: how many, of which groups, with samples. Writes nothing.

        :param action: a ``PlanAction``, a dict of its parameters, or its verb: ``put_back``, ``move``, ``send_to``, ``remove``, ``edit``.
        :param limit: only so many messages, those with the lowest lookup ids.
        Raises SettingError, QueryError.
        """
        from airflow_poison.desk.given import action_of, selection_of
        from airflow_poison.desk.plans import plan

        return plan(self.queue_to_read(queue_name), selection_of(selection), action_of(action), SystemClock(), limit=limit).view

    def record(
        self,
        queue_name: str,
        selection: SelectionLike = None,
        action: ActionLike = "put_back",
        *,
        limit: int | None = None,
        rate: int | None = None,
        chunk: int | None = None,
        canary: CanaryLike = None,
        reason: str = "",
        key: str = "",
    ) -> str:
        """Plan, and record the plan in the queue, so that ``apply`` does what it says; return its id. Parameters as of ``redrive``."""
        from airflow_poison.desk.actions import Verb
        from airflow_poison.desk.applying import check_target
        from airflow_poison.desk.given import action_of, canary_of, selection_of
        from airflow_poison.desk.plans import find_plan, id_of, plan, record
        from airflow_poison.values.errors import PlanNotFoundError

        wanted, act, first = selection_of(selection), action_of(action), canary_of(canary)
        store, clock = self.store(), SystemClock()
        table = store.open(queue_name)
        if key:
            try:
                return find_plan(table, id_of(key)).plan
            except PlanNotFoundError:
                pass
        if act.verb is Verb.SEND_TO and act.target:
            check_target(act.target, table, store)
        planned = plan(table, wanted, act, clock, limit=limit)
        return record(table, planned, clock, who=actor_here(), reason=reason, rate=rate, chunk=chunk, canary=first, key=key)

    def redrive(
        self,
        queue_name: str,
        selection: SelectionLike = None,
        action: ActionLike = "put_back",
        *,
        limit: int | None = None,
        rate: int | None = None,
        chunk: int | None = None,
        canary: CanaryLike = None,
        reason: str = "",
        key: str = "",
        patience: timedelta | None = NOT_AT_ALL,
        progress: Callable[[PlanView], object] = lambda _view: None,
        stop: Callable[[], bool] = lambda: False,
    ) -> PlanView:
        """Plan, record and apply: do something with the messages of a selection as they are now, each once. Return the plan.

        :param action: see ``plan``.
        :param limit: only so many messages, those with the lowest lookup ids.
        :param rate: messages a second, at most. :param chunk: messages of one commit.
        :param canary: so many messages go first, or a dict with ``messages`` and ``share``; the others follow when at least the share was settled.
        :param reason: why, for the events.
        :param key: a second call with the same key goes on with the same plan.
        :param patience: as of ``apply``.
        :param progress: called with the plan after each chunk. :param stop: asked before each chunk.
        Raises SettingError, QueryError, QueueNotFoundError, PlanStateError.
        """
        plan = self.record(queue_name, selection, action, limit=limit, rate=rate, chunk=chunk, canary=canary, reason=reason, key=key)
        return self.apply(queue_name, plan, patience=patience, progress=progress, stop=stop)

    def apply(
        self,
        queue_name: str,
        plan: str,
        *,
        patience: timedelta | None = NOT_AT_ALL,
        progress: Callable[[PlanView], object] = lambda _view: None,
        stop: Callable[[], bool] = lambda: False,
    ) -> PlanView:
        """Apply the rest of a recorded plan, and return it. Each message is changed once, however often this is called.

        :param patience: how long to wait for passes that have claimed some of its messages, or that receive its canary; None: without an end.
        Raises PlanNotFoundError, PlanStateError for a plan that was cancelled or undone.
        """
        from airflow_poison.desk.applying import follow

        store = self.store()
        seconds = None if patience is None else patience.total_seconds()
        return follow(store.open(queue_name), plan, SystemClock(), store=store, patience=seconds, progress=progress, stop=stop)

    def plans(self, queue_name: str) -> tuple[PlanView, ...]:
        """Return the recorded plans of a queue, the newest first."""
        from airflow_poison.desk.plans import plans

        return plans(self.queue_to_read(queue_name))

    def find_plan(self, queue_name: str, plan: str) -> PlanView:
        """Return a recorded plan. Raises PlanNotFoundError."""
        from airflow_poison.desk.plans import find_plan

        return find_plan(self.queue_to_read(queue_name), plan)

    def pause(self, queue_name: str, plan: str, reason: str = "") -> PlanView:
        """Let nothing more become of a plan until it is resumed. Raises PlanNotFoundError, PlanStateError."""
        from airflow_poison.desk.plans import pause

        return pause(self.store().open(queue_name), plan, SystemClock(), who=actor_here(), reason=reason)

    def resume(
        self,
        queue_name: str,
        plan: str,
        reason: str = "",
        *,
        patience: timedelta | None = NOT_AT_ALL,
        progress: Callable[[PlanView], object] = lambda _view: None,
        stop: Callable[[], bool] = lambda: False,
    ) -> PlanView:
        """Go on with a plan that is paused, or whose process has died, and apply it; one that its canary has stopped goes on without it.

        Parameters as of ``apply``. Raises PlanNotFoundError, PlanStateError.
        """
        from airflow_poison.desk.plans import resume

        resume(self.store().open(queue_name), plan, SystemClock(), who=actor_here(), reason=reason)
        return self.apply(queue_name, plan, patience=patience, progress=progress, stop=stop)

    def cancel(self, queue_name: str, plan: str, reason: str = "") -> PlanView:
        """End a plan; what it has done stays done. Raises PlanNotFoundError, PlanStateError."""
        from airflow_poison.desk.plans import cancel

        return cancel(self.store().open(queue_name), plan, SystemClock(), who=actor_here(), reason=reason)

    def undo(
        self,
        queue_name: str,
        plan: str,
        reason: str = "",
        *,
        progress: Callable[[PlanView], object] = lambda _view: None,
        stop: Callable[[], bool] = lambda: False,
    ) -> PlanView:
        """Take back what a plan has done to messages that were not received, moved or edited since; return it with ``done``: what stays changed.

        Raises PlanNotFoundError, and PlanStateError for a plan whose messages were sent to other queues.
        """
        from airflow_poison.desk.applying import undo

        table = self.store().open(queue_name)
        return undo(table, plan, SystemClock(), who=actor_here(), reason=reason, progress=progress, stop=stop)
