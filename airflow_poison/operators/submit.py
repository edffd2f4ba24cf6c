"""QueueReceiveSubmitOperator: one receive pass with its driver on a cluster, submitted by the Spark provider's ``spark-submit``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowFailException, AirflowOptionalProviderFeatureException

from airflow_poison.hooks.connection import PY_FILES
from airflow_poison.hooks.poison import QueueHook, this_run
from airflow_poison.operators.base import plan_line, task_key
from airflow_poison.operators.receive import ReceivingOperator
from airflow_poison.passes.declaration import check_handler_given
from airflow_poison.passes.runs import ReceiveResult, halted
from airflow_poison.values.errors import QueueHaltedError, SettingError, SparkDistributionError, SparkJobError

try:
    from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
except ModuleNotFoundError as error:
    raise AirflowOptionalProviderFeatureException(
        f"QueueReceiveSubmitOperator needs Airflow's Spark provider, which is not installed ({error}). Run: pip install 'airflow-poison[submit]'."
    ) from error

if TYPE_CHECKING:
    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
    from airflow.sdk import Context

    from airflow_poison.delivery.handlers import HandlerLike
    from airflow_poison.operators.spark_submit import Target, Try

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
        check_handler_given(handler, self.transform)
        self.conn_id = conn_id
        self._try: Try | None = None

    def execute(self, context: Context) -> dict[str, object]:  # type: ignore[override]  # theirs returns nothing
        """Submit a pass, and wait for it.

        Raises AirflowFailException for a halted queue, the errors of ReceivePass, SparkDistributionError where there is no ``spark-submit``, and
        AirflowException when Spark failed otherwise.
        """
        from airflow_poison.operators.spark_submit import Try

        hook = QueueHook(self.conn_id)
        hook.import_here(self.py_files or ())
        receive = self.rendered()
        queue = hook.queue(self.queue_name)
        queue.declare_receive(receive, run=this_run())
        table = queue.table
        queue.redrive_for_new_handler(receive, lambda view: self.log.warning("Redrive for a new handler: %s", plan_line(view)))
        self._try = mine = Try(self, hook, table, task_key(context, hook, table.uri))
        try:
            result = mine.completed(mine.before_submission() or self._submit(mine, hook, context))
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
        target = self._choose_application(mine, hook)
        if not target.tracked:
            mine.write()
        try:
            super().execute(context)
        except Exception as error:
            result = mine.reported()
            if result is None:
                if target.deploy_mode == "client" or not mine.table.node:  # else it is not known here whether the driver has ended
                    mine.give_up()
                raise
            self.log.warning("The pass has finished, although Spark said: %s", error)
            return result
        result = mine.reported()
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
        from airflow_poison.operators.spark_submit import Target
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
