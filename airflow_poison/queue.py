"""Store and Queue: every verb on a queue, for scripts, notebooks, hooks, operators, commands and pages.

Nothing here knows Airflow. Each verb is one function of the packages below, called with the queue's table, the clock and the actor.

    from airflow_poison import Store

    orders = Store("/data/queues").queue("orders")
    orders.redrive({"error_type": "KeyError"}, reason="INC-7")
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from datetime import datetime, timedelta
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, TypeAlias, Unpack, overload
from uuid import uuid4

from airflow_poison.desk import rule_runs
from airflow_poison.desk.actions import PlanAction, Verb, action_of, canary_of, selection_of
from airflow_poison.desk.applying import check_target, follow, undo
from airflow_poison.desk.exports import send_selected
from airflow_poison.desk.plans import Plan, PlanView, cancel, find_plan, id_of, pause, plan, plans, record, resume
from airflow_poison.desk.queries import FindResult, GroupsResult, find, groups, query, query_batches
from airflow_poison.desk.rule_runs import redrive, set_redrive
from airflow_poison.desk.rules import Rule, declare_mask, declare_rules
from airflow_poison.fsck.check import CheckResult, check_queue, check_store
from airflow_poison.passes.alter import (
    AlterResult,
    DisableResult,
    EnableResult,
    RestartResult,
    alter,
    disable,
    enable,
    open_declared,
    restart,
    set_park_group,
)
from airflow_poison.passes.browse import MessageRow, QueueOverview, look_up, overview
from airflow_poison.passes.conversations import (
    ConversationRow,
    ConversationView,
    UnsentMessage,
    conversations,
    declare_services,
    drop_service,
    transmission_queue,
)
from airflow_poison.passes.conversations import conversation as conversation_view
from airflow_poison.passes.declaration import Canary, Receive, ReceiveOptions, check_handler_given
from airflow_poison.passes.dialogs import ActResult, begin_dialogs, create, drop, send_on, set_timer
from airflow_poison.passes.due import ReturnResult, return_due
from airflow_poison.passes.engines import Engine, SupervisedEngine
from airflow_poison.passes.history import History, recorded_events
from airflow_poison.passes.inspect import InspectResult, inspect
from airflow_poison.passes.land import WaitingRows, take_out, take_out_refused, waiting_rows
from airflow_poison.passes.maintain import RETENTION, MaintainResult, maintain
from airflow_poison.passes.messages import Chosen
from airflow_poison.passes.move import RemoveResult, move, put_back, remove, remove_messages
from airflow_poison.passes.receive import ReceivePass
from airflow_poison.passes.recovery import ConversationEnded, Ending, RecoverResult, left, recover
from airflow_poison.passes.relay import SendToResult, send_to
from airflow_poison.passes.runs import ReceiveResult, check_key, run_key
from airflow_poison.passes.send import SendResult, send
from airflow_poison.passes.take import SourcePosition, TakeResult, positions, reset_position, take
from airflow_poison.passes.to_kafka import SendToKafkaResult, send_to_kafka, take_back_from_kafka
from airflow_poison.rules import checked_policy, policy_from_dict
from airflow_poison.rules.policy import Policy, Restart
from airflow_poison.rules.settings import checks_arguments, choice
from airflow_poison.sources.bodies import batches_of
from airflow_poison.sources.frames import Frame
from airflow_poison.store import QueueStore, open_store
from airflow_poison.values.clock import Clock, SystemClock
from airflow_poison.values.errors import CheckpointDamagedError, InputError, PlanNotFoundError, PlanStateError, SettingError, SourceError
from airflow_poison.values.events import EventType, acting, is_anybody_acting
from airflow_poison.values.machine import shell_user
from airflow_poison.values.mapping import ColumnMapping

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from airflow_poison.delivery.handlers import HandlerLike
    from airflow_poison.desk.rule_runs import RulesResult
    from airflow_poison.desk.selection import Selection
    from airflow_poison.dialogs.acts import Dialog
    from airflow_poison.dialogs.services import Service
    from airflow_poison.rules.queue_disabling import Inspection
    from airflow_poison.sources.kafka import Kafka
    from airflow_poison.sources.source import Connection, Source, Take
    from airflow_poison.store.queue_table import QueueTable
    from airflow_poison.values.message import Message
    from airflow_poison.values.schema import SubQueue

    SelectionLike: TypeAlias = Selection | Mapping[str, object] | str | None
    ActionLike: TypeAlias = PlanAction | Mapping[str, object] | str
    CanaryLike: TypeAlias = Canary | Mapping[str, object] | int | str | None

NOT_AT_ALL = timedelta(0)
_log = logging.getLogger(__name__)


@checks_arguments()
class Store:
    """The queues under one root.

    :param tables: the folder or the URI of the queues (``s3://``, ``gs://``, ``az://``), or an open ``QueueStore``.
    :param storage_options: of an object store: its endpoint, region and credentials, as delta-rs names them.
    :param actor: who acts, as the history of a queue shows it; None: the user of this shell or script.
    :param clock: None: the time of this machine.
    :param connections: finds the connection that a source names by its id; None: sources have to hold their settings.
    Raises StoreUnreachableError when the root cannot be read.
    """

    def __init__(
        self,
        tables: QueueStore | str,
        storage_options: Mapping[str, str] | None = None,
        *,
        actor: str | None = None,
        clock: Clock | None = None,
        connections: Callable[[str], Connection] | None = None,
    ) -> None:
        self.tables = open_store(tables, dict(storage_options or {}) or None) if isinstance(tables, str) else tables
        self.actor = actor or shell_user()
        self.clock: Clock = clock or SystemClock()
        self.connections = connections or _no_connections

    def names(self) -> tuple[str, ...]:
        """Return the names of the queues, sorted."""
        return tuple(self.tables.names())

    def queue(self, name: str) -> Queue:
        """Return a queue that exists. Raises QueueNotFoundError, QueueNameError."""
        queue = Queue(self, name)
        with suppress(CheckpointDamagedError):  # who reads is warned of it, who writes sets it aside
            _ = queue.reading
        return queue

    def declare(
        self,
        name: str,
        policy: Policy | None = None,
        *,
        services: Iterable[Service] = (),
        mask: Sequence[str] | str | None = None,
        run: str | None = None,
    ) -> Queue:
        """Return a queue, with what is declared recorded in it.

        :param policy: makes the queue when it is missing and records this policy in it; without it the queue must exist. Another one than the
            recorded one leaves an event and a warning in the log.
        :param services: declared on the queue: CREATE SERVICE, or ALTER SERVICE where the queue has it already. Its other services stay.
        :param mask: paths of values that are hidden wherever messages are shown; None: as recorded, []: none.
        :param run: who declares the policy, for the event of a change.
        Raises QueueNotFoundError, SystemChangeError for a policy of another messaging system than the queue's, and SettingError for services of a
        queue without Service Broker's rules, or that another queue has.
        """
        queue = Queue(self, name)
        queue.declare(policy, services=services, mask=mask, run=run)
        return queue

    def check(self) -> tuple[CheckResult, ...]:
        """Hold the store's own folder and every queue in it against what a store promises, over their whole history."""
        return check_store(self.tables, self.clock)


@checks_arguments("DataFrame", "Kafka", "Plan", "Receive", "SparkSession")
class Queue:
    """A queue of a store. Opened when a verb needs it; verbs that only read change nothing in its folder.

    :param store: the store; or the folder or the URI of one.
    :param actor: who acts; None: the actor of the store.
    :param clock: None: the clock of the store.
    Changes are recorded with the actor and the ``reason`` that is given.
    """

    def __init__(self, store: Store | str, name: str, actor: str | None = None, clock: Clock | None = None) -> None:
        self.store = Store(store) if isinstance(store, str) else store
        self.name = name
        self.actor = actor or self.store.actor
        self.clock = clock or self.store.clock

    def __repr__(self) -> str:
        return f"Queue({self.store.tables.uri!r}, {self.name!r})"

    @cached_property
    def table(self) -> QueueTable:
        """The queue's table, for verbs that change it. Raises QueueNotFoundError."""
        return self.store.tables.open(self.name)

    @cached_property
    def reading(self) -> QueueTable:
        """The queue's table, for verbs that only read: nothing in its folder is changed. Raises QueueNotFoundError."""
        return self.__dict__.get("table") or self.store.tables.open(self.name, read_only=True)

    def _acting(self, reason: str = "") -> AbstractContextManager[None]:
        """Record the events of a block with the actor, and why; those of a block that says so already keep its actor."""
        return nullcontext() if not reason and is_anybody_acting() else acting(self.actor, reason)

    def send(self, messages: Iterable[Any], *, key: str | None = None, mapping: ColumnMapping | None = None) -> SendResult:
        """Add messages to ``main``. A disabled queue is no error for the sender (spec SB-19): its messages wait in ``transmission``.

        :param messages: bodies (bytes, text), rows as dicts that become JSON, or a data frame in memory (Arrow, pandas, Polars), as rows;
            or several data frames, one after the other.
        :param key: a second send with the same key sends nothing; None: each call sends.
        :param mapping: which fields of rows become which parts of a message.
        Raises InputError, MessageTooLargeError; then nothing was sent.
        """
        batches = batches_of(messages, mapping or ColumnMapping(), self.clock.now())
        return send(self.table, batches, key=_key(key), clock=self.clock)

    def receive(
        self,
        handler: HandlerLike | None = None,
        policy: Policy | None = None,
        *,
        key: str | None = None,
        spark: SparkSession | None = None,
        progress: Callable[[str], None] = lambda _line: None,
        **options: Unpack[ReceiveOptions],
    ) -> ReceiveResult:
        """Deliver every message that is in the queue now to a handler, once: one receive pass, finished when this returns.

        :param handler: a function of a Message, or its name (``"shop.arrivals:land"``); raises to roll back. None: ``transform`` is given.
        :param policy: the queue's rules, recorded in it; makes the queue when it is missing. None: the recorded policy rules.
        :param key: the run key: running it again finishes what a killed run of it left; None: each call is a run of its own, and finishes what dead
            runs left when their claims have expired.
        :param spark: the session that delivers; None: this process does, with handlers in child processes.
        :param progress: called with a line when something has happened.
        :param options: other settings, see ``ReceiveOptions``.
        Raises HandlerNotFoundError and SettingError before anything is claimed, QueueHaltedError when the queue is not enabled.
        """
        check_handler_given(handler, options.get("transform"))
        key = _key(key)
        settings = Receive.of(self.name, handler=handler, policy=policy, **options)
        engine = SupervisedEngine if spark is None else lambda: _spark_engine(spark, progress)
        receiving = self.receive_pass(settings, engine, progress=progress)
        return receiving.run(run_key(receiving.table.uri, "receive", key))

    def receive_pass(
        self,
        receive: Receive,
        engine: Callable[[], Engine],
        *,
        run: str | None = None,
        redriven: Callable[[PlanView], object] = lambda _view: None,
        **parts: Any,
    ) -> ReceivePass:
        """Record what a receive declares, and return its pass, which is to be run.

        :param run: who declares the policy, for the event of a change.
        :param redriven: called with each plan of a redrive for a new handler.
        :param parts: other parts of a ``ReceivePass``.
        """
        self.declare_receive(receive, run=run)
        if receive.source is not None:
            receive = replace(receive, source=receive.source.connected(self.store.connections))
        return ReceivePass.of_table(
            self.table,
            receive,
            engine=engine,
            clock=self.clock,
            store=self.store.tables,
            before_claim=partial(self.redrive_for_new_handler, receive, redriven),
            **parts,
        )

    def receive_frame(
        self,
        frame: DataFrame,
        policy: Policy | None = None,
        *,
        key: str,
        progress: Callable[[str], None] = lambda _line: None,
        **options: Unpack[ReceiveOptions],
    ) -> ReceiveResult:
        """Transform the rows of a DataFrame where they are: what succeeds lands in the output, once; rows that fail become messages.

        The messages are delivered by the rules of the queue, in this call and by later passes, as messages that were sent are.

        :param key: another call with this key takes nothing.
        :param options: ``transform`` and ``output``, and other settings; see ``ReceiveOptions``.
        Raises SettingError, InputError, TransformError, SparkJobError; then nothing was taken. QueueHaltedError where the queue is not enabled.
        """
        given: ReceiveOptions = {**options, "source": Frame(frame)}
        return self.receive(None, policy, key=key, spark=frame.sparkSession, progress=progress, **given)

    def declare(
        self,
        policy: Policy | None = None,
        *,
        services: Iterable[Service] = (),
        mask: Sequence[str] | str | None = None,
        run: str | None = None,
    ) -> None:
        """Record what is declared of the queue; parameters and errors as of ``Store.declare``."""
        self.table = open_declared(self.store.tables, self.name, policy, self.clock, run)
        declared = tuple(services)
        if declared:
            declare_services(self.store.tables, self.table, declared)
        if mask is not None:
            with self._acting():
                declare_mask(self.table, self.clock, mask)

    def declare_receive(self, receive: Receive, *, run: str | None = None) -> None:
        """Record what the settings of a receive say of the queue: its policy, services and mask, and whether groups are parked."""
        self.declare(receive.policy, services=receive.services, mask=receive.mask, run=run)
        if receive.park_group is not None:
            set_park_group(self.table, self.clock, receive.park_group)

    def redrive_for_new_handler(self, receive: Receive, redriven: Callable[[PlanView], object] = lambda _view: None) -> None:
        """Redrive for a new handler where the queue is set so, or is to be set so."""
        if receive.redrive_on_new_handler is not None:
            set_redrive(self.table, receive.redrive_on_new_handler, self.clock)
        for view in redrive(self.table, self.clock, receive.handler_version, who=self.actor):
            redriven(view)

    def overview(self) -> QueueOverview:
        """Look at the queue: its state, its settings, and what each sub-queue holds. No message is read."""
        return overview(self.reading, self.clock)

    def history(
        self,
        *,
        lookup_ids: Collection[int] | None = None,
        types: Collection[EventType] | None = None,
        since: datetime | None = None,
        limit: int | None = 50,
    ) -> History:
        """Return the recorded events of the queue, the newest last.

        :param lookup_ids: only events of these messages.
        :param types: only events of these types.
        :param since: only events from then on.
        :param limit: at most so many, the newest; None: all.
        """
        return recorded_events(self.reading, lookup_ids=lookup_ids, types=types, since=since, limit=limit)

    def check(self) -> CheckResult:
        """Hold the queue against what a store promises, over its whole history."""
        return check_queue(self.store.tables, self.name, self.clock)

    # The endpoint and its settings -----------------------------------------------------------------------------------

    def enable(self, *, reason: str = "") -> EnableResult:
        """Let a halted queue receive again; what was sent to it while it was disabled arrives.

        The message that halted it keeps its counts: remove it first, or it may halt the queue again.
        """
        with self._acting(reason):
            result = enable(self.table, self.clock)
            Ending(self.table, self.clock, self.store.tables).carry()
        return result

    def disable(self, reason: str = "", *, endpoint_only: bool = False) -> DisableResult:
        """Set a queue to OFF (spec SB-18): no pass begins, and what is sent to it waits. A pass that runs finishes what it has claimed.

        :param endpoint_only: stop its endpoint alone: no pass begins, and messages go on arriving (spec WMQ-27).
        """
        with self._acting(reason):
            return disable(self.table, self.clock, reason, endpoint_only=endpoint_only)

    def alter(
        self,
        settings: Mapping[str, object] | None = None,
        system: str | None = None,
        *,
        park_group: bool | None = None,
        reason: str = "",
    ) -> AlterResult:
        """Change some recorded settings of a queue, in our words or the manual's. Raises SettingError; then nothing has changed.

        A DAG that declares a policy for the queue records its own again at its next run.

        :param system: the messaging system whose rules the queue has from now on; None: that which it has.
        :param park_group: whether messages wait behind earlier ones of their groups that have failed; None: as it is recorded.
        """
        with self._acting(reason):
            return alter(self.table, self.clock, settings=settings or {}, system=system, park_group=park_group)

    def restart(self, what: Restart | str, *, reason: str = "") -> RestartResult:
        """Restart the queue's ``endpoint``, its application ``server`` or the ``broker``, as far as the queue is concerned.

        Raises MessageClaimedError while a pass receives, SettingError.
        """
        with self._acting(reason):
            return restart(self.table, self.clock, choice("what", what, Restart))

    def recover(
        self,
        lookup_id: int | None = None,
        on_conversation_ended: Callable[[ConversationEnded], object] = lambda _ended: None,
        *,
        reason: str = "",
    ) -> RecoverResult:
        """Remove the message that halted the queue, with its conversation, and enable the queue (spec SB-34). Inspect first: it is for good.

        A conversation of the queue's services ends with error 127, which its partner gets as a message (spec SB-26, SB-32).

        :param lookup_id: another message than the one that halted the queue.
        :param on_conversation_ended: called after the commit, at least once; remove the application's state for the conversation there (spec SB-31).
        Raises MessageNotFoundError, MessageClaimedError and ConversationLockedError.
        """
        with self._acting(reason):
            return recover(self.table, self.clock, lookup_id=lookup_id, store=self.store.tables, on_ended=on_conversation_ended)

    def maintain(self, retention: timedelta | None = None, min_files: int = 16) -> MaintainResult:
        """Join a queue's small files, remove files that are no longer needed and shorten its log; passes and senders go on.

        :param retention: how long older versions of the table can still be read; None: 7 days. Longer than the longest pass.
        :param min_files: as many small files have to follow each other before they are joined.
        Raises SettingError, StoreUnreachableError.
        """
        keep = RETENTION if retention is None else retention
        return maintain(self.table, self.clock, store=self.store.tables, retention=keep, min_files=min_files)

    # Messages --------------------------------------------------------------------------------------------------------

    def inspect(
        self,
        *,
        lookup_id: int | None = None,
        conversation_id: str | None = None,
        mode: Inspection | str | None = None,
        every: bool = False,
        unmask: bool = False,
    ) -> InspectResult:
        """Look at a message, at a conversation's next one, or at the suspect: what halted the queue, else its head. Nothing is changed.

        :param mode: ``browse`` reads everything; ``exempt`` and ``strict`` see what a receive would get (spec SB-33).
        :param every: all messages of the conversation, at most 100.
        :param unmask: with the values that the queue hides.
        Raises QueueHaltedError when the queue is halted and is not browsed.
        """
        return inspect(self.reading, self.clock, lookup_id=lookup_id, conversation_id=conversation_id, mode=mode, every=every, unmask=unmask)

    def look_up(self, lookup_ids: Collection[int], *, unmask: bool = False) -> tuple[MessageRow, ...]:
        """Return those of these messages that are there, whole, wherever they are; claimed ones, too.

        :param unmask: with the values that the queue hides.
        """
        return look_up(self.reading, Chosen.ids(lookup_ids), unmask=unmask)

    def move(self, lookup_ids: Collection[int], target: SubQueue | str = "main", *, run: str | None = None, reason: str = "") -> int:
        """Move messages to ``main`` or to ``poison``, all or none; return how many. Raises MessageNotFoundError and MessageClaimedError.

        :param run: a key: what a move with the same key has moved before, and is not there now, is no error.
        """
        with self._acting(reason):
            return move(self.table, self.clock, lookup_ids, target, run=run)

    def put_back(self, lookup_ids: Collection[int] | None = None, *, reason: str = "") -> int:
        """Put messages back from poison to main, for one more cycle (spec WCF-28); return how many.

        :param lookup_ids: which; None: all that no pass has claimed.
        Raises MessageNotFoundError and MessageClaimedError; then nothing was moved.
        """
        with self._acting(reason):
            return put_back(self.table, self.clock, lookup_ids)

    def send_to(self, lookup_ids: Collection[int], queue: str | None = None, *, run: str | None = None, reason: str = "") -> SendToResult:
        """Move messages to another queue, all or none.

        :param queue: where to; it must exist. None: to the queue that each message came from.
        :param run: a key: what a call with the same key has sent before, and is not there now, is no error.
        Raises QueueNotFoundError, InputError, MessageNotFoundError and MessageClaimedError; then nothing was moved.
        """
        with self._acting(reason):
            return send_to(self.table, self.store.tables, self.clock, lookup_ids, queue, run=run)

    def remove(self, lookup_id: int, *, reason: str = "") -> Message:
        """Take one message out of the queue by its lookup id (spec WCF-25), from whichever sub-queue it is in; return it.

        Raises MessageNotFoundError and MessageClaimedError.
        """
        with self._acting(reason):
            return remove(self.table, lookup_id, self.clock)

    def remove_conversation(self, conversation_id: str, *, run: str | None = None, unmask: bool = False, reason: str = "") -> RemoveResult:
        """Take all messages of a conversation out of the queue (spec SB-30), in one commit; return them. Raises MessageClaimedError.

        :param run: a key of the removal, for its events.
        :param unmask: what is returned has the values that the queue hides.
        """
        with self._acting(reason):
            return remove_messages(self.table, self.clock, conversation_id=conversation_id, run=run, unmask=unmask)

    def remove_messages(self, lookup_ids: Collection[int], *, run: str | None = None, unmask: bool = False, reason: str = "") -> RemoveResult:
        """Take messages out of whichever sub-queues they are in, in one commit; return them. Raises MessageNotFoundError, MessageClaimedError.

        :param run: a key: that a removal with the same key has taken a message out is no error.
        :param unmask: what is returned has the values that the queue hides.
        """
        with self._acting(reason):
            return remove_messages(self.table, self.clock, lookup_ids, run=run, unmask=unmask)

    def return_due(self, policy: Policy | None = None) -> ReturnResult:
        """Move every message whose time has come from ``retry`` and ``postponed`` to ``main``.

        :param policy: None: the one that is recorded in the queue.
        """
        ruling = checked_policy(policy) or policy_from_dict(self.table.snapshot().control.policy)
        return return_due(self.table, self.clock, return_order=ruling.return_order)

    # Rows that wait for their outputs --------------------------------------------------------------------------------

    def waiting_rows(self) -> tuple[WaitingRows, ...]:
        """Return the returned rows that wait for their outputs."""
        return waiting_rows(self.reading)

    def take_out_rows(
        self,
        lookup_ids: Collection[int] | None = None,
        target: SubQueue | str | None = None,
        *,
        force: bool = False,
        reason: str = "",
    ) -> int:
        """Take rows out that wait for their outputs; return of how many messages.

        :param lookup_ids: of which messages; None: all rows.
        :param target: ``main`` or ``poison``, where the messages come back to; None: they stay settled, and their rows are gone.
        :param force: the output is not asked whether it has the rows.
        Raises MessageNotFoundError, SettingError and OutputError; then nothing has changed.
        """
        with self._acting(reason):
            return take_out(self.table, self.clock, lookup_ids, target, store=self.store.tables, force=force)

    def take_out_refused_rows(self, *, reason: str = "") -> int:
        """Take rows out that their outputs refuse, also those that name no message, and have all others land; return how many are taken out.

        Messages of rows that name them come into ``poison``; rows that name none are gone. Raises OutputError.
        """
        with self._acting(reason):
            return take_out_refused(self.table, self.clock, store=self.store.tables)

    # Many messages: a selection is a ``Selection``, a dict of its parameters, or that dict as JSON text; None: all poison ----

    def groups(
        self,
        selection: SelectionLike = None,
        *,
        limit: int = 1_000,
        order: str = "messages",
        descending: bool = True,
        search: str = "",
        since: datetime | None = None,
    ) -> GroupsResult:
        """Count the messages of a selection by what they failed with, the largest group first. Raises SettingError, QueryError.

        :param limit: at most so many groups.
        :param order: ``messages``, ``first_seen``, ``last_seen`` or ``type``.
        :param search: only groups that have this in their id, type or text, whatever its case.
        :param since: groups that were first seen then or later are ``new``; None: in the last day.
        """
        return groups(self.reading, selection_of(selection), self.clock, limit=limit, order=order, descending=descending, search=search, since=since)

    def find(
        self,
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
        return find(self.reading, selection_of(selection), offset=offset, limit=limit, order=order, descending=descending)

    def query(self, sql: str, *, limit: int | None = None) -> pa.Table:
        """Answer a SELECT on ``messages``, all of the queue, and its ``events``. Raises QueryError.

        :param limit: at most so many rows.
        """
        return query(self.reading, sql, limit=limit)

    def query_batches(self, sql: str, *, limit: int | None = None) -> AbstractContextManager[pa.RecordBatchReader]:
        """Give what ``query`` returns to a ``with`` block, as a reader of batches: the answer may be larger than memory. Raises QueryError."""
        return query_batches(self.reading, sql, limit=limit)

    def plan(self, selection: SelectionLike = None, action: ActionLike = "put_back", *, limit: int | None = None) -> PlanView:
        """Say what would become of the messages of a selection: how many, of which groups, with samples. Writes nothing.

        :param action: a ``PlanAction``, a dict of its parameters, or its verb: ``put_back``, ``move``, ``send_to``, ``remove``, ``edit``.
        :param limit: only so many messages, those with the lowest lookup ids.
        Raises SettingError, QueryError, QueueNotFoundError.
        """
        return self.planned(selection, action, limit=limit).view

    def planned(
        self, selection: SelectionLike = None, action: ActionLike = "put_back", *, limit: int | None = None, version: int | None = None
    ) -> Plan:
        """Plan as ``plan`` does; what is returned has the messages, too, so that ``record_plan`` records exactly these. Writes nothing.

        :param version: of a plan that was shown; None: the newest.
        """
        act = action_of(action)
        if act.verb is Verb.SEND_TO and act.target:
            check_target(act.target, self.reading, self.store.tables)
        return plan(self.reading, selection_of(selection, act), act, self.clock, limit=limit, version=version)

    def record(
        self,
        selection: SelectionLike = None,
        action: ActionLike = "put_back",
        *,
        limit: int | None = None,
        rate: int | None = None,
        chunk: int | None = None,
        canary: CanaryLike = None,
        reason: str = "",
        key: str = "",
        version: int | None = None,
    ) -> str:
        """Plan, and record the plan in the queue, so that ``apply`` does what it says; return its id. Parameters as of ``redrive``.

        :param version: of a plan that was shown: what has changed since then is left out. Raises PlanStateError when nothing else is left.
        """
        act, first = action_of(action), canary_of(canary)
        wanted = selection_of(selection, act)
        if key:
            try:
                return find_plan(self.table, id_of(key)).plan
            except PlanNotFoundError:
                pass
        planned = self.planned(wanted, act, limit=limit, version=version)
        if version is not None and not planned.view.messages:
            raise PlanStateError(f"No message of queue {self.name!r} is in the selection any more. Nothing was done; look at it again.")
        return self.record_plan(planned, rate=rate, chunk=chunk, canary=first, reason=reason, key=key)

    def record_plan(
        self, planned: Plan, *, rate: int | None = None, chunk: int | None = None, canary: CanaryLike = None, reason: str = "", key: str = ""
    ) -> str:
        """Record what ``planned`` has returned; return the id of the plan. Parameters as of ``redrive``."""
        first = canary_of(canary)
        return record(self.table, planned, self.clock, who=self.actor, reason=reason, rate=rate, chunk=chunk, canary=first, key=key)

    def redrive(
        self,
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
        :param rate: messages a second, at most.
        :param chunk: messages of one commit.
        :param canary: so many messages go first, or a dict with ``messages`` and ``share``; the others follow when at least the share was settled.
        :param reason: why, for the events.
        :param key: a second call with the same key goes on with the same plan.
        :param patience: as of ``apply``.
        :param progress: called with the plan after each chunk.
        :param stop: asked before each chunk.
        Raises SettingError, QueryError, QueueNotFoundError, PlanStateError.
        """
        plan = self.record(selection, action, limit=limit, rate=rate, chunk=chunk, canary=canary, reason=reason, key=key)
        return self.apply(plan, patience=patience, progress=progress, stop=stop)

    def apply(
        self,
        plan: str,
        *,
        patience: timedelta | None = NOT_AT_ALL,
        progress: Callable[[PlanView], object] = lambda _view: None,
        stop: Callable[[], bool] = lambda: False,
        wait: Callable[[float], None] = time.sleep,
    ) -> PlanView:
        """Apply the rest of a recorded plan, and return it. Each message is changed once, however often this is called.

        :param patience: how long to wait for passes that have claimed some of its messages, or that receive its canary; None: without an end.
        :param wait: waits so many seconds, or until ``stop`` says so.
        Raises PlanNotFoundError, PlanStateError for a plan that was cancelled or undone.
        """
        seconds = None if patience is None else patience.total_seconds()
        return follow(self.table, plan, self.clock, store=self.store.tables, patience=seconds, progress=progress, stop=stop, wait=wait)

    def plans(self) -> tuple[PlanView, ...]:
        """Return the recorded plans of a queue, the newest first."""
        return plans(self.reading)

    def find_plan(self, plan: str) -> PlanView:
        """Return a recorded plan. Raises PlanNotFoundError."""
        return find_plan(self.reading, plan)

    def pause(self, plan: str, reason: str = "") -> PlanView:
        """Let nothing more become of a plan until it is resumed. Raises PlanNotFoundError, PlanStateError."""
        return pause(self.table, plan, self.clock, who=self.actor, reason=reason)

    def resume(
        self,
        plan: str,
        reason: str = "",
        *,
        apply: bool = True,
        patience: timedelta | None = NOT_AT_ALL,
        progress: Callable[[PlanView], object] = lambda _view: None,
        stop: Callable[[], bool] = lambda: False,
    ) -> PlanView:
        """Go on with a plan that is paused, or whose process has died, and apply it; one that its canary has stopped goes on without it.

        :param apply: False: the rest is for a later call of ``apply``.
        The other parameters as of ``apply``. Raises PlanNotFoundError, PlanStateError.
        """
        resumed = resume(self.table, plan, self.clock, who=self.actor, reason=reason)
        return resumed if not apply else self.apply(plan, patience=patience, progress=progress, stop=stop)

    def cancel(self, plan: str, reason: str = "") -> PlanView:
        """End a plan; what it has done stays done. Raises PlanNotFoundError, PlanStateError."""
        return cancel(self.table, plan, self.clock, who=self.actor, reason=reason)

    def undo(
        self,
        plan: str,
        reason: str = "",
        *,
        progress: Callable[[PlanView], object] = lambda _view: None,
        stop: Callable[[], bool] = lambda: False,
    ) -> PlanView:
        """Take back what a plan has done to messages that were not received, moved or edited since; return it with ``done``: what stays changed.

        Raises PlanNotFoundError, and PlanStateError for a plan whose messages were sent to other queues.
        """
        return undo(self.table, plan, self.clock, who=self.actor, reason=reason, progress=progress, stop=stop)

    # Rules -----------------------------------------------------------------------------------------------------------

    def declare_rules(self, rules: Sequence[Rule | Mapping[str, Any]]) -> tuple[Rule, ...]:
        """Record the rules for a queue's poison, in place of those that it has. Raises SettingError and QueryError."""
        return declare_rules(self.table, rules, self.clock)

    def run_rules(self, *, dry_run: bool = False, rules: Sequence[Rule] | None = None, run: str = "") -> RulesResult:
        """Do what a queue's rules say, as far as it is time.

        :param dry_run: only say what each rule has and would take; nothing is written.
        :param rules: for that; None: the recorded ones.
        :param run: a key: however often it is called with it, each rule makes one plan.
        """
        if dry_run:
            return rule_runs.dry_run(self.reading, self.clock, rules, self.store.tables)
        return rule_runs.run_rules(self.table, self.clock, who=self.actor, store=self.store.tables, run=run)

    def redrive_on_new_handler(self, canary: Canary | Mapping[str, Any] | None) -> Canary | None:
        """Let a queue redrive its poison by itself when its handler is a new one; None: not any more.

        :param canary: so many messages of each error group go first, and such a share must be settled before the others follow.
        """
        return set_redrive(self.table, canary, self.clock)

    # Sources, and the way back to Kafka ------------------------------------------------------------------------------

    def take(
        self,
        source: Source,
        *,
        key: str,
        mapping: ColumnMapping | None = None,
        limit: int | None = None,
        between: tuple[str, str] | None = None,
        read: Callable[[Take], Iterator[pa.RecordBatch]] | None = None,
    ) -> TakeResult:
        """Send what is new in a source, with its new position, in one commit. Raises SourceError, InputError; then nothing was sent.

        :param key: a second take with the same key takes nothing.
        :param limit: take at most so many messages, as far as the source can stop there.
        :param between: a backfill: what lies between two places of the source, whatever was taken before.
        :param read: reads the records elsewhere, for example in Spark's executors; None: here.
        """
        connected = source.connected(self.store.connections)
        return take(self.table, connected, key=key, clock=self.clock, mapping=mapping, limit=limit, between=between, read=read)

    def positions(self) -> tuple[SourcePosition, ...]:
        """Return how far each source was taken into a queue."""
        return positions(self.reading)

    def reset_position(self, source: str, *, reason: str = "") -> bool:
        """Forget how far a source was taken: the next take begins where the source begins. False when it was not known.

        :param source: its name, as ``positions`` returns it.
        """
        with self._acting(reason):
            return reset_position(self.table, source, self.clock)

    def send_to_kafka(
        self,
        lookup_ids: Collection[int],
        kafka: Kafka,
        *,
        selection: SelectionLike = None,
        key: str = "record",
        run: str | None = None,
        reason: str = "",
    ) -> SendToKafkaResult:
        """Move messages to a Kafka topic, and what earlier calls have left on its way there.

        :param lookup_ids: of which messages, all in one commit; none: the messages of ``selection``.
        :param kafka: the topic, with settings or the id of a connection.
        :param selection: messages that meet it now, 10,000 in each commit, but those that a pass has claimed; ``{}``: all poison. None: none.
        :param key: what the records' keys are: ``record`` (the key of the record that a message came from; the lookup id where it came from
            elsewhere), ``lookup_id``, or ``group_id`` (the lookup id where a message has no group).
        :param run: of lookup ids, a key: what a call with the same key has sent before, and is not there now, is no error.
        A record that the topic refuses comes into ``poison`` with the reason (``returned``); the others are sent.
        Raises SourceError, InputError, MessageNotFoundError, MessageClaimedError; then nothing of the commit was moved. Raises OutputError when the
        topic takes no messages: they wait in the queue's outbox for the next call, or for ``take_back_from_kafka``.
        """
        if selection is not None and lookup_ids:
            raise InputError("lookup_ids and selection: expected one of them. Nothing was moved.")
        connected = kafka.connected(self.store.connections)
        with self._acting(reason):
            if selection is None:
                return send_to_kafka(self.table, lookup_ids, connected, self.clock, key=key, run=run)
            return send_selected(self.table, selection_of(selection), connected, self.clock, key=key)

    def take_back_from_kafka(self, kafka: Kafka, *, reason: str = "") -> SendToKafkaResult:
        """Put messages that wait in the outbox for a topic into ``poison``; those that are in the topic already only leave the outbox.

        Raises SourceError, OutputError; then what was not taken back waits in the outbox.
        """
        with self._acting(reason):
            return take_back_from_kafka(self.table, kafka.connected(self.store.connections), self.clock)

    # Conversations: what an act sends leaves at once; an act is done once for each ``key`` ---------------------------

    def drop_service(self, service: str) -> None:
        """Take a service from its queue: DROP SERVICE. A sender to it gets an Error message (spec SB-57). Raises ServiceNotFoundError."""
        drop_service(self.table, service)

    def event_notifications(self) -> dict[str, str]:
        """Return the services that get a message whenever the queue is disabled, by the names of the notifications."""
        return dict(self.reading.snapshot().control.event_notifications)

    def create_event_notification(self, name: str, service: str, *, reason: str = "") -> None:
        """Have a service get a message whenever the queue is disabled: CREATE EVENT NOTIFICATION … FOR BROKER_QUEUE_DISABLED (spec SB-16).

        The message is of the contract ``EVENT_NOTIFICATION``, in a dialog of its own; its body is the document EVENT_INSTANCE (spec SB-17).

        :param name: of the notification; the same name and service again change nothing.
        :param service: of any queue of the store.
        :param reason: why; recorded in the queue's history with who did it.
        Raises QueueNotFoundError, ServiceNotFoundError, and SettingError for a service without that contract or a name that is taken.
        """
        with self._acting(reason):
            create(self.store.tables, self.table, name, service, self.clock)

    def drop_event_notification(self, name: str, *, reason: str = "") -> None:
        """End what ``create_event_notification`` has begun. Raises SettingError for a name that is none."""
        with self._acting(reason):
            drop(self.table, name, self.clock)

    def begin_dialogs(self, *, service: str, far_service: str, contract: str, dialogs: Sequence[Dialog], key: str) -> ActResult:
        """Begin dialogs and send their first messages, all in one commit (spec SB-36, SB-48).

        :param key: a second call with the same key begins nothing, and returns the same handles.
        Raises ServiceNotFoundError, SettingError, InputError, and ConversationLockedError while a pass holds the group of a dialog.
        """
        done = begin_dialogs(self.table, service=service, far_service=far_service, contract=contract, dialogs=dialogs, key=key, clock=self.clock)
        return self._leave(done)

    def send_on(self, conversation: str, messages: Sequence[tuple[str, bytes]], *, key: str, wait: timedelta = NOT_AT_ALL) -> ActResult:
        """Send messages, types and bodies, on a conversation.

        Raises ConversationNotFoundError (8426), ConversationSendError (8429), ConversationLockedError, SettingError, InputError.
        """
        return self._leave(send_on(self.table, conversation, messages, key=key, clock=self.clock, wait=wait))

    def set_timer(self, conversation: str, timeout: timedelta, *, key: str, wait: timedelta = NOT_AT_ALL) -> ActResult:
        """Set the conversation timer of this side, or start it again (spec SB-45, SB-56).

        Raises ConversationNotFoundError (8426), ConversationTimerError (8458), ConversationLockedError, SettingError.
        """
        return self._leave(set_timer(self.table, conversation, timeout, key=key, clock=self.clock, wait=wait))

    def end_conversation(
        self,
        conversation: str,
        *,
        key: str,
        error: int | None = None,
        description: str = "",
        cleanup: bool = False,
        enable: bool = False,
        wait: timedelta = NOT_AT_ALL,
        on_conversation_ended: Callable[[ConversationEnded], object] = lambda _ended: None,
        reason: str = "",
    ) -> ActResult:
        """End this side of a conversation, whether or not its queue is enabled (spec SB-21, SB-26, SB-54). All its messages go (spec SB-30).

        The parameters are those of QueueEndConversationOperator; ``on_conversation_ended`` is called with the ended conversation.
        Raises ConversationNotFoundError (8426), ConversationEndedError (8427), ConversationLockedError, SettingError.
        """
        ending = Ending(
            self.table,
            self.clock,
            self.store.tables,
            error=error,
            description=description,
            cleanup=cleanup,
            on_ended=on_conversation_ended,
            wait=wait,
        )
        with self._acting(reason):
            return ending.end_and_enable(conversation, key) if enable else ending.end(conversation, key)[0]

    def conversations(self, *, conversation: str | None = None, ended: bool = False) -> tuple[ConversationRow, ...]:
        """Return the conversation endpoints of a queue, sorted by handle, as ``sys.conversation_endpoints`` shows them.

        :param conversation: only this one, a handle.
        :param ended: also those that this side remembers only because they have ended.
        Raises ConversationNotFoundError (8426) for a handle that the queue does not know.
        """
        return conversations(self.reading, handle=conversation, ended=ended)

    def conversation(self, conversation: str, limit: int = 50) -> ConversationView:
        """Return one conversation endpoint of the queue with its messages. Raises ConversationNotFoundError (8426).

        :param limit: how many messages, at least 1.
        """
        return conversation_view(self.reading, conversation, limit)

    def transmission_queue(self) -> tuple[UnsentMessage, ...]:
        """Return what waits at this side until the partners' queues take it, and why, as ``sys.transmission_queue`` shows it (spec SB-19)."""
        return transmission_queue(self.store.tables, self.reading)

    def _leave(self, done: ActResult) -> ActResult:
        return left(self.store.tables, self.table, done, self.clock)


@overload
def protect(
    job: str,
    /,
    *,
    store: QueueStore | str,
    policy: Policy | None = ...,
    storage_options: Mapping[str, str] | None = ...,
    **options: Unpack[ReceiveOptions],
) -> Callable[[DataFrame, int], None]: ...


@overload
def protect(
    job: DataFrame,
    queue: str,
    /,
    *,
    store: QueueStore | str,
    key: str,
    policy: Policy | None = ...,
    storage_options: Mapping[str, str] | None = ...,
    **options: Unpack[ReceiveOptions],
) -> ReceiveResult: ...


def protect(
    job: DataFrame | str,
    queue: str = "",
    /,
    *,
    store: QueueStore | str,
    key: str = "",
    policy: Policy | None = None,
    storage_options: Mapping[str, str] | None = None,
    **options: Unpack[ReceiveOptions],
) -> ReceiveResult | Callable[[DataFrame, int], None]:
    """Protect a script or a notebook, ``protect(spark.read.parquet(...), "orders", key=..., ...)``, or a job of Structured Streaming.

    For the latter it returns what ``foreachBatch`` calls: ``stream.writeStream.foreachBatch(protect("orders", ...))``. Rows that succeed land in the
    job's table, and only rows that fail become messages of a queue. Each key, and each micro-batch of a query, is taken once.

    :param job: the job's DataFrame; of a stream the name of the queue.
    :param queue: the queue's name; with a policy it is made when it is missing.
    :param store: the folder or the URI of the queues.
    :param storage_options: see ``Store``.
    :param key: names the rows of the DataFrame: another call with it takes nothing.
    :param policy: the queue's rules; None: the recorded ones.
    :param options: ``transform``, what the job does to a DataFrame; ``output``, the Delta table that it writes; others of a receive.
    Raises SettingError and QueueNotFoundError before anything is taken; with a DataFrame as ``Queue.receive_frame`` does. What is raised in a
    micro-batch stops the stream, which goes on with this micro-batch when it is started again.
    """
    if options.get("transform") is None or options.get("output") is None:
        raise SettingError("transform", options.get("transform"), "a function of a DataFrame, and output=, the table where its rows land")
    if options.get("source") is not None:
        raise SettingError("source", options["source"], "what Queue.receive takes; here the rows are those of the DataFrame or the stream")
    # what is wrong with the settings is an error before a queue is made, or a stream starts
    Receive.of(job if isinstance(job, str) else queue, policy=policy, **options)
    if isinstance(job, str):
        return _MicroBatches(job, store, storage_options, policy, options)
    return _opened(queue, store, storage_options, policy).receive_frame(job, policy, key=check_key(key), progress=_log.info, **options)


def _opened(name: str, store: QueueStore | str, storage_options: Mapping[str, str] | None, policy: Policy | None) -> Queue:
    opened = Store(store, storage_options)
    return opened.queue(name) if policy is None else opened.declare(name, policy)


class _MicroBatches:
    """What ``foreachBatch`` calls. On Spark Connect it travels to the server, and opens the queue there."""

    def __init__(
        self, name: str, store: QueueStore | str, storage_options: Mapping[str, str] | None, policy: Policy | None, options: ReceiveOptions
    ) -> None:
        self._name, self._policy, self._options = name, policy, options
        self._open = partial(_opened, name, store, storage_options, policy)
        self._queue: Queue | None = self._open()  # what is wrong with it is an error before the stream starts

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_queue": None}

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Receive a micro-batch."""
        from airflow_poison.spark.jobs import streaming_query

        found = streaming_query(frame.sparkSession)
        if found is None:
            raise InputError(f"{batch_id} is no micro-batch of a stream: no streaming query calls here. Use protect(frame, {self._name!r}, key=...).")
        self._queue = self._queue or self._open()
        query, run = found
        taken = self._queue.table.uri, run, batch_id
        if run and taken in _taken:
            raise InputError(
                f"Micro-batch {batch_id} was given to queue {self._name!r} twice in one run of its stream, and each is taken once: these "
                f"rows would be left out. Give all rows in one call, or each part by protect(frame, {self._name!r}, key=...) with a key of its own."
            )
        given: ReceiveOptions = {**self._options, "source": Frame(frame, f"micro-batch {batch_id}", fixed=True)}
        self._queue.receive(None, self._policy, key=f"stream:{query}:{batch_id}", spark=frame.sparkSession, progress=_log.info, **given)
        _taken.append(taken)


_taken: deque[tuple[str, str, int]] = deque(maxlen=1_000)
"""Micro-batches that this process has taken last: queue, run of the query, number."""


def _spark_engine(spark: SparkSession, progress: Callable[[str], None]) -> Engine:
    from airflow_poison.spark.engine import SparkEngine

    return SparkEngine(spark, progress)


def _key(key: str | None) -> str:
    """Return what names a call: its key, or one that no other call has. Raises SettingError for a blank one: it may have been meant to be one."""
    return uuid4().hex if key is None else check_key(key)


def _no_connections(conn_id: str) -> Connection:
    raise SourceError(
        f"The source names the connection {conn_id!r}, and outside of Airflow there are none. Give the source its settings. Nothing was sent."
    )
