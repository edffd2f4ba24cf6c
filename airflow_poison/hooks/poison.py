"""From an Airflow connection to a store of queues and the Spark that receives from them."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowNotFoundException

from airflow_poison.hooks.connection import StoreConnection, acting_here, actor_here, options_with_credentials, secrets_of, spark_master
from airflow_poison.hooks.desk import DeskVerbs
from airflow_poison.hooks.sources import SourceVerbs
from airflow_poison.values.clock import SystemClock
from airflow_poison.values.errors import SettingError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from datetime import timedelta

    from pyspark.sql import SparkSession

    from airflow_poison.desk.plans import Canary
    from airflow_poison.desk.retention import RetainResult, Retention
    from airflow_poison.desk.rule_runs import RulesResult
    from airflow_poison.desk.rules import Rule
    from airflow_poison.dialogs.services import Service
    from airflow_poison.passes.alter import AlterResult, DisableResult, EnableResult, RestartResult
    from airflow_poison.passes.inspect import InspectResult
    from airflow_poison.passes.land import WaitingRows
    from airflow_poison.passes.maintain import MaintainResult
    from airflow_poison.passes.move import RemoveResult
    from airflow_poison.passes.recovery import ConversationEnded, RecoverResult
    from airflow_poison.passes.relay import SendToResult
    from airflow_poison.rules.policy import Policy, Restart
    from airflow_poison.rules.queue_disabling import Inspection
    from airflow_poison.spark.engine import SparkEngine
    from airflow_poison.store import QueueStore
    from airflow_poison.store.queue_table import QueueTable
    from airflow_poison.values.message import Message
    from airflow_poison.values.schema import SubQueue


class QueueHook(DeskVerbs, SourceVerbs, BaseHook):
    """Opens the queues of a connection.

    While no connection ``poison_default`` is defined, the store is the folder ``poison`` in ``AIRFLOW_HOME`` and Spark runs as ``local[*]``:
    the embedded default needs no set-up. What people change is recorded with who has done it (the task that runs here, else the user of the shell),
    and with the ``reason`` that they give.

    :param conn_id: connection of type ``poison``.
    """

    conn_name_attr = "conn_id"
    default_conn_name = "poison_default"
    conn_type = "poison"
    hook_name = "Poison queues"

    def __init__(self, conn_id: str = default_conn_name) -> None:
        super().__init__()
        self.conn_id = conn_id

    @cached_property
    def settings(self) -> StoreConnection:
        """What the connection says. Raises SettingError for what it must not say, AirflowNotFoundException for an id that is not defined."""
        try:
            connection = self.get_connection(self.conn_id)
        except AirflowNotFoundException:
            if self.conn_id != self.default_conn_name:
                raise
            return StoreConnection(store=embedded_store())
        if connection.conn_type != self.conn_type:
            raise SettingError(f"{self.conn_id}.conn_type", connection.conn_type, f"{self.conn_type}; else its queues would be the embedded store's")
        settings = StoreConnection.of(connection, self.conn_id)
        if settings.credentials_conn_id:
            settings = replace(settings, storage_options=options_with_credentials(settings, self.conn_id, self.get_connection))
        if settings.storage_options:
            from airflow.sdk.log import mask_secret

            mask_secret(dict(settings.storage_options))
            for secret in secrets_of(settings.storage_options):
                mask_secret(secret)
        return settings if settings.store else replace(settings, store=embedded_store())

    def store(self) -> QueueStore:
        """Return the store. Raises StoreUnreachableError when its root cannot be read or written."""
        from airflow_poison.store import open_store

        return open_store(self.settings.store, dict(self.settings.storage_options) or None, durable=self.settings.durable)

    def queue(
        self, queue_name: str, policy: Policy | None = None, services: Sequence[Service] = (), mask: Sequence[str] | str | None = None
    ) -> QueueTable:
        """Return a queue.

        :param policy: makes the queue when it is missing and records this policy in it; without it the queue must exist. Another one than the
            recorded one leaves an event and a warning in the log.
        :param services: declared on the queue: CREATE SERVICE, or ALTER SERVICE where the queue has it already. Its other services stay.
        :param mask: paths of values that are hidden wherever messages are shown, recorded in the queue; None: as recorded, []: none.
        Raises QueueNotFoundError, SystemChangeError for a policy of another messaging system than the queue's, and SettingError for services of a
        queue without Service Broker's rules, or that another queue has.
        """
        from airflow_poison.passes.alter import opened

        store, clock = self.store(), SystemClock()
        table = opened(store, queue_name, policy, clock, _this_run())
        if services:
            from airflow_poison.passes.conversations import declare_services

            declare_services(store, table, services, clock)
        if mask is not None:
            from airflow_poison.desk.masking import declare_mask

            with acting_here():
                declare_mask(table, clock, mask)
        return table

    def queue_to_read(self, queue_name: str) -> QueueTable:
        """Return a queue for reading: nothing in its folder is changed. Raises QueueNotFoundError."""
        return self.store().open(queue_name, read_only=True)

    def enable(self, queue_name: str, *, reason: str = "") -> EnableResult:
        """Let a halted queue receive again; what was sent to it while it was disabled arrives.

        The message that halted it keeps its counts: remove it first, or it may halt the queue again.
        """
        from airflow_poison.passes.alter import enable
        from airflow_poison.passes.recovery import Ending

        store, clock = self.store(), SystemClock()
        table = store.open(queue_name)
        with acting_here(reason):
            result = enable(table, clock)
            Ending(table, clock, store).carry()
        return result

    def disable(self, queue_name: str, reason: str = "", *, endpoint_only: bool = False) -> DisableResult:
        """Set a queue to OFF (spec SB-18): no pass begins, and what is sent to it waits. A pass that runs finishes what it has claimed.

        :param endpoint_only: stop its endpoint alone: no pass begins, and messages go on arriving (spec WMQ-27).
        """
        from airflow_poison.passes.alter import disable

        with acting_here(reason):
            return disable(self.store().open(queue_name), SystemClock(), reason, endpoint_only=endpoint_only)

    def alter(
        self,
        queue_name: str,
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
        from airflow_poison.passes.alter import alter

        with acting_here(reason):
            return alter(self.store().open(queue_name), SystemClock(), settings=settings or {}, system=system, park_group=park_group)

    def restart(self, queue_name: str, what: Restart | str, *, reason: str = "") -> RestartResult:
        """Restart the queue's ``endpoint``, its application ``server`` or the ``broker``, as far as the queue is concerned.

        Raises MessageClaimedError while a pass receives, SettingError.
        """
        from airflow_poison.passes.alter import restart
        from airflow_poison.rules.policy import Restart
        from airflow_poison.rules.settings import choice

        with acting_here(reason):
            return restart(self.store().open(queue_name), SystemClock(), choice("what", what, Restart))

    def inspect(
        self,
        queue_name: str,
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
        from airflow_poison.passes.inspect import inspect

        table = self.queue_to_read(queue_name)
        return inspect(table, SystemClock(), lookup_id=lookup_id, conversation_id=conversation_id, mode=mode, every=every, unmask=unmask)

    def move(self, queue_name: str, lookup_ids: Collection[int], target: SubQueue | str = "main", *, run: str | None = None, reason: str = "") -> int:
        """Move messages to ``main`` or to ``poison``, all or none; return how many. Raises MessageNotFoundError and MessageClaimedError.

        :param run: a key: what a move with the same key has moved before, and is not there now, is no error.
        """
        from airflow_poison.passes.move import move

        with acting_here(reason):
            return move(self.store().open(queue_name), SystemClock(), lookup_ids, target, run=run)

    def send_to(
        self, queue_name: str, lookup_ids: Collection[int], queue: str | None = None, *, run: str | None = None, reason: str = ""
    ) -> SendToResult:
        """Move messages to another queue, all or none.

        :param queue: where to; it must exist. None: to the queue that each message came from.
        :param run: a key: what a call with the same key has sent before, and is not there now, is no error.
        Raises QueueNotFoundError, InputError, MessageNotFoundError and MessageClaimedError; then nothing was moved.
        """
        from airflow_poison.passes.relay import send_to

        store = self.store()
        with acting_here(reason):
            return send_to(store.open(queue_name), store, SystemClock(), lookup_ids, queue, run=run)

    def put_back(self, queue_name: str, lookup_ids: Collection[int] | None = None, *, reason: str = "") -> int:
        """Put messages back from poison to main, for one more cycle (spec WCF-28); return how many.

        :param lookup_ids: which; None: all that no pass has claimed.
        Raises MessageNotFoundError and MessageClaimedError; then nothing was moved.
        """
        from airflow_poison.passes.move import put_back

        with acting_here(reason):
            return put_back(self.store().open(queue_name), SystemClock(), lookup_ids)

    def declare_rules(self, queue_name: str, rules: Sequence[Rule | Mapping[str, Any]]) -> tuple[Rule, ...]:
        """Record the rules for a queue's poison, in place of those that it has. Raises SettingError and QueryError."""
        from airflow_poison.desk.rules import declare_rules

        return declare_rules(self.store().open(queue_name), rules, SystemClock())

    def run_rules(self, queue_name: str, *, dry_run: bool = False, run: str = "") -> RulesResult:
        """Do what a queue's rules say, as far as it is time.

        :param dry_run: only say what each rule has and would take; nothing is written.
        :param run: a key: however often it is called with it, each rule makes one plan.
        """
        from airflow_poison.desk import rule_runs

        if dry_run:
            return rule_runs.dry_run(self.queue_to_read(queue_name), SystemClock())
        store = self.store()
        return rule_runs.run_rules(store.open(queue_name), SystemClock(), who=actor_here(), store=store, run=run)

    def redrive_on_new_handler(self, queue_name: str, canary: Canary | Mapping[str, Any] | None) -> Canary | None:
        """Let a queue redrive its poison by itself when its handler is a new one; None: not any more.

        :param canary: so many messages of each error group go first, and such a share must be settled before the others follow.
        """
        from airflow_poison.desk.redrive import set_redrive

        return set_redrive(self.store().open(queue_name), canary, SystemClock())

    def remove(self, queue_name: str, lookup_id: int, *, reason: str = "") -> Message:
        """Take one message out of the queue by its lookup id (spec WCF-25), from whichever sub-queue it is in; return it.

        Raises MessageNotFoundError and MessageClaimedError.
        """
        from airflow_poison.passes.move import remove

        with acting_here(reason):
            return remove(self.store().open(queue_name), lookup_id, SystemClock())

    def waiting_rows(self, queue_name: str) -> tuple[WaitingRows, ...]:
        """Return the returned rows that wait for their outputs."""
        from airflow_poison.passes.land import waiting_rows

        return waiting_rows(self.queue_to_read(queue_name))

    def take_out_rows(
        self,
        queue_name: str,
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
        from airflow_poison.passes.land import take_out

        store = self.store()
        with acting_here(reason):
            return take_out(store.open(queue_name), SystemClock(), lookup_ids, target, store=store, force=force)

    def take_out_refused_rows(self, queue_name: str, *, reason: str = "") -> int:
        """Take rows out that their outputs refuse, also those that name no message, and have all others land; return how many are taken out.

        Messages of rows that name them come into ``poison``; rows that name none are gone. Raises OutputError.
        """
        from airflow_poison.passes.land import take_out_refused

        store = self.store()
        with acting_here(reason):
            return take_out_refused(store.open(queue_name), SystemClock(), store=store)

    def remove_conversation(self, queue_name: str, conversation_id: str, *, unmask: bool = False, reason: str = "") -> RemoveResult:
        """Take all messages of a conversation out of the queue (spec SB-30), in one commit; return them. Raises MessageClaimedError.

        :param unmask: what is returned has the values that the queue hides.
        """
        from airflow_poison.passes.move import remove_messages

        with acting_here(reason):
            return remove_messages(self.store().open(queue_name), SystemClock(), conversation_id=conversation_id, unmask=unmask)

    def recover(
        self,
        queue_name: str,
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
        from airflow_poison.passes.recovery import recover

        store = self.store()
        with acting_here(reason):
            return recover(store.open(queue_name), SystemClock(), lookup_id=lookup_id, store=store, told=on_conversation_ended)

    def maintain(
        self,
        queue_name: str,
        retention: timedelta | None = None,
        min_files: int = 16,
        poison_retention: Retention | Mapping[str, object] | None = None,
    ) -> MaintainResult:
        """Join a queue's small files, remove files that are no longer needed and shorten its log; passes and senders go on.

        Old poison is reported, or written and removed, where the queue has a retention.

        :param retention: how long older versions of the table can still be read; None: 7 days. Longer than the longest pass.
        :param min_files: as many small files have to follow each other before they are joined.
        :param poison_retention: recorded in the queue, its parts as a dict also; None: as recorded, {}: none.
        Raises SettingError, StoreUnreachableError.
        """
        from airflow_poison.desk.retention import Retention, declare_retention, retain
        from airflow_poison.passes.maintain import RETENTION, maintain

        store, clock = self.store(), SystemClock()
        keep = RETENTION if retention is None else retention
        table = store.open(queue_name)
        if poison_retention is not None:
            with acting_here():
                declare_retention(table, clock, Retention.read(poison_retention or None))
        retained = retain(table, clock, who=actor_here(), store=store)  # first: what it leaves behind is cleaned up as everything else is
        done = maintain(table, clock, store=store, retention=keep, min_files=min_files)
        return done if retained is None else replace(done, retained=retained.to_dict())

    def retain(self, queue_name: str, retention: Retention | None = None) -> RetainResult | None:
        """Report poison that is too old; write it elsewhere and remove it where the retention says so. None: there is no retention.

        :param retention: for this once; None: the one that is recorded in the queue.
        """
        from airflow_poison.desk.retention import retain

        store = self.store()
        return retain(store.open(queue_name), SystemClock(), retention, who=actor_here(), store=store)

    def spark(self, py_files: Sequence[str] = ()) -> SparkSession:
        """Return the running Spark session, or start one.

        :param py_files: what executors must be able to import, see ``engine``.
        Raises JavaError, SparkDistributionError, SparkConnectError and SettingError.
        """
        from airflow_poison.spark.executors import Executors
        from airflow_poison.spark.session import get_session, without_secrets

        settings = self.settings
        master = spark_master(settings.spark, self.get_connection)
        self.log.info("Spark: %s", without_secrets(master))
        files = self.shipped(py_files)
        spark = get_session(master, settings.spark_conf)
        if files:
            Executors(spark).ship(files)
        return spark

    def engine(self, progress: Callable[[str], None], py_files: Sequence[str] = ()) -> SparkEngine:
        """Return the engine of a pass on this connection's Spark.

        :param progress: called with a line whenever another task of a stage has ended.
        :param py_files: ``.py``, ``.zip``, ``.egg`` and ``.whl`` files on this machine that are shipped to the executors, for handlers and
            what they import. Call ``import_here`` first, so that handlers are found in this process, too.
        """
        from airflow_poison.spark.engine import SparkEngine

        return SparkEngine(self.spark(py_files), progress, parallelism=self.settings.parallelism)

    def import_here(self, py_files: Sequence[str] = ()) -> None:
        """Let this process import what the connection and the caller ship to executors. Raises SettingError."""
        files = self.shipped(py_files)
        if files:
            from airflow_poison.spark.executors import import_here

            import_here(files)

    def shipped(self, py_files: Sequence[str] = ()) -> tuple[str, ...]:
        """Return the whole paths of files that the connection and the caller ship to executors. Raises SettingError."""
        if not py_files and not self.settings.py_files:
            return ()
        from airflow_poison.spark.executors import checked_files

        return checked_files(self.settings.py_files, py_files)

    def test_connection(self) -> tuple[bool, str]:
        """Say whether the store can be read, for the connection form's button."""
        try:
            store = self.store()
            names, absence = store.names(), store.absence
        except Exception as error:  # noqa: BLE001  (whatever it is, the form shows it)
            return False, f"{type(error).__name__}: {error}"
        return True, f"No queue yet: {absence}." if absence else f"Store {self.settings.store}: {len(names)} queues."

    @classmethod
    def get_ui_field_behaviour(cls) -> dict[str, Any]:
        """Hide the form's standard fields: everything is in named fields of its own."""
        return {"hidden_fields": ["host", "port", "schema", "login", "password", "extra"], "relabeling": {}}


def _this_run() -> str | None:
    """Return the task instance that runs here; None outside of one."""
    task = _this_task()
    return None if task is None else f"task {task.task_id} of DAG {task.dag_id}, run {task.run_id}"


def _this_task() -> Any:
    from airflow.sdk import get_current_context

    try:
        return get_current_context()["ti"]
    except RuntimeError:
        return None


def embedded_store() -> str:
    """Return the folder of the store that is used while no connection says otherwise."""
    return str(Path(os.environ.get("AIRFLOW_HOME") or "~/airflow").expanduser() / "poison")
