"""QueueReceiveSubmitOperator: one receive pass with its driver on a cluster, submitted by the Spark provider's ``spark-submit``.

The command line of ``spark-submit`` for a pass, and one try of a task that submits it.
"""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from airflow.sdk.exceptions import AirflowFailException, AirflowOptionalProviderFeatureException

from airflow_poison.hooks.connection import PY_FILES
from airflow_poison.hooks.poison import QueueHook, this_run
from airflow_poison.operators.base import logged, task_key
from airflow_poison.operators.receive import ReceivingOperator
from airflow_poison.passes.delivering import expire_now
from airflow_poison.passes.receive import ReceivePass
from airflow_poison.passes.runs import finished, halted
from airflow_poison.passes.submitted import PassOrder, Submission, fullest, needed, recorded, travelling, without_spark
from airflow_poison.rules import policy_from_dict
from airflow_poison.values.clock import SystemClock
from airflow_poison.values.errors import SettingError, SparkDistributionError

try:
    from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
except ModuleNotFoundError as error:
    raise AirflowOptionalProviderFeatureException(
        f"QueueReceiveSubmitOperator needs Airflow's Spark provider, which is not installed ({error}). Run: pip install 'airflow-poison[submit]'."
    ) from error

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
    from airflow.sdk import Context

    from airflow_poison.delivery.handlers import HandlerLike
    from airflow_poison.passes.runs import ReceiveResult
    from airflow_poison.store.queue_table import QueueTable


_OURS = ("application", "application_args", "java_class")
_GONE = "GONE"


