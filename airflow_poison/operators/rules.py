"""QueueRulesOperator: do what a queue's rules say with its poison, and ask people where a rule says so."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from airflow.providers.standard.operators.hitl import HITLOperator

from airflow_poison.hooks.poison import QueueHook
from airflow_poison.links.queue import EventsLink, PoisonLink, QueueLink
from airflow_poison.notifications import AlertTargets
from airflow_poison.operators.ask import PARKS
from airflow_poison.operators.base import QueueOperator, logged, redrive_by_itself
from airflow_poison.operators.identity import actor, subscriber, task_key
from airflow_poison.values.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import timedelta

    from airflow.sdk import Context
    from airflow.sdk.execution_time.hitl import HITLUser

    from airflow_poison.desk.plans import PlanView
    from airflow_poison.desk.rule_runs import RulesResult
    from airflow_poison.desk.rules import Rule
    from airflow_poison.notifications import Targets
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
        if self.only_tries:
            from airflow_poison.desk.rule_runs import dry_run

            return self._told(dry_run(hook.queue_to_read(self.queue_name), SystemClock(), self.rules))
        table = hook.queue(self.queue_name)
        key = task_key(context, hook, table.uri, "rules")
        result = self._told(self._run(hook, table, key, context))
        if self.wait:
            self._ask(table, key, result, context)
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
                self.log.info("%s", logged(self._decided(hook, plan, user["name"], agreed=text in chosen)))
        by = None if user is None else {"id": user["id"], "name": user["name"]}
        return {**result, "answer": list(chosen), "timed_out": timed_out, "by": by}

    def _run(self, hook: QueueHook, table: QueueTable, key: str, context: Context) -> RulesResult:
        from airflow_poison.desk.rule_runs import run_rules
        from airflow_poison.desk.rules import declare_rules
        from airflow_poison.passes.alerts import alert_subscription

        clock, name = SystemClock(), subscriber(context, hook)
        if self.alerts:
            alert_subscription(table, name, clock, self.alerts.kinds()).begin()
        if self.rules is not None:
            declare_rules(table, self.rules, clock)
        redrive_by_itself(table, None, context, self.log)
        result = run_rules(table, clock, who=actor(context), store=hook.store(), run=key)
        if self.alerts:
            self.alerts.send(table, name, context, clock, self.log)
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
        from airflow_poison.desk.applying import apply
        from airflow_poison.desk.plans import cancel, find_plan, resume
        from airflow_poison.values.errors import PlanStateError

        store, clock, who = hook.store(), SystemClock(), f"airflow:{name}"
        table = store.open(self.queue_name)
        with suppress(PlanStateError):
            if not agreed:
                return cancel(table, plan, clock, who=who)
            resume(table, plan, clock, who=who)
            return apply(table, plan, clock, store=store)
        return find_plan(table, plan)

    def _told(self, result: RulesResult) -> dict[str, Any]:
        for each in result.rules:
            numbers = f"{each.messages:,} messages, {each.now:,} now, {each.waiting:,} wait"
            self.log.info("Rule %s (%s): %s%s", each.rule, each.verb.value, numbers, f"; plan {each.plan}: {each.state}" if each.plan else "")
        self.log.info("%s of %s messages in poison meet no rule.", f"{result.unmatched:,}", f"{result.messages:,}")
        return result.to_dict()
