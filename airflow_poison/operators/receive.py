"""QueueReceiveOperator: one receive pass over a queue, or over each of several queues side by side; what operators that receive have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack

from airflow.sdk import Asset, BaseOperator
from airflow.sdk.exceptions import AirflowFailException

from airflow_poison import stats
from airflow_poison.hooks.connection import found_connection
from airflow_poison.hooks.poison import QueueHook
from airflow_poison.lineage import Lineage, WithLineage, path_uri, queue_uri
from airflow_poison.links import PoisonLink, QueueLink, RetryLink
from airflow_poison.notifications import AlertTargets, Targets
from airflow_poison.operators.base import OperatorOptions, cancel_jobs, leave_server
from airflow_poison.operators.queues import Entry, QueuePass, is_known, listed, receive_from_all, to_render
from airflow_poison.passes.declaration import DEFAULTS, Receive, ReceiveOptions, name_of, takes_options
from airflow_poison.passes.runs import ReceiveResult, Stop, account, halted, stoppable
from airflow_poison.rules.settings import whole_number
from airflow_poison.values.errors import QueueHaltedError, SettingError

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_poison.delivery.handlers import HandlerLike
    from airflow_poison.outputs.output import Output
    from airflow_poison.rules.policy import Policy
    from airflow_poison.store import QueueStore
    from airflow_poison.store.queue_table import QueueTable
    from airflow_poison.values.failures import ErrorHandler


class ReceivingOperator(WithLineage, BaseOperator):
    """Has passes deliver what is in a queue now to a handler, and reports what they did.

    The settings of a receive are those of ``ReceiveOptions``.

    :param queue_name: the queue's name (``queue`` is the executor's). (templated)
    :param handler: an importable name (``"shop.arrivals:land"``) or a function; called with a Message, raises to roll back. (templated, the name)
    :param policy: the queue's rules, recorded in it; makes the queue when it is missing. None: the recorded policy rules.
    :param py_files: ``.py``, ``.zip``, ``.egg`` and ``.whl`` files shipped to where handlers run, for them and what they import. (templated)

    Raises SettingError, and HandlerNotFoundError for what can be no handler, as far as the DAG file shows it: a name is imported when the task runs.
    """

    ui_color = "#e3ecf7"
    operator_extra_links = (QueueLink(), PoisonLink(), RetryLink())

    @takes_options
    def __init__(self, *, queue_name: str | None = None, py_files: Sequence[str] = (), **kwargs: Any) -> None:
        own: dict[str, Any] = {name: kwargs.pop(name) for name in tuple(kwargs) if name in DEFAULTS}
        super().__init__(**kwargs)
        given = {**DEFAULTS, **own}
        handler, transform = given["handler"], given["transform"]
        self.queue_name = queue_name
        self.py_files = py_files
        self.handler = handler if handler is None or isinstance(handler, str) else name_of(handler)
        self.transform = transform if transform is None or isinstance(transform, str) else name_of(transform)
        function = handler if transform is None else transform
        self.function = None if isinstance(function, str) else function  # no templated field: Airflow calls functions that it finds there
        self.max_messages, self.handler_version = given["max_messages"], given["handler_version"]
        self.outputs = given["output"]  # Airflow's operators have an output of their own
        self.options = own
        self.policy = own.get("policy")
        known = self.outputs is None or isinstance(self.outputs, str | Mapping)  # a task's result is known when the task runs
        self.receive = Receive.of(queue_name or "", **{**own, "max_messages": 1, "output": self.outputs if known else None})
        self._add_outlets(self.receive.outputs)
        self.lineage = Lineage()

    def rendered(self) -> Receive:
        """Return the settings as they are rendered. Raises HandlerNotFoundError and SettingError."""
        called = self.transform if self.transform is not None else self.handler
        return Receive.of(
            self.queue_name or "",
            **{
                **self.options,
                "handler" if self.transform is None else "transform": called if self.function is None else self.function,
                "max_messages": self.max_messages,
                "output": self.outputs,
                "handler_version": self.handler_version,
            },
        )

    def _add_outlets(self, outputs: Sequence[Output]) -> None:
        there = {getattr(each, "uri", "") for each in self.outlets}
        known = [path_uri(output.uri) for output in outputs if output.uri and "{{" not in output.uri and "{%" not in output.uri]
        self.outlets = [*self.outlets, *(Asset(uri) for uri in known if uri not in there)]

    def note_landed(self, landed: Mapping[str, int], context: Context, store: QueueStore) -> None:
        """Note how many rows have landed where: in the lineage, and with the outlets' events.

        :param store: has the options of outputs in an object store.
        """
        from airflow_poison.outputs.output_table import columns_of

        events = context.get("outlet_events")
        for output in self.rendered().outputs:
            if not output.uri:
                continue
            uri, rows = path_uri(output.uri), landed.get(output.name, 0)
            if rows:
                self.lineage.writes(self, uri)
                self.lineage.columns[uri] = partial(columns_of, output.uri, store.options_for(output.uri))
            asset = next((each for each in self.outlets if getattr(each, "uri", "") == uri), None)
            if events is not None and asset is not None:
                events[asset].extra = {**events[asset].extra, "rows": rows, "queue": self.queue_name or ""}

    def report(self, result: ReceiveResult, table: QueueTable, conn_id: str) -> None:
        """Log what a pass did, note its lineage and send its metrics."""
        for line in account(result):
            self.log.info("%s", line)
        uri = queue_uri(conn_id, result.queue)
        self.lineage.tables[uri] = table.uri
        self.lineage.reads(self, uri)
        if self.receive.source is not None and (read := self.receive.source.connected(found_connection).asset_uri):
            self.lineage.reads(self, read)
        self.lineage.writes(self, *(queue_uri(conn_id, name) for name in result.sent_on))
        stats.received(result, table, conn_id)

    def push(self, numbers: dict[str, object], context: Context) -> None:
        """Push the task's result at once: the numbers are wanted also when what follows fails the task."""
        if self.do_xcom_push:
            context["ti"].xcom_push(key="return_value", value=numbers)


