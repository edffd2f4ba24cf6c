"""From an Airflow connection to a store of queues and the Spark that receives from them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowNotFoundException

from airflow_poison.hooks.connection import (
    StoreConnection,
    actor_here,
    found_connection,
    options_with_credentials,
    secrets_of,
    spark_master,
    spark_settings,
)
from airflow_poison.store import QueueStore, open_store
from airflow_poison.values.errors import SettingError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_poison.dialogs.services import Service
    from airflow_poison.queue import Queue, Store
    from airflow_poison.rules.policy import Policy
    from airflow_poison.spark.engine import SparkEngine


class QueueHook(BaseHook):
    """Opens the queues of a connection.

    While no connection ``poison_default`` is defined, the store is the folder ``poison`` in ``AIRFLOW_HOME`` and Spark runs as ``local[*]``:
    the embedded default needs no set-up. ``QueueHook().queue("orders")`` is the queue, with all verbs (``airflow_poison.Queue``); what it changes is
    recorded with who has done it (the task that runs here, else the user of the shell).

    :param conn_id: connection of type ``poison``.
    :param spark_conn_id: connection of type ``spark`` or ``spark_connect``: where Spark runs, instead of the connection's field ``spark``.
    """

    conn_name_attr = "conn_id"
    default_conn_name = "poison_default"
    conn_type = "poison"
    hook_name = "Poison queues"

    def __init__(self, conn_id: str = default_conn_name, spark_conn_id: str | None = None) -> None:
        super().__init__()
        self.conn_id = conn_id
        self.spark_conn_id = spark_conn_id

    @cached_property
    def settings(self) -> StoreConnection:
        """What the connection says. Raises SettingError for what it must not say, AirflowNotFoundException for an id that is not defined."""
        settings = self._settings()
        return replace(settings, spark=self.spark_conn_id) if self.spark_conn_id else settings

    def _settings(self) -> StoreConnection:
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
        return open_store(self.settings.store, dict(self.settings.storage_options) or None, durable=self.settings.durable)

    def queues(self) -> Store:
        """Return the store as scripts use it: its queues, with who acts here as the actor."""
        from airflow_poison.queue import Store

        return Store(self.store(), actor=actor_here(), connections=found_connection)

    def queue(
        self, queue_name: str, policy: Policy | None = None, services: Sequence[Service] = (), mask: Sequence[str] | str | None = None
    ) -> Queue:
        """Return a queue, whose methods are the verbs. With a policy, services or a mask: those are declared, see ``Store.declare``.

        Raises QueueNotFoundError, SystemChangeError and SettingError.
        """
        from airflow_poison.queue import Queue

        if queue_name == "None":
            raise SettingError("queue_name", queue_name, "a queue's name; Airflow makes 'None' of a template whose value is none, give it one")
        if policy is None and not services and mask is None:
            return Queue(self.queues(), queue_name)
        return self.queues().declare(queue_name, policy, services=services, mask=mask, run=this_run())

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
        spark = get_session(master, {**spark_settings(settings.spark, self.get_connection), **settings.spark_conf})
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
            names, missing_reason = store.names(), store.missing_reason
        except Exception as error:  # noqa: BLE001  (whatever it is, the form shows it)
            return False, f"{type(error).__name__}: {error}"
        return True, f"No queue yet: {missing_reason}." if missing_reason else f"Store {self.settings.store}: {len(names)} queues."

    @classmethod
    def get_ui_field_behaviour(cls) -> dict[str, Any]:
        """Hide the form's standard fields: everything is in named fields of its own."""
        return {"hidden_fields": ["host", "port", "schema", "login", "password", "extra"], "relabeling": {}}


def this_run() -> str | None:
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
