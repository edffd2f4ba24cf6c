"""QueueReceiveOperator: one receive pass over a queue, or over each of several queues side by side; what operators that receive have in common."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from airflow.sdk import Asset, BaseOperator
from airflow.sdk.exceptions import AirflowFailException

from airflow_poison.delivery.handlers import (
    BATCH_SIZE,
    Batching,
    Transformation,
    check_alone,
    check_deliver,
    check_given,
    check_policy,
    check_schema,
    check_transform,
    refuse_dialogs,
)
from airflow_poison.hooks.poison import QueueHook
from airflow_poison.lineage import Lineage, WithLineage, path_uri, queue_uri
from airflow_poison.links.queue import PoisonLink, QueueLink, RetryLink
from airflow_poison.notifications import AlertTargets
from airflow_poison.operators.base import cancel_jobs, leave_server
from airflow_poison.operators.queues import QueuePass, QueueToReceive, account, halted, is_known, listed, receive_from_all, to_render
from airflow_poison.outputs.output import outputs_of
from airflow_poison.passes.runs import Stop
from airflow_poison.rules import checked_policy
from airflow_poison.rules.outage import checked_outage
from airflow_poison.rules.settings import whole_number
from airflow_poison.store.parking import check_parking
from airflow_poison.values.errors import SettingError
from airflow_poison.values.masking import checked_mask

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_poison.delivery.handlers import HandlerLike, TransformLike
    from airflow_poison.desk.plans import Canary
    from airflow_poison.dialogs.services import Service
    from airflow_poison.notifications import Targets
    from airflow_poison.operators.queues import Entry
    from airflow_poison.outputs.output import Output
    from airflow_poison.passes.land import Deliver
    from airflow_poison.passes.runs import ReceiveResult
    from airflow_poison.rules.outage import Outage
    from airflow_poison.rules.policy import Policy
    from airflow_poison.store import QueueStore
    from airflow_poison.store.queue_table import QueueTable
    from airflow_poison.values.failures import ErrorHandler


class ReceivingOperator(WithLineage, BaseOperator):
    """Has passes deliver what is in a queue now to a handler, and reports what they did.

    :param queue_name: the queue's name (``queue`` is the executor's). (templated)
    :param handler: an importable name (``"shop.arrivals:land"``) or a function; called with a Message, raises to roll back. (templated, the name)
    :param transform: in the handler's place: a function of a Spark DataFrame of messages, or its name (templated, the name). It returns a
        DataFrame, or a mapping of names to such.
    :param mixes_rows: what ``transform`` makes of a message depends on others: the messages are transformed as one unit, all or nothing.
    :param policy: the queue's rules, recorded in it; makes the queue when it is missing. None: the recorded policy rules.
    :param services: that receive from the queue, declared on it before the pass.
    :param max_messages: how many messages a pass takes at most. (templated)
    :param isolation: ``process``: handlers run in supervised child processes; ``none``: inline, for trusted handlers and debugging.
    :param unprocessable: exception types, or their names (``"json:JSONDecodeError"``), that go to the final disposition at once.
    :param output: the Delta table where the rows land that the handler returns: path or URI; or a mapping of names to such. (templated, kept as
        ``outputs``) With a mapping the handler returns one of names to rows. Tables that stand in the DAG file are outlets of the task.
    :param output_schema: the columns, as DDL (``"id bigint, name string"``) or an Arrow schema; None: as the table or the first rows have them. For
        several outputs a mapping.
    :param output_keys: rows replace rows of the output with the same values in these columns. For several outputs a mapping.
    :param evolve: columns that an output does not have are added.
    :param provenance: rows say where they come from: ``_queue``, ``_lookup_id``, ``_pass``, ``_received_at``.
    :param deliver: in place of ``output``: a function of an Arrow table of returned rows and a key, called after the commit that settled their
        messages, again with the same key when it failed: in the task, or in the driver where that is submitted.
    :param batch: ``arrow``, ``pandas`` or ``polars``: the handler is called with a frame of many messages; None: with one message. A frame is one
        transaction; where it fails, the messages that are to blame are searched for, and only they are charged. Not with ``max_batch_size``.
    :param batch_size: how many messages a frame has at most.
    :param schema: the columns of the bodies, JSON objects, as DDL (``"carrier string, flight int"``), and so of the frames, or of the DataFrame of
        ``transform``, beside ``lookup_id``; None: these have the columns of messages.
    :param py_files: ``.py``, ``.zip``, ``.egg`` and ``.whl`` files shipped to where handlers run, for them and what they import. (templated)
    :param outage: when failures count as an outage of a system that the handler needs, and cost no message an attempt; None: each failure counts.
    :param mask: paths of values that are hidden wherever messages are shown (``$.card``, ``properties.token``); None: as recorded, []: none.
    :param handler_version: a text that changes with each version of the handler, such as a date or a release. (templated)
    :param redrive_on_new_handler: a ``Canary``: for each new ``handler_version`` so many poison messages of each error group go back to ``main``, and
        the others when enough of them were settled. Recorded in the queue; None: as it is recorded there.
    :param spans: other queues that the handler's transaction receives from, too, with ``queue_name`` and Service Broker's rules: each counts its
        rollbacks, and the fifth in a row of any of them disables all (spec SB-4, SB-9).
    :param park_group: a message that failed has later ones of its group wait behind it, uncharged, until it is resolved; not with policies that lock
        groups or keep an order of their own. Recorded in the queue; None: as it is recorded there.

    Raises SettingError, and HandlerNotFoundError for what can be no handler, as far as the DAG file shows it: a name is imported when the task runs.
    """

    ui_color = "#e3ecf7"
    operator_extra_links = (QueueLink(), PoisonLink(), RetryLink())

    def __init__(
        self,
        *,
        queue_name: str | None = None,
        handler: HandlerLike | None = None,
        transform: TransformLike | None = None,
        mixes_rows: bool = False,
        policy: Policy | None = None,
        services: Sequence[Service] = (),
        max_messages: int | str = 10_000_000,
        isolation: str = "process",
        unprocessable: Sequence[str | type[BaseException]] = (),
        output: Mapping[str, str] | str | None = None,
        output_schema: Any = None,
        output_keys: Any = None,
        evolve: bool = False,
        provenance: bool = False,
        deliver: Deliver | None = None,
        batch: str | None = None,
        batch_size: int = BATCH_SIZE,
        schema: str | None = None,
        py_files: Sequence[str] = (),
        outage: Outage | None = None,
        mask: Sequence[str] | str | None = None,
        handler_version: str | None = None,
        redrive_on_new_handler: Canary | None = None,
        park_group: bool | None = None,
        spans: Sequence[str] = (),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.outputs = output  # Airflow's operators have an output of their own
        self.output_settings = {"schema": output_schema, "keys": output_keys, "evolve": evolve, "provenance": provenance}
        if deliver is not None:
            check_deliver(deliver)
        self.deliver = deliver
        if output is None or isinstance(output, str | Mapping):
            self._add_outlets(self.declared_outputs())
        if handler is not None:
            check_given(handler, returns_rows=output is not None or deliver is not None)
        _check_transform(handler, transform, schema, mixes_rows=mixes_rows)
        if transform is not None:
            check_alone(batch=batch, isolation=isolation, unprocessable=unprocessable)
        self.queue_name = queue_name
        self.handler = handler if handler is None or isinstance(handler, str) else name_of(handler)
        self.transform = transform if transform is None or isinstance(transform, str) else name_of(transform)
        function = handler if transform is None else transform
        self.function = None if isinstance(function, str) else function  # no templated field: Airflow calls functions that it finds there
        self.mixes_rows = mixes_rows
        self.policy = checked_policy(policy)
        self.services = tuple(services)
        self.max_messages = max_messages
        self.isolation = isolation
        self.unprocessable = importable_types(unprocessable)
        self.outage = checked_outage(outage)
        self.mask = checked_mask(mask)
        if redrive_on_new_handler is not None and handler_version is None:
            raise SettingError("handler_version", None, "a text that changes with each version of the handler, where redrive_on_new_handler is set")
        self.handler_version, self.redrive_on_new_handler = handler_version, redrive_on_new_handler
        self.park_group = park_group
        if isinstance(spans, str):
            raise SettingError("spans", spans, "a list of queue names")
        self.spans = tuple(spans)
        if self.spans and self.policy is not None:
            self.policy.check_spans(self.spans)
        self.batch, self.batch_size, self.schema = batch, batch_size, schema
        self._check_batches(self.policy)
        self.py_files = py_files
        self.lineage = Lineage()

    @property
    def batching(self) -> Batching | None:
        """What a handler of batches gets; None: one message at a time. Raises SettingError."""
        return Batching.of(self.batch, self.batch_size, None if self.transform is not None else self.schema)

    def _check_batches(self, policy: Policy | None) -> None:
        """Refuse a batch or a transformation that does not go with a policy or with services. Raises SettingError."""
        given = self.given_handler
        if isinstance(given, Transformation) and policy is not None:
            check_policy(policy, given, converses=bool(self.services))
        if self.park_group and policy is not None:
            check_parking(self.queue_name or "", policy, converses=bool(self.services), transforms=isinstance(given, Transformation))
        batching = self.batching
        if batching is not None and policy is not None:
            batching.check_policy(policy)
        if self.services:
            refuse_dialogs(batching, self.queue_name or "")

    @property
    def given_handler(self) -> HandlerLike | Transformation | None:
        """The function, or its rendered name; None: each of several queues has its own. Raises HandlerNotFoundError and SettingError."""
        if self.transform is not None:
            return Transformation(self.transform if self.function is None else cast("TransformLike", self.function), self.schema, self.mixes_rows)
        return self.handler if self.function is None else cast("HandlerLike", self.function)

    def declared_outputs(self) -> tuple[Output, ...]:
        """Return the outputs as they are rendered. Raises SettingError."""
        return outputs_of(self.outputs, **self.output_settings, deliver=self.deliver is not None)

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
        for output in self.declared_outputs():
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
        from airflow_poison import stats

        for line in account(result):
            self.log.info("%s", line)
        uri = queue_uri(conn_id, result.queue)
        self.lineage.tables[uri] = table.uri
        self.lineage.reads(self, uri)
        self.lineage.writes(self, *(queue_uri(conn_id, name) for name in result.sent_on))
        stats.received(result, table, conn_id)

    def push(self, numbers: dict[str, object], context: Context) -> None:
        """Push the task's result at once: the numbers are wanted also when what follows fails the task."""
        if self.do_xcom_push:
            context["ti"].xcom_push(key="return_value", value=numbers)