class QueueReceiveSubmitOperator(ReceivingOperator, SparkSubmitOperator):  # type: ignore[misc]  # their py_files is one text for spark-submit
    """Deliver every message that is in the queue now to a handler, once, with Spark's driver where the cluster puts it.

    Everything that the Spark provider's SparkSubmitOperator can do, it can: deploy modes, memory, tracking, killing and finding a driver again
    (``durable``). The application is this package's own: an archive with this package, ``py_files`` and the order. The store is an object store,
    or on a file system that this task, the driver and all executors mount at the same path. Python there needs ``numpy``, ``pyarrow``,
    ``cloudpickle`` and ``pandas``, for an object store ``obstore``; the driver also ``deltalake``.

    Nothing to receive, or a queue that is halted or blocked: nothing is submitted. The task fails, without Airflow's retries, when the queue is
    halted or was halted by this pass. Running it again finishes what a killed run left. Returns the pass's numbers as a dict, see
    ``ReceiveResult``. Alerts are given by QueueAlertOperator.

    On a standalone cluster Spark refuses Python drivers in deploy mode ``cluster``. There, Spark's own runner of Python is submitted instead.

    :param conn_id: connection of type ``poison``; its ``spark_conf`` is submitted, too. (templated)
    :param spark_conn_id: connection of type ``spark``: where to submit.
    :param kwargs: what SparkSubmitOperator takes, but ``application``, ``application_args``, ``java_class`` and ``conn_id``.
    """

    queue_name: str
    template_fields: Sequence[str] = (
        *(name for name in SparkSubmitOperator.template_fields if name not in _OURS),
        "queue_name",
        "handler",
        "transform",
        "max_messages",
        "outputs",
        "handler_version",
        "conn_id",
    )

    def __init__(
        self,
        *,
        queue_name: str,
        handler: HandlerLike | None = None,
        conn_id: str = QueueHook.default_conn_name,
        spark_conn_id: str = "spark_default",
        **kwargs: Any,
    ) -> None:
        for name in _OURS:
            if name in kwargs:
                raise SettingError(name, kwargs[name], "nothing: the application is this package's own")
        super().__init__(queue_name=queue_name, handler=handler, conn_id=spark_conn_id, **{"name": "airflow-poison", **kwargs})
        if handler is None and self.transform is None:
            raise SettingError("handler", None, "an importable name such as 'shop.arrivals:land', or a function; or transform=...")
        self.conn_id = conn_id
        self._try: Try | None = None

    def execute(self, context: Context) -> dict[str, object]:  # type: ignore[override]  # theirs returns nothing
        """Submit a pass, and wait for it.

        Raises AirflowFailException for a halted queue, the errors of ReceivePass, SparkDistributionError where there is no ``spark-submit``, and
        AirflowException when Spark failed otherwise.
        """
        from airflow_poison.values.errors import QueueHaltedError

        hook = QueueHook(self.conn_id)
        hook.import_here(self.py_files or ())
        receive = self.rendered()
        queue = hook.queue(self.queue_name)
        queue.declare_receive(receive, run=this_run())
        table = queue.table
        queue.redrive_by_itself(receive, lambda view: self.log.warning("Redrive for a new handler: %s", logged(view)))
        self._try = mine = Try(self, hook, table, task_key(context, hook, table.uri))
        try:
            result = mine.all_told(mine.before_submission() or self._submit(mine, hook, context))
        except QueueHaltedError as error:
            self._forget(mine, context)
            raise AirflowFailException(str(error)) from error
        self.report(result, table, self.conn_id)
        numbers = result.to_dict()
        self.note_landed(result.landed, context, hook.store())
        self.push(numbers, context)
        self._forget(mine, context)  # not before: a task that dies until here reads the numbers again
        if result.halted is not None:
            raise AirflowFailException(halted(result, mine.system))
        return numbers

    def on_kill(self) -> None:
        """Kill the driver; when it has ended, its claim is given up: any next run resumes from what was journalled."""
        if self._hook is not None:  # something was submitted, or is about to be
            super().on_kill()
            if self._try is not None:
                self._try.give_up()

    def submit_job(self, context: Context) -> str | None:
        """Write the order, then submit. Not called when a driver of an earlier try is found again."""
        assert self._try is not None, "execute comes first"
        self._try.write()
        return super().submit_job(context)

    def get_job_status(self, external_id: Any, context: Context) -> str:
        """Return the state of an earlier try's driver. One that its master does not know any more is gone: another one is submitted."""
        try:
            return super().get_job_status(external_id, context)
        except RuntimeError as error:
            if self._hook is None or not self._hook._should_track_driver_status:  # noqa: SLF001  (there is no public way)
                raise
            self.log.warning("%s. Another driver is submitted; it goes on where that one stopped.", error)
            return _GONE

    def _submit(self, mine: Try, hook: QueueHook, context: Context) -> ReceiveResult:
        """Submit, wait, and return the driver's result, or the one that the queue has recorded. Raises what the driver raised."""
        from airflow_poison.values.errors import SparkJobError

        target = self._choose_application(mine, hook)
        if not target.tracked:
            mine.write()
        try:
            super().execute(context)
        except Exception as error:
            result = mine.told()
            if result is None:
                if target.deploy_mode == "client" or not mine.table.node:  # else it is not known here whether the driver has ended
                    mine.give_up()
                raise
            self.log.warning("The pass has finished, although Spark said: %s", error)
            return result
        result = mine.told()
        if result is None:
            self._forget(mine, context)
            raise SparkJobError(
                "The driver has ended without a word, and the queue has no result of its pass. Its own log has the rest; run the task again: it "
                "goes on where that one stopped."
            )
        return result

    def _forget(self, mine: Try, context: Context) -> None:
        """Forget the submission when its result was read: running the task again is a new pass."""
        known = context.get("task_state_store")
        if known is not None:
            for name in (self.external_id_key, self._K8S_DRIVER_STATUS_KEY):
                known.delete(name)
        mine.submission.remove()

    def _choose_application(self, mine: Try, hook: QueueHook) -> Target:
        """Say what is submitted, and with which settings; return where to. Raises SettingError and SparkDistributionError."""
        from airflow_poison.spark.session import SETTINGS

        self.conf = {**SETTINGS, **hook.settings.spark_conf, **(self.conf or {})}
        self.conf.pop(PY_FILES, None)  # the application ships them
        mine.target = target = Target.of(self._get_hook())
        target.find_binary()
        self.conf = {**target.conf, **self.conf}
        self.application, self.application_args, self._java_class = target.command(mine.submission)
        return target

    def _get_hook(self) -> SparkSubmitHook:
        """Return the hook without Python files, because the application ships them itself."""
        from airflow_poison.values.errors import SparkDistributionError

        ours, self.py_files = self.py_files, None  # type: ignore[assignment]  # that is none of theirs
        try:
            return super()._get_hook()
        except NameError as error:
            if error.name != "kube_client":
                raise
            raise SparkDistributionError(
                "To submit to Kubernetes, the Spark provider needs the package apache-airflow-providers-cncf-kubernetes, which is not installed "
                "where the task runs. Nothing was submitted. Install it there: pip install apache-airflow-providers-cncf-kubernetes."
            ) from error
        finally:
            self.py_files = ours


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
        receive = travelling(task.rendered())
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

    def told(self) -> ReceiveResult | None:
        """Return the result that the driver has written, or that the queue has recorded for its pass. Raises what the driver raised.

        None: neither, or the driver has died between its commit and its last row's landing, which the next try makes up for.
        """
        return self.submission.outcome() or (None if self.table.snapshot().landings else self._recorded())

    def all_told(self, result: ReceiveResult) -> ReceiveResult:
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
