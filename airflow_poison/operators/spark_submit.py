"""The command line of ``spark-submit`` for a pass, and one try of a task that submits it."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Self

from airflow_poison.hooks.connection import found_connection
from airflow_poison.passes.delivering import expire_now
from airflow_poison.passes.receive import ReceivePass
from airflow_poison.passes.runs import ReceiveResult, finished
from airflow_poison.passes.submitted import PassOrder, Submission, fullest, needed, recorded, travelling, without_spark
from airflow_poison.rules import policy_from_dict
from airflow_poison.values.clock import SystemClock
from airflow_poison.values.errors import SettingError, SparkDistributionError

if TYPE_CHECKING:
    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

    from airflow_poison.hooks.poison import QueueHook
    from airflow_poison.operators.submit import QueueReceiveSubmitOperator
    from airflow_poison.store.queue_table import QueueTable


_PYTHON_RUNNER = "org.apache.spark.deploy.PythonRunner"
"""What Spark itself runs Python applications with."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where is submitted to.

    :param binary: ``spark-submit``, or what it is called here.
    :param deploy_mode: ``cluster``: the cluster places the driver; else it runs beside the task.
    :param standalone: the driver is placed by a standalone cluster.
    :param tracked: the driver goes on without ``spark-submit``, and a later try of the task finds it again.
    """

    binary: str
    deploy_mode: str
    standalone: bool
    tracked: bool

    @classmethod
    def of(cls, hook: SparkSubmitHook) -> Self:
        """Ask a hook. Raises SettingError for a deploy mode that Spark does not have."""
        known = hook._connection  # noqa: SLF001
        deploy_mode = known["deploy_mode"] or "client"
        if deploy_mode not in {"client", "cluster"}:
            raise SettingError("deploy_mode", deploy_mode, "client or cluster, here or in the connection's extra field deploy-mode")
        standalone = bool(hook._should_track_driver_status)  # noqa: SLF001
        tracked = standalone or hook._should_track_driver_via_k8s_api() or hook._should_track_yarn_application_via_rm_api()  # noqa: SLF001
        return cls(known["spark_binary"], deploy_mode, standalone, bool(tracked))

    def find_binary(self) -> None:
        """Let the provider find ``spark-submit`` beside this Python, where pip puts it, when it is nowhere else. Raises SparkDistributionError."""
        if shutil.which(self.binary) is not None:
            return
        beside = str(Path(sys.executable).parent)
        if shutil.which(self.binary, path=beside) is None:
            raise SparkDistributionError(
                f"{self.binary} is not found: it is not on the task's PATH, nor in {beside}. Nothing was submitted. Install Spark there "
                "(pip install 'pyspark==4.1.3'), or name it with spark_binary or the connection's extra field spark-binary."
            )
        os.environ["PATH"] = os.pathsep.join([os.environ.get("PATH", ""), beside])

    @property
    def conf(self) -> dict[str, str]:
        """Settings of a driver beside the task: it runs this Python, and so do its executors, unless the environment names another one.

        Where executors have a Python of their own (``spark.pyspark.python``), the driver cannot run that: it may be in an archive that they unpack.
        """
        if self.deploy_mode != "client":
            return {}
        named = {"spark.pyspark.python": "PYSPARK_PYTHON", "spark.pyspark.driver.python": "PYSPARK_DRIVER_PYTHON"}
        return {setting: sys.executable for setting, variable in named.items() if variable not in os.environ}

    def command(self, submission: Submission) -> tuple[str, list[str], str | None]:
        """Return the application, its arguments, and the class to run it with: a standalone cluster places no Python driver by itself."""
        if not self.standalone:
            return submission.application, [], None
        fetched = submission.fetched()
        if submission.table.node:
            from airflow.sdk.log import mask_secret

            mask_secret(fetched)  # it is signed, and the provider logs it
        return fetched, ["{{USER_JAR}}", ""], _PYTHON_RUNNER  # a worker replaces the word by where it has put what it fetched


class Try:
    """A try.

    :param key: the run key, the same for each try of the task.
    Raises HandlerNotFoundError and SettingError, with nothing submitted.
    """

    def __init__(self, task: QueueReceiveSubmitOperator, hook: QueueHook, table: QueueTable, key: str) -> None:
        self.table, self._task, self._hook = table, task, hook
        receive = travelling(task.rendered(), found_connection)
        self._receive = replace(receive, policy=receive.policy or policy_from_dict(table.snapshot().control.policy))
        self.submission = Submission(table, key)
        self.target: Target | None = None
        self._order = self._ordered(key)

    @property
    def system(self) -> str:
        """The name of the messaging system whose rules the pass goes by."""
        assert self._receive.policy is not None, "it was looked up"
        return self._receive.policy.system

    def before_submission(self) -> ReceiveResult | None:
        """Return what an earlier try has left to be read, or what needs no driver. Raises QueueHaltedError and the other errors of ReceivePass."""
        receiving = ReceivePass.of_table(
            self.table,
            replace(self._receive, deliver=None),  # the driver has it: nothing lands here
            engine=needed,
            clock=SystemClock(),
            progress=self._task.log.info,
            store=self._hook.store(),
        )
        if (left := self.submission.left()) is not None:
            return left
        if self._receive.deliver is not None and self.table.snapshot().landings:
            return None  # the driver calls it, also with the rows that a dead one has left
        return without_spark(receiving, self._order.key)

    def write(self) -> None:
        """Write the order, with all that goes with it."""
        elsewhere = self.target is not None and self.target.standalone
        self.submission.write(self._order, self._hook.shipped(self._task.py_files or ()), publish=elsewhere)

    def reported(self) -> ReceiveResult | None:
        """Return the result that the driver has written, or that the queue has recorded for its pass. Raises what the driver raised.

        None: neither, or the driver has died between its commit and its last row's landing, which the next try makes up for.
        """
        return self.submission.outcome() or (None if self.table.snapshot().landings else self._recorded())

    def completed(self, result: ReceiveResult) -> ReceiveResult:
        """Return a result, or what the queue has recorded of this run key where that is more: drivers of several tries may have met.

        What has landed only the one knows who has seen to it: this result.
        """
        full = fullest([result, self._recorded()]) or result
        return full if full is result else replace(full, landed=result.landed)

    def give_up(self) -> None:
        """Give the run's claim up, when no process works on it any more."""
        for claim in self.table.snapshot().claims:
            if claim.key.startswith(f"{self._order.key}-"):
                expire_now(self.table, claim, SystemClock(), self._task.log.info)

    def _recorded(self) -> ReceiveResult | None:
        return recorded(self.table, self._order.key, self._order.since)

    def _ordered(self, key: str) -> PassOrder:
        settings, since = self._hook.settings, self.submission.since()
        return PassOrder.of(
            self._receive,
            store=self._hook.store().uri,
            storage_options=settings.storage_options,
            durable=settings.durable,
            queue=self.table.name,
            key=key,
            parallelism=settings.parallelism,
            since=finished(self.table, key) if since is None else since,
        )