def _check_transform(handler: object, transform: object, schema: str | None, *, mixes_rows: bool) -> None:
    """Check the settings of a transformation, as far as the DAG file has them. Raises SettingError and HandlerNotFoundError."""
    if transform is None:
        if mixes_rows:
            raise SettingError("mixes_rows", mixes_rows, "a setting of a transformation; declare transform=... too")
        return
    if handler is not None:
        raise SettingError("transform", transform if isinstance(transform, str) else name_of(transform), "either handler or transform, and not both")
    check_transform(transform)
    if schema is not None:
        check_schema(schema)


def name_of(thing: object) -> str:
    """Return ``module:name``."""
    return f"{getattr(thing, '__module__', '')}:{getattr(thing, '__qualname__', type(thing).__qualname__)}"


def importable_types(kinds: Iterable[str | type[BaseException]]) -> tuple[str, ...]:
    """Return the names of exception types that server sessions can import. Raises SettingError for one of a DAG file."""
    if isinstance(kinds, str | type):
        raise SettingError("unprocessable", kinds, "a list of exception types, or of their names as 'module:Type'")
    return tuple(kind if isinstance(kind, str) else _importable(kind) for kind in kinds)


def _importable(kind: type[BaseException]) -> str:
    if not isinstance(kind, type):
        raise SettingError("unprocessable", kind, "exception types, not exceptions, or names as 'module:Type'")
    if kind.__module__.startswith(("unusual_prefix_", "__main__")):
        raise SettingError("unprocessable", kind.__qualname__, "exception types of importable modules; in a DAG file raise Unprocessable instead")
    return name_of(kind)


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
    )

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
        conn_id: str = QueueHook.default_conn_name,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if (self.queue_name is None) == (queues is None):
            raise SettingError("queues", queues, "either queue_name or queues, and not both")
        if self.handler is None and self.transform is None and queues is None:
            raise SettingError("handler", None, "an importable name such as 'shop.arrivals:land', or a function; or transform=...")
        if self.services and queues is not None:
            raise SettingError("services", list(self.services), "services of a queue's own: QueueToReceive(queue_name, services=...)")
        if self.spans and queues is not None:
            raise SettingError("spans", list(self.spans), "none with queues: each of several queues has transactions of its own")
        if parallelism is not None:
            whole_number("parallelism", parallelism, least=1)
        self.queues = queues if queues is None else to_render(queues)
        self.parallelism = parallelism
        self.alerts = AlertTargets.of(on_queue_disabled, on_poison, on_blocked, on_outage=on_outage, on_outage_over=on_outage_over)
        self.error_handler = error_handler
        self.conn_id = conn_id
        self.stop = Stop()
        if is_known(self.queues):
            self._listed()

    def execute(self, context: Context) -> dict[str, object]:
        """Receive.

        Raises AirflowFailException for a halted queue, AlertError after a pass whose alerts failed, and the errors of ReceivePass; with
        ``queues`` QueuesFailedError for all that is no halt.
        """
        hook = QueueHook(self.conn_id)
        hook.import_here(self.py_files)
        try:
            return self._receive(hook, context) if self.queues is None else receive_from_all(self, hook, self._listed(), context)
        finally:
            leave_server()

    def on_kill(self) -> None:
        """Stop the passes and their Spark jobs. Their claims are given up: any next run resumes from what was journalled."""
        self.stop.ask()
        cancel_jobs(self.log)

    def _listed(self) -> list[QueueToReceive]:
        entries = listed(self.queues, self.given_handler, self.policy)
        for entry in entries:
            self._check_batches(entry.policy)
        return entries

    def _receive(self, hook: QueueHook, context: Context) -> dict[str, object]:
        from airflow_poison.passes.runs import stoppable
        from airflow_poison.values.errors import QueueHaltedError

        assert self.queue_name is not None
        queue = QueueToReceive(queue_name=self.queue_name, handler=self.given_handler, policy=self.policy, services=self.services)
        one = QueuePass(self, hook, queue, context)
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
