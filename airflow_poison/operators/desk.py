"""Operators on many messages: redrive what a selection has, count it by error group, query it.

QueueSendToKafkaOperator: move messages of a queue to a Kafka topic.

QueueRulesOperator: do what a queue's rules say with its poison, and ask people where a rule says so.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow.providers.standard.operators.hitl import HITLOperator
from airflow.sdk import conf
from airflow.sdk.exceptions import AirflowFailException

from airflow_poison.hooks.connection import found_connection
from airflow_poison.hooks.poison import QueueHook
from airflow_poison.lineage import Lineage, WithLineage, queue_uri
from airflow_poison.links import EventsLink, PoisonLink, QueueLink
from airflow_poison.notifications import AlertTargets, Targets
from airflow_poison.operators.ask import PARKS
from airflow_poison.operators.base import PATIENCE_SECONDS, QueueOperator, actor, lookup_ids_of, number, plan_line, subscriber, task_key
from airflow_poison.passes.declaration import Canary, Receive
from airflow_poison.sources.kafka import Kafka
from airflow_poison.store.files import PlanState
from airflow_poison.triggers import PlanTrigger, pause_when_ended
from airflow_poison.values.errors import InputError, PlanStateError, SettingError, recalled
from airflow_poison.values.texts import Plain, visible

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.sdk.execution_time.hitl import HITLUser

    from airflow_poison.desk.actions import PlanAction
    from airflow_poison.desk.plans import PlanView
    from airflow_poison.desk.rule_runs import RulesResult
    from airflow_poison.desk.rules import Rule
    from airflow_poison.desk.selection import Selection
    from airflow_poison.queue import Queue
    from airflow_poison.store.queue_table import QueueTable


class QueueRulesOperator(QueueOperator, HITLOperator):
    """Do what the rules of a queue say with its poison messages, as far as it is time. Starts no JVM.

    The first rule that a message meets has it, also while that rule waits. What rules put back, send or remove they do by recorded plans: a task
    that is killed is gone on with by the next one, and each message is done once. Where a rule asks, what it proposes is a paused plan and a required
    action in the Airflow UI, for users who may answer those; the task waits for them. A redrive for a new handler, where the queue is set so, goes on
    here, too.

    Returns ``{"queue", "version", "at", "dry_run", "messages", "unmatched", "rules", "continued"}``, of each rule ``{"rule", "verb", "messages",
    "now", "waiting", "plan", "state", "done"}``; with an answer also ``{"answer", "timed_out", "by"}``.

    :param rules: ``Rule``, or plain values of them, recorded in the queue in the place of those that it has; None: the recorded ones.
    :param dry_run: only say what each rule has and would take; nothing is written.
    :param wait: for people's answers; False: what a rule asks waits as a paused plan until it is resumed or cancelled.
    :param on_told: notifiers, or functions of the context, called for messages that ``tell`` rules report, for proposals,
        and when redrives for new handlers have ended.
    :param response_timeout: how long people may take; None: as long as they like. Then the plans stay paused, and the task succeeds.
    :param assigned_users: who may answer; None: all users with the right to.
    """

    template_fields: Sequence[str] = ("queue_name", "conn_id")
    ui_color = "#fdf3d8"
    operator_extra_links = (QueueLink(), PoisonLink(), EventsLink())

    def __init__(
        self,
        *,
        rules: Sequence[Rule | Mapping[str, Any]] | None = None,
        dry_run: bool = False,
        wait: bool = True,
        on_told: Targets = None,
        response_timeout: timedelta | None = None,
        assigned_users: HITLUser | list[HITLUser] | None = None,
        **kwargs: Any,
    ) -> None:
        from airflow_poison.desk.rules import checked_rules

        super().__init__(subject="", body="", options=["Leave them"], response_timeout=response_timeout, assigned_users=assigned_users, **kwargs)
        self.rules = None if rules is None else checked_rules(rules)
        self.only_tries = dry_run  # Airflow's operators have a method dry_run
        self.wait = wait
        self.alerts = AlertTargets.of(on_told=on_told)

    def execute(self, context: Context) -> Any:
        """Run the rules. Raises QueryError, SettingError, QueueNotFoundError, AlertError."""
        hook = QueueHook(self.conn_id)
        queue = hook.queue(self.queue_name)
        if self.only_tries:
            return self._logged(queue.run_rules(dry_run=True, rules=self.rules))
        queue.actor, key = actor(context), task_key(context, hook, queue.table.uri, "rules")
        result = self._logged(self._run(queue, key, subscriber(context, hook), context))
        if self.wait:
            self._ask(queue.table, key, result, context)
        return result

    def execute_complete(  # type: ignore[override]  # it is called with what was parked with it
        self, context: Context, event: dict[str, Any], answers: Mapping[str, str], result: Mapping[str, Any]
    ) -> Any:
        """Apply the plans that were approved, and cancel the rest; without an answer leave all as they are. Raises HITLTriggerEventError."""
        from airflow_poison.operators.question import LEAVE

        self.options = [*answers.values(), LEAVE]
        answer = super().execute_complete(context, event)
        user = answer["responded_by_user"]
        timed_out = bool(event.get("timedout", user is None))
        chosen = answer["chosen_options"]
        hook = QueueHook(self.conn_id)
        if timed_out:
            self.log.info("No answer in time: plans %s stay paused.", ", ".join(answers))
        else:
            for plan, text in answers.items():
                self.log.info("%s", plan_line(self._decided(hook, plan, user["name"], agreed=text in chosen)))
        by = None if user is None else {"id": user["id"], "name": user["name"]}
        return {**result, "answer": list(chosen), "timed_out": timed_out, "by": by}

    def _run(self, queue: Queue, key: str, name: str, context: Context) -> RulesResult:
        from airflow_poison.passes.alerts import alert_subscription

        if self.alerts:
            alert_subscription(queue.table, name, queue.clock, self.alerts.kinds()).begin()
        if self.rules is not None:
            queue.declare_rules(self.rules)
        queue.redrive_for_new_handler(Receive(), lambda view: self.log.warning("Redrive for a new handler: %s", plan_line(view)))
        result = queue.run_rules(run=key)
        if self.alerts:
            self.alerts.send(queue.table, name, context, queue.clock, self.log)
        return result

    def _ask(self, table: QueueTable, key: str, result: Mapping[str, Any], context: Context) -> None:
        """Ask about proposals of this task that are not decided; return when there are none."""
        from airflow_poison.desk.plans import view_of
        from airflow_poison.desk.rule_runs import proposal
        from airflow_poison.operators.question import LEAVE, proposals

        found = [proposal(table, key, each["rule"]) for each in result["rules"] if each["verb"] == "ask"]
        asked = [view_of(table, each) for each in found if each is not None]
        if not asked:
            return
        self.subject, self.body, answers = proposals(self.queue_name, asked)
        self.options, self.defaults, self.multiple = [*answers.values(), LEAVE], [LEAVE], len(asked) > 1
        self.log.info("%s", self.subject)
        try:
            super().execute(context)
        except PARKS as parks:
            parks.kwargs = {**(parks.kwargs or {}), "answers": answers, "result": dict(result)}  # type: ignore[attr-defined]  # both have it
            raise

    def _decided(self, hook: QueueHook, plan: str, name: str, *, agreed: bool) -> PlanView:
        """Do a plan, or cancel it. A decision that was made meanwhile, also by a killed try of this task, stays."""
        from airflow_poison.queue import Queue

        queue = Queue(hook.queues(), self.queue_name, f"airflow:{name}")
        with suppress(PlanStateError):
            return queue.resume(plan) if agreed else queue.cancel(plan)
        return queue.find_plan(plan)

    def _logged(self, result: RulesResult) -> dict[str, Any]:
        for each in result.rules:
            numbers = f"{each.messages:,} messages, {each.now:,} now, {each.waiting:,} wait"
            self.log.info("Rule %s (%s): %s%s", each.rule, each.verb.value, numbers, f"; plan {each.plan}: {each.state}" if each.plan else "")
        self.log.info("%s of %s messages in poison meet no rule.", f"{result.unmatched:,}", f"{result.messages:,}")
        return result.to_dict()


class QueueSendToKafkaOperator(WithLineage, QueueOperator):
    """Move messages to a Kafka topic, each once for consumers with ``isolation.level=read_committed``. Starts no JVM.

    With ``lookup_ids`` all of them in one commit; with ``selection`` those that meet it when the task runs, 10,000 in each commit, but those that a
    pass has claimed. Messages that earlier calls have left on their way to the topic are sent first; without ``lookup_ids`` and ``selection`` only
    these are. A task that is killed anywhere, retried or cleared sends no message twice: with ``lookup_ids`` those that an earlier try has sent are
    no error, with ``selection`` those are sent that meet it then.

    A record that the topic refuses (too large, without a key in a compacted topic) comes into the queue's ``poison`` with the reason. The others are
    sent, and the task succeeds.

    Returns ``{"queue", "topic", "sent", "finished", "left", "returned"}``.

    :param kafka: the topic: ``Kafka("letters", "kafka_default")``.
    :param selection: conditions by name, as ``Selection`` has them, a ``Selection``, or JSON text; ``{}``: all poison. (templated)
    :param lookup_ids: which messages, numbers or text of them. (templated)
    :param key: what the records' keys are: ``record`` (the key of the record that a message came from; the lookup id where it came from elsewhere),
        ``lookup_id``, or ``group_id`` (the lookup id where a message has no group). (templated)
    :param reason: why, for the events. (templated)
    """

    template_fields: Sequence[str] = ("queue_name", "selection", "lookup_ids", "key", "reason", "conn_id")
    ui_color = "#e8f4e5"
    operator_extra_links = (QueueLink(), PoisonLink(), EventsLink())

    def __init__(
        self,
        *,
        kafka: Kafka,
        selection: Selection | Mapping[str, Any] | str | None = None,
        lookup_ids: Sequence[int] | int | str | None = None,
        key: str = "record",
        reason: str = "",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if not isinstance(kafka, Kafka):
            raise SettingError("kafka", kafka, "a topic: Kafka('letters', 'kafka_default')")
        if selection is not None and lookup_ids is not None:
            raise InputError(f"{self.task_id}: give one of selection and lookup_ids, or neither to send what earlier calls have left.")
        self.kafka = kafka
        self.selection = as_given(selection)
        self.lookup_ids = lookup_ids
        self.key = key
        self.reason = reason
        self.lineage = Lineage()

    def execute(self, context: Context) -> dict[str, object]:
        """Send them. Raises SettingError, QueryError, SourceError, InputError, MessageNotFoundError, MessageClaimedError, OutputError."""
        if isinstance(self.selection, str) and not self.selection.strip():
            raise SettingError("selection", self.selection, "conditions by name, for example {'error_type': 'KeyError'}, and {} for all poison")
        hook, kafka = QueueHook(self.conn_id), self.kafka.connected(found_connection)
        result = hook.queue(self.queue_name).send_to_kafka(
            [] if self.lookup_ids is None else lookup_ids_of(self.lookup_ids),
            kafka,
            selection=self.selection,
            key=self.key,
            run=task_key(context, hook, self.queue_name, "kafka", self.kafka.topic),
            reason=self.reason,
        )
        self.lineage.reads(self, queue_uri(self.conn_id, self.queue_name))
        if result.sent or result.finished:
            self.lineage.writes(self, kafka.asset_uri)
        self.log.info("Sent %s messages of %r to topic %r.", f"{result.sent:,}", self.queue_name, result.topic)
        if result.finished:
            self.log.info("An earlier call had put %s messages there; they are removed from the outbox now.", f"{result.finished:,}")
        if result.returned:
            self.log.warning("The topic refuses %s messages. They are in poison of %r, with the reason.", f"{result.returned:,}", self.queue_name)
        if result.left:
            self.log.warning("%s messages stay: passes have claimed them, or they were changed meanwhile.", f"{result.left:,}")
        return result.to_dict()


SHORT = 10.0
"""Seconds for which it is not worth the while to defer."""
_TICK = 0.1
EVERY = 10.0
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
        self._reported_at = 0.0

    def execute(self, context: Context) -> dict[str, Any]:
        """Do it, or what is left of it.

        Raises SettingError, QueryError, QueueNotFoundError, PlanStateError when the task was ended; AirflowFailException for a plan that its canary
        has stopped, or that was cancelled or undone.
        """
        from airflow_poison.desk.plans import paused_by

        hook = QueueHook(self.conn_id)
        queue = hook.queue(self.queue_name)
        key = task_key(context, hook, queue.table.uri, "redrive")
        hook.import_here()
        plan = queue.record(
            self.selection,
            self.action,
            limit=number("limit", self.limit),
            rate=number("rate", self.rate),
            chunk=number("chunk", self.chunk),
            canary=self.canary,
            reason=self.reason,
            key=key,
        )
        view = queue.find_plan(plan)
        self.log.info("Queue %r, plan %s: %s %s messages, %s.", self.queue_name, plan, view.action.verb.value, f"{view.messages:,}", view.state)
        if view.state == PlanState.PAUSED and paused_by(queue.table, plan) == queue.actor:
            queue.resume(plan, "the task runs again", apply=False)
        self._pause = lambda: pause_when_ended(hook, self.queue_name, plan, queue.actor)
        try:
            view = self._followed(queue, plan)
        except PlanStateError:  # it was cancelled or undone
            view = queue.find_plan(plan)
        return self._result(queue.table, view)

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

    def _followed(self, queue: Queue, plan: str) -> PlanView:
        from airflow_poison.desk.applying import apply, follow

        waiting = {PlanState.RUNNING, PlanState.CANARY, PlanState.PAUSED}
        table, clock, store = queue.table, queue.clock, queue.store.tables

        def stop() -> bool:
            return self._ended

        if not self.deferrable:
            return follow(table, plan, clock, store=store, progress=self._report, stop=stop, wait=self._wait, through_pauses=True)
        version, at = table.snapshot().version, None
        try:
            view = apply(table, plan, clock, store=store, progress=self._report, stop=stop, wait=self._wait_or_defer)
        except _LongWaitError as wait:
            view, version, at = queue.find_plan(plan), -1, (datetime.now(UTC) + timedelta(seconds=wait.seconds)).isoformat()
        if view.state in waiting and not stop():
            name, conn_id, interval = self.queue_name, self.conn_id, self.poll_interval
            trigger = PlanTrigger(name, plan, version=version, not_before=at, who=queue.actor, conn_id=conn_id, poll_interval=interval)
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

    def _report(self, view: PlanView) -> None:
        if time.monotonic() - self._reported_at > EVERY:
            self._reported_at = time.monotonic()
            self.log.info("Plan %s: %s of %s messages.", view.plan, f"{view.done:,}", f"{view.messages:,}")

    def _result(self, table: QueueTable, view: PlanView) -> dict[str, Any]:
        from airflow_poison.desk.plans import why_stopped

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
    ``text``, ``messages``, ``share``, ``first_seen``, ``last_seen``, ``sample`` (a lookup id), ``trend`` and ``new`` (first seen in the last day).

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
        found = QueueHook(self.conn_id).queue(self.queue_name).groups(self.selection, limit=self.limit)
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
        from airflow_poison.desk.queries import answer_as_dict

        return answer_as_dict(self.queue_name, QueueHook(self.conn_id).queue(self.queue_name).query(self.sql, limit=self.limit + 1), self.limit)


def as_given(value: Any) -> Any:
    """Return what templates can be in: the plain values of a selection, an action or a canary."""
    return value.to_dict() if isinstance(value, Plain) else value