class ReceiveTaskOptions(ReceiveOptions, OperatorOptions, total=False):
    """What a task that receives takes, beside the parameters that it names."""


class QueueReceiveOperator(ReceivingOperator):
    """Deliver every message that is in the queue now to a handler, once, as one Spark job.

    Running the task again finishes what a killed run left, or receives what is there then. Nothing to receive: no JVM starts.
    The task fails, without Airflow's retries, when the queue is halted or was halted by this pass; what it did until then is committed.
    Returns the pass's numbers as a dict, see ``ReceiveResult``.

    With ``queues`` it does so for each of them, side by side: each has its own pass, Spark job, state, result and alerts, and whatever
    becomes of one, the others are finished before the task fails. Returns ``{"queues": {name: numbers}, "errors", "halted", "totals"}``,
    see ``ReceiveManyResult``.

    :param queue_name: the queue's name (``queue`` is the executor's); either this or ``queues``. (templated)
    :param services: that receive from the queue, declared on it before the pass; with ``queues`` each entry has its own.
    :param queues: names, ``QueueToReceive`` or dicts; those without a handler or a policy of their own take the operator's. (templated)
    :param parallelism: how many of ``queues`` are received from at the same time; None: as many as Spark has cores where its master says
        so (``local[4]``), else 32.
    :param on_queue_disabled: notifiers, or functions of the context, called when the queue was disabled, stopped or faulted.
    :param on_poison: called when messages were moved to poison or to another queue, dropped or rejected.
    :param on_blocked: called when a message blocks the queue, or waits at its place.
    :param on_outage: called once when failures come from an outage of a system that the handler needs, see ``outage``.
    :param on_outage_over: called once when a probe has succeeded.
    :param error_handler: a class that implements ErrorHandler; called for each poison message, once a cycle (spec WCF-18, WCF-26);
        the task fails after its commit where ``handle_error`` does not return True.
    :param conn_id: connection of type ``poison``. (templated)
    :param spark_conn_id: connection of type ``spark`` or ``spark_connect``: where Spark runs; None: as ``conn_id`` says. (templated)
    """

    template_fields: Sequence[str] = (
        "queue_name",
        "handler",
        "transform",
        "queues",
        "max_messages",
        "outputs",
        "py_files",
        "handler_version",
        "conn_id",
        "spark_conn_id",
    )

    @takes_options
    def __init__(
        self,
        *,
        queues: Sequence[Entry] | None = None,
        parallelism: int | None = None,
        on_queue_disabled: Targets = None,
        on_poison: Targets = None,
        on_blocked: Targets = None,
        on_outage: Targets = None,
        on_outage_over: Targets = None,
        error_handler: type[ErrorHandler] | None = None,
        queue_name: str | None = None,
        handler: HandlerLike | None = None,
        policy: Policy | None = None,
        py_files: Sequence[str] = (),
        conn_id: str = QueueHook.default_conn_name,
        spark_conn_id: str | None = None,
        **kwargs: Unpack[ReceiveTaskOptions],
    ) -> None:
        super().__init__(queue_name=queue_name, handler=handler, policy=policy, py_files=py_files, **kwargs)
        if (self.queue_name is None) == (queues is None):
            raise SettingError("queues", queues, "either queue_name or queues, and not both")
        if self.handler is None and self.transform is None and queues is None:
            raise SettingError("handler", None, "an importable name such as 'shop.arrivals:land', or a function; or transform=...")
        services, spans = self.receive.services, self.receive.spans
        if services and queues is not None:
            raise SettingError("services", list(services), "services of a queue's own: QueueToReceive(queue_name, services=...)")
        if spans and queues is not None:
            raise SettingError("spans", list(spans), "none with queues: each of several queues has transactions of its own")
        if parallelism is not None:
            whole_number("parallelism", parallelism, least=1)
        self.queues = queues if queues is None else to_render(queues)
        self.parallelism = parallelism
        self.alerts = AlertTargets.of(on_queue_disabled, on_poison, on_blocked, on_outage=on_outage, on_outage_over=on_outage_over)
        self.error_handler = error_handler
        self.conn_id = conn_id
        self.spark_conn_id = spark_conn_id
        self.stop = Stop()
        if is_known(self.queues):
            listed(self.queues, self.receive)

    def execute(self, context: Context) -> dict[str, object]:
        """Receive.

        Raises AirflowFailException for a halted queue, AlertError after a pass whose alerts failed, and the errors of ReceivePass; with
        ``queues`` QueuesFailedError for all that is no halt.
        """
        hook = QueueHook(self.conn_id, self.spark_conn_id)
        hook.import_here(self.py_files)
        try:
            return (
                self._receive(hook, context) if self.queues is None else receive_from_all(self, hook, listed(self.queues, self.rendered()), context)
            )
        finally:
            leave_server()

    def on_kill(self) -> None:
        """Stop the passes and their Spark jobs. Their claims are given up: any next run resumes from what was journalled."""
        self.stop.ask()
        cancel_jobs(self.log)

    def _receive(self, hook: QueueHook, context: Context) -> dict[str, object]:
        assert self.queue_name is not None
        one = QueuePass(self, hook, self.queue_name, self.rendered(), context)
        receive, key = one.prepare()
        try:
            result = stoppable(receive, self.stop).run(key)
            self.report(result, receive.table, self.conn_id)
            numbers = result.to_dict()
            self.note_landed(result.landed, context, hook.store())
            self.push(numbers, context)
            if result.halted is not None:
                raise AirflowFailException(halted(result, receive.policy.system))
        except QueueHaltedError as error:
            raise AirflowFailException(str(error)) from error
        finally:
            one.tell()
        if one.unhandled:
            raise AirflowFailException(one.unhandled)
        return numbers
