"""Operators for what people do to a queue and its messages: alter, inspect, maintain, move, remove, return what is due.

QueueRecoverOperator: do with a halted queue what people have decided.

QueueAlertOperator: alert people about events of a queue.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from airflow_poison import stats
from airflow_poison.hooks.poison import QueueHook
from airflow_poison.lineage import Lineage, WithLineage, queue_uri
from airflow_poison.links import EventsLink, MessagesLink, PoisonLink, QueueLink, RetryLink
from airflow_poison.notifications import AlertTargets, Targets, listed, notify_ended
from airflow_poison.operators.base import QueueOperator, lookup_ids_of, one_lookup_id, subscriber, task_key
from airflow_poison.operators.dialogs import REMOVAL_ERROR, ended_with_error
from airflow_poison.passes.halts import WHEN_ENABLED, HaltedEndpoint
from airflow_poison.rules import checked_policy
from airflow_poison.rules.queue_disabling import NO_MESSAGE, REMOVAL
from airflow_poison.rules.settings import choice
from airflow_poison.values.clock import EXAMPLES, read_duration, show_recorded
from airflow_poison.values.errors import DecisionOutdatedError, QueueNotFoundError, SettingError
from airflow_poison.values.events import acting
from airflow_poison.values.texts import counted, visible

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.sdk.definitions.xcom_arg import XComArg

    from airflow_poison.passes.alter import AlterResult, DisableResult, EnableResult, RestartResult
    from airflow_poison.queue import Queue
    from airflow_poison.rules.policy import Policy


class QueueAlertOperator(QueueOperator):
    """Give the queue's outstanding alerts to notifiers: at least once, with a key in ``poison_alert`` by which a receiver drops repeats.

    What is outstanding is read from the queue's recorded events, whichever run caused them; so an alert that a killed task still owed is given by
    the next run. The task fails when a notifier fails; what the passes did stays. Returns the alerts as dicts.

    :param on_queue_disabled: notifiers, or functions of the context, called when the queue was disabled, stopped or faulted.
    :param on_stopped: called only for halts that stopped or faulted the endpoint.
    :param on_poison: called when messages were moved to poison or to another queue, dropped or rejected.
    :param on_blocked: called when a message blocks the queue, or waits at its place.
    :param on_outage: called once when failures come from an outage of a system that the handler needs.
    :param on_outage_over: called once when a probe has succeeded.
    :param on_backlog: called when a message in ``main`` or ``retry`` was sent longer ago than ``backlog_older_than``, once for each backlog.
    :param backlog_older_than: a duration above 0; given together with ``on_backlog``.
    """

    ui_color = "#fbe3e4"
    operator_extra_links = (QueueLink(), PoisonLink(), EventsLink())

    def __init__(
        self,
        *,
        on_queue_disabled: Targets = None,
        on_stopped: Targets = None,
        on_poison: Targets = None,
        on_blocked: Targets = None,
        on_outage: Targets = None,
        on_outage_over: Targets = None,
        on_backlog: Targets = None,
        backlog_older_than: timedelta | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.alerts = AlertTargets.of(
            on_queue_disabled,
            on_poison,
            on_blocked,
            on_stopped=on_stopped,
            on_backlog=on_backlog,
            backlog_older_than=backlog_older_than,
            on_outage=on_outage,
            on_outage_over=on_outage_over,
        )

    def execute(self, context: Context) -> list[dict[str, object]]:
        """Give what is outstanding. Raises AlertError when a notifier failed, QueueNotFoundError unless it is a teardown."""
        hook = QueueHook(self.conn_id)
        try:
            queue = hook.queue(self.queue_name)
            table = queue.table
        except QueueNotFoundError:
            if not self.is_teardown:
                raise
            self.log.info("There is no queue %r: the run has not made it. So there are no alerts.", self.queue_name)
            return []
        given = self.alerts.send(table, subscriber(context, hook), context, queue.clock, self.log)
        self.log.info("%s alerts of queue %r given.", len(given), self.queue_name)
        return given


UNDECIDED = "UNDECIDED"
"""The ``event`` of the alert that no decision arrived in time."""


class QueueRecoverOperator(QueueOperator):
    """Carry out what a QueueAskOperator was answered: first what concerns the message, then the endpoint is enabled (spec SB-34). Starts no JVM.

    A task that was killed goes on where it stopped, and does nothing twice. It fails, without retries, when the queue is not halted any more as
    people were shown it. It is skipped, with what follows, when the queue is to be left as it is.

    Returns ``{"queue", "sub_queue", "decision", "lookup_id", "messages", "to", "repeated", "ended"}``: how many messages went where, and the
    conversation that was ended, as in the context of ``on_conversation_ended``.

    :param decision: what QueueAskOperator returned. (templated)
    :param to_queue: the queue in which a removed message is kept, with its conversation; it must exist. None: the poison sub-queue; for a message
        that halted the reader of the poison sub-queue, ``<queue>.dead-letter``. (templated)
    :param error: the error code that the partner gets when the conversation is ended. (templated)
    :param description: what the partner reads then. (templated)
    :param on_conversation_ended: notifiers, or functions of the context, called when a conversation was ended, at least once, before the queue is
        enabled: remove the application's state for it there (spec SB-31). The context has ``conversation_ended``, see
        QueueEndConversationOperator.
    :param on_undecided: notifiers, or functions of the context, called when no answer arrived in time, before the default decision is carried out.
    """

    template_fields: Sequence[str] = ("queue_name", "decision", "to_queue", "error", "description", "conn_id")
    ui_color = "#e3f7e9"
    operator_extra_links = (QueueLink(), PoisonLink(), EventsLink())

    def __init__(
        self,
        *,
        decision: Mapping[str, Any] | XComArg,
        to_queue: str | None = None,
        error: int | str = REMOVAL_ERROR,
        description: str = REMOVAL.description,
        on_conversation_ended: Targets = None,
        on_undecided: Targets = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.decision: Any = decision  # rendered: what was returned
        self.to_queue = to_queue
        self.error = error
        self.description = description
        self.on_conversation_ended = listed("on_conversation_ended", on_conversation_ended)
        self.on_undecided = listed("on_undecided", on_undecided)

    def execute(self, context: Context) -> dict[str, object]:
        """Do it. Raises MessageNotFoundError, MessageClaimedError, QueueNotFoundError; AirflowFailException for a decision that fits no more."""
        from airflow_poison.passes.decide import Decision, decide

        hook = QueueHook(self.conn_id)
        queue = hook.queue(self.queue_name)
        decided, halt = str(self.decision["decision"]), HaltedEndpoint.from_dict(self.decision["halt"])
        if self.decision["timed_out"]:
            self._notify(context, hook, queue, halt)
        if decided == Decision.LEAVE:
            raise AirflowSkipException(f"Queue {halt.name!r} is left {halt.state.value}{_because(self.decision)}.")

        user = self.decision["by"]
        try:
            with acting(queue.actor if user is None else f"airflow:{user['name']}", str(self.decision["answer"])):
                result = decide(
                    queue.table,
                    queue.store.tables,
                    queue.clock,
                    decided,
                    halt,
                    run=task_key(context, hook, queue.table.uri),
                    to_queue=self.to_queue,
                    end=ended_with_error(self.error, self.description),
                    on_ended=lambda ended: notify_ended(self.on_conversation_ended, ended, context, self.log),
                )
        except DecisionOutdatedError as error:
            raise AirflowFailException(str(error)) from error
        went = f"{counted(result.messages, 'message')} went to {result.to!r}" if result.to else f"{counted(result.messages, 'message')} gone"
        self.log.info("Queue %r is enabled%s. %s. %s", halt.name, _because(self.decision), went, WHEN_ENABLED)
        return result.to_dict()

    def _notify(self, context: Context, hook: QueueHook, queue: Queue, halt: HaltedEndpoint) -> None:
        from airflow_poison.operators.question import notify_about

        reason = f"No decision in time about queue {halt.name!r}, which is {halt.state.value}; so: {self.decision['answer']}."
        self.log.warning("%s", reason)
        todo = "Start a new run of the DAG to be asked again, or use QueueHook: inspect, remove, enable."
        key = task_key(context, hook, queue.table.uri, UNDECIDED, *halt.identity)
        notify_about(halt, UNDECIDED, reason, todo, key=key, targets=self.on_undecided, context=context, log=self.log)


def _because(decision: Mapping[str, Any]) -> str:
    user = decision["by"]
    return ", because no answer arrived in time" if user is None else f", as {user['name']} has decided"


class Action(StrEnum):
    """What can be done to a queue."""

    ENABLE = "enable"
    DISABLE = "disable"
    STOP_ENDPOINT = "stop_endpoint"
    ALTER = "alter"
    RESTART_ENDPOINT = "restart_endpoint"
    RESTART_SERVER = "restart_server"
    RESTART_BROKER = "restart_broker"


class QueueAlterOperator(QueueOperator):
    """Enable or disable a queue, change its settings, or restart what its system restarts. Starts no JVM.

    ``enable`` starts a disabled, stopped or faulted endpoint, and lets in what was sent while it was disabled. ``disable`` sets it to OFF: no pass
    begins, a pass that runs finishes what it has claimed. ``stop_endpoint`` stops the endpoint alone: messages go on arriving. ``alter`` changes
    settings that are recorded in the queue; a DAG that declares a policy records its own again at its next run. A restart takes from the queue what
    the system loses then: ``restart_endpoint``, ``restart_server`` (the application's host), ``restart_broker`` (database engine, messaging engine,
    queue manager).

    Returns what was done as a dict with ``queue``.

    :param action: ``enable``, ``disable``, ``stop_endpoint``, ``alter``, ``restart_endpoint``, ``restart_server`` or ``restart_broker``. (templated)
    :param settings: for ``alter``: new values by name, in our words or the manual's; durations in seconds. (templated)
    :param system: for ``alter``: another messaging system, for example ``ServiceBroker``; settings not given are its defaults. (templated)
    :param park_group: for ``alter``: whether messages wait behind earlier ones of their groups that have failed; None: as it is recorded.
    :param reason: why, one line, for the events; for ``disable`` and ``stop_endpoint`` it is shown with the queue's state. (templated)
    """

    template_fields: Sequence[str] = ("queue_name", "action", "settings", "system", "reason", "conn_id")
    ui_color = "#efe3f7"

    def __init__(
        self,
        *,
        action: str,
        settings: Mapping[str, object] | None = None,
        system: str | None = None,
        park_group: bool | None = None,
        reason: str = "",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.action = action
        self.settings = settings
        self.system = system
        self.park_group = park_group
        self.reason = reason

    def execute(self, context: Context) -> dict[str, object]:
        """Do it. Raises SettingError, QueueNotFoundError, and MessageClaimedError for a restart while a pass receives."""
        del context
        action = choice("action", self.action, Action)
        if (action is Action.ALTER) != bool(self.settings or self.system or self.park_group is not None):
            raise SettingError(
                "settings", self.settings, f"values by name, a system, or park_group, with action='alter', none otherwise (action={action.value!r})"
            )
        result = self._do(action, QueueHook(self.conn_id).queue(self.queue_name)).to_dict()
        self.log.info("Queue %r, %s: %s", self.queue_name, self.action, result)
        return result

    def _do(self, action: Action, queue: Queue) -> EnableResult | DisableResult | AlterResult | RestartResult:
        match action:
            case Action.ENABLE:
                return queue.enable(reason=self.reason)
            case Action.DISABLE | Action.STOP_ENDPOINT:
                return queue.disable(self.reason, endpoint_only=action is Action.STOP_ENDPOINT)
            case Action.ALTER:
                return queue.alter(self.settings, self.system, park_group=self.park_group, reason=self.reason)
            case Action.RESTART_ENDPOINT | Action.RESTART_SERVER | Action.RESTART_BROKER:
                return queue.restart(action.removeprefix("restart_"), reason=self.reason)


class QueueInspectOperator(QueueOperator):
    """Look at a message, at a conversation's next one, or, without either, at the suspect: what halted the queue, else its head. Starts no JVM.

    Returns ``{"queue", "mode", "state", "messages", "more"}``. A message is a dict of the queue table's columns; its body is text where it is UTF-8,
    else Base64 (``body_encoding``), of its first 64 KiB (``body_bytes`` is the whole length, ``body_cut`` says whether something is missing).
    No message is no error: ``messages`` is empty.

    The log has what Service Broker's inspection prints (spec SB-27): ``No message available.``; for a message whose type a contract of the queue's
    services names, ``Empty message.``, the XML, or ``No validation -- binary message:`` and the bytes.

    ``browse`` reads everything. ``exempt`` and ``strict`` see what a receive would get, wait up to 2 s while a pass has it, and fail for a halted
    queue; ``strict`` counts as a rollback, which may disable the queue (spec SB-33).

    :param lookup_id: the message. (templated)
    :param conversation_id: the conversation. (templated)
    :param mode: ``browse``, ``exempt`` or ``strict``; None: as the queue's settings say, else ``browse``. (templated)
    :param every: all messages of the conversation, at most 100, instead of the one that a receive gets.
    """

    template_fields: Sequence[str] = ("queue_name", "lookup_id", "conversation_id", "mode", "conn_id")
    ui_color = "#e3ecf7"
    operator_extra_links = (QueueLink(), EventsLink())

    def __init__(
        self,
        *,
        lookup_id: int | str | None = None,
        conversation_id: str | None = None,
        mode: str | None = None,
        every: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.lookup_id = lookup_id
        self.conversation_id = conversation_id
        self.mode = mode
        self.every = every

    def execute(self, context: Context) -> dict[str, object]:
        """Look. Raises QueueHaltedError, QueueNotFoundError, SettingError."""
        del context
        from airflow_poison.passes.conversations import printed_body

        number = None if self.lookup_id is None else one_lookup_id(self.lookup_id)
        queue = QueueHook(self.conn_id).queue(self.queue_name)
        result = queue.inspect(lookup_id=number, conversation_id=self.conversation_id, mode=self.mode, every=self.every)
        for message in result.messages:
            counts, size = f"abort count {message.abort_count}, move count {message.move_count}", len(message.body)
            self.log.info("Message %s in %s: %s, %s bytes. %s", message.lookup_id, message.sub_queue, counts, size, visible(message.reason or ""))
            if (shown := printed_body(queue.reading, message)) is not None:
                self.log.info("%s", shown)
        if not result.messages:
            self.log.info(NO_MESSAGE)
        return result.to_dict()


class QueueMaintainOperator(QueueOperator):
    """Join small files, remove files that are no longer needed, shorten the log. Senders and passes go on. Starts no JVM.

    Returns ``{"queue", "relayed", "compacted", "removed", "kept", "freed_bytes", "oldest_version", "checkpoint", "expired_claims"}``; claims that
    a dead run has left are reported, not taken over: the next receive task finishes them.

    :param retention: how long older versions of the table can still be read, a duration (``7d``): longer than the longest pass. (templated)
    :param min_files: as many small files have to follow each other before they are joined.
    """

    template_fields: Sequence[str] = ("queue_name", "retention", "conn_id")
    ui_color = "#e6eef5"

    def __init__(self, *, retention: timedelta | str = "7d", min_files: int = 16, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.retention = retention
        self.min_files = min_files

    def execute(self, context: Context) -> dict[str, object]:
        """Maintain the queue. Raises QueueNotFoundError, SettingError, StoreUnreachableError, TableChangedError."""
        del context
        retention = read_duration(self.retention) if isinstance(self.retention, str) else self.retention
        if retention is None:
            raise SettingError("retention", self.retention, EXAMPLES)
        result = QueueHook(self.conn_id).queue(self.queue_name).maintain(retention, self.min_files)
        joined, removed = result.compacted["files"], ", ".join(f"{number:,} {what}" for what, number in result.removed.items())
        self.log.info("Queue %r: joined %s files, removed %s, freed %s bytes.", self.queue_name, f"{joined:,}", removed, f"{result.freed_bytes:,}")
        for claim in result.expired_claims:
            dead = f"the claim {claim['key']} on {claim['messages']} messages expired at {claim['expired_at']}: its run is dead"
            self.log.warning("Queue %r: %s. Run the receive task again, it finishes the claim.", self.queue_name, dead)
        return result.to_dict()


QUEUE = "queue"


class QueueMoveOperator(WithLineage, QueueOperator):
    """Move messages to ``main``, to ``poison`` or to another queue, all or none. Starts no JVM.

    Without ``lookup_ids``, ``target="main"`` moves all that are in poison and that no pass has claimed. ``target="queue"`` without ``to_queue``
    sends each message to the queue that it came from, so dead letters go back. Returns ``{"queue", "moved", "to"}``: how many messages, by where
    they are now. Running the task again moves those that are there again; those that an earlier try has moved are no error.

    :param lookup_ids: which messages, numbers or text of them. (templated)
    :param target: ``main``: for another cycle; ``poison``: out of the way; ``queue``: into another queue. (templated)
    :param to_queue: with ``target="queue"``: the queue, which must exist. (templated)
    :param reason: why, for the events. (templated)
    """

    template_fields: Sequence[str] = ("queue_name", "lookup_ids", "target", "to_queue", "reason", "conn_id")
    ui_color = "#fdf3d8"
    operator_extra_links = (QueueLink(), EventsLink())

    def __init__(
        self,
        *,
        lookup_ids: Sequence[int] | int | str | None = None,
        target: str = "main",
        to_queue: str | None = None,
        reason: str = "",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.lookup_ids = lookup_ids
        self.target = target
        self.to_queue = to_queue
        self.reason = reason
        self.lineage = Lineage()

    def execute(self, context: Context) -> dict[str, object]:
        """Move them. Raises SettingError, QueueNotFoundError, InputError, MessageNotFoundError, MessageClaimedError; then nothing was moved."""
        to = self._move(context)
        moved = sum(to.values())
        if self.target == QUEUE:
            self.lineage.reads(self, queue_uri(self.conn_id, self.queue_name))
            self.lineage.writes(self, *(queue_uri(self.conn_id, name) for name in to))
        self.log.info("Moved %s messages of %r: %s", f"{moved:,}", self.queue_name, to)
        return {"queue": self.queue_name, "moved": moved, "to": to}

    def _move(self, context: Context) -> dict[str, int]:
        hook = QueueHook(self.conn_id)
        queue = hook.queue(self.queue_name)
        if self.to_queue is not None and self.target != QUEUE:
            raise SettingError("to_queue", self.to_queue, f"nothing unless target={QUEUE!r} (target={self.target!r})")
        if self.lookup_ids is None:
            if self.target != "main":
                raise SettingError("lookup_ids", self.lookup_ids, f"the messages that go to {self.target!r}")
            return {"main": queue.put_back(reason=self.reason)}
        numbers, run = lookup_ids_of(self.lookup_ids), task_key(context, hook, self.queue_name, self.target)
        if self.target == QUEUE:
            return dict(queue.send_to(numbers, self.to_queue, run=run, reason=self.reason).to)
        return {self.target: queue.move(numbers, self.target, run=run, reason=self.reason)}


class QueueRemoveOperator(QueueOperator):
    """Take messages out of a queue by lookup id or by conversation (spec WCF-25, SB-30), all or none. Starts no JVM.

    Returns ``{"queue", "removed", "messages", "more"}``: their number, and the first 100 of them as ``QueueInspectOperator`` shows them. A body of
    more than 64 KiB is cut there, with a note: to keep all of it, inspect or copy the message first. That an earlier try of the same task
    instance has removed a message is no error; it is not shown again.

    :param lookup_ids: which messages, numbers or text of them. (templated)
    :param conversation_id: all messages of a conversation instead; none is no error. (templated)
    :param reason: why, for the events. (templated)
    """

    template_fields: Sequence[str] = ("queue_name", "lookup_ids", "conversation_id", "reason", "conn_id")
    ui_color = "#fbe3e4"

    def __init__(
        self, *, lookup_ids: Sequence[int] | int | str | None = None, conversation_id: str | None = None, reason: str = "", **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.lookup_ids = lookup_ids
        self.conversation_id = conversation_id
        self.reason = reason

    def execute(self, context: Context) -> dict[str, object]:
        """Remove them. Raises SettingError, QueueNotFoundError, MessageNotFoundError, MessageClaimedError; then all stay."""
        from airflow_poison.passes.move import unanswered

        hook = QueueHook(self.conn_id)
        queue = hook.queue(self.queue_name)
        if (self.lookup_ids is None) == (self.conversation_id is None):
            raise SettingError("lookup_ids", self.lookup_ids, "either lookup_ids or conversation_id")
        run = task_key(context, hook, queue.table.uri)
        if self.lookup_ids is not None:
            result = queue.remove_messages(lookup_ids_of(self.lookup_ids), run=run, reason=self.reason)
        else:
            result = queue.remove_conversation(str(self.conversation_id), run=run, reason=self.reason)
        self.log.info("Removed %s messages of %r.", f"{len(result.messages):,}", self.queue_name)
        for sentence in unanswered(queue.name, result.awaited):
            self.log.warning("%s", sentence)
        return result.to_dict()


class QueueReturnOperator(QueueOperator):
    """Move every message whose RetryCycleDelay is over from ``retry`` to ``main``. Starts no JVM.

    Returns ``{"queue", "returned", "postponed", "waiting", "next_due_at"}``.

    :param policy: makes the queue when it is missing and records this policy in it; without it the queue must exist and its recorded policy rules.
    """

    ui_color = "#fdf3d8"
    operator_extra_links = (QueueLink(), MessagesLink(), RetryLink())

    def __init__(self, *, policy: Policy | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.policy = checked_policy(policy)

    def execute(self, context: Context) -> dict[str, object]:
        """Return what is due. Raises QueueNotFoundError, StoreUnreachableError."""
        del context
        queue = QueueHook(self.conn_id).queue(self.queue_name, self.policy)
        result = queue.return_due(self.policy)
        stats.moved("returned", result.returned + result.postponed, queue.table, self.conn_id)
        postponed = f", and {result.postponed:,} that a handler had postponed" if result.postponed else ""
        due = f", the next until {show_recorded(result.next_due_at)}" if result.next_due_at else ""
        self.log.info("Returned %s messages of %r to main%s; %s wait in retry%s.", result.returned, self.queue_name, postponed, result.waiting, due)
        return result.to_dict()
