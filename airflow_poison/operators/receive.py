"""QueueReceiveOperator: one receive pass over a queue, or over each of several queues side by side; what operators that receive have in common.

``QueueToReceive`` is a queue as a DAG file gives it and as it is rendered; ``QueuePass`` builds the receive pass of one queue, runs it and alerts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard, Unpack

from airflow.sdk import Asset, BaseOperator
from airflow.sdk.exceptions import AirflowFailException, AirflowTaskTimeout

from airflow_poison import stats
from airflow_poison.delivery.handlers import Transformation, check_given, name_of
from airflow_poison.hooks.connection import cores_of, found_connection, spark_master
from airflow_poison.hooks.poison import QueueHook, this_run
from airflow_poison.lineage import Lineage, WithLineage, path_uri, queue_uri
from airflow_poison.links import PoisonLink, QueueLink, RetryLink
from airflow_poison.notifications import AlertTargets, Targets
from airflow_poison.operators.base import OperatorOptions, cancel_jobs, leave_server, plan_line, subscriber, task_key
from airflow_poison.passes.declaration import DEFAULTS, Receive, ReceiveOptions, check_handler_given, takes_options
from airflow_poison.passes.runs import QueueRun, ReceiveManyResult, ReceiveResult, Stop, account, check_named_once, halted, receive_many, stoppable
from airflow_poison.rules import checked_policy, policy_from_dict
from airflow_poison.rules.settings import whole_number
from airflow_poison.values.clock import SystemClock
from airflow_poison.values.errors import QueueHaltedError, QueuesFailedError, SettingError
from airflow_poison.values.failures import install_error_handler
from airflow_poison.values.masking import checked_mask
from airflow_poison.values.texts import counted

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_poison.delivery.handlers import HandlerLike
    from airflow_poison.dialogs.services import Service
    from airflow_poison.outputs.output import Output
    from airflow_poison.passes.receive import ReceivePass
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
        if queues is None:
            check_handler_given(self.handler, self.transform)
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
            one.send_alerts()
        if one.unhandled:
            raise AirflowFailException(one.unhandled)
        return numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueToReceive:
    """One of the queues of a ``QueueReceiveOperator``.

    :param queue_name: the queue's name. (templated)
    :param handler: None: the operator's. (templated, a name)
    :param policy: None: the operator's; is there none, the recorded policy rules.
    :param services: declared on the queue before the pass.
    :param mask: paths of values that are hidden wherever messages are shown; None: the operator's.
    """

    queue_name: str
    handler: HandlerLike | Transformation | None = None
    policy: Policy | None = None
    services: Sequence[Service] = ()
    mask: Sequence[str] | str | None = None


Entry: TypeAlias = QueueToReceive | Mapping[str, object] | str
"""One queue: a name, or with a handler and a policy of its own; as a dict, whose policy may be ``policy.to_dict()``."""

_KEYS = tuple(field.name for field in fields(QueueToReceive))


def to_render(queues: Sequence[Entry]) -> Sequence[object]:
    """Return the entries as Airflow can render and show them: names and dicts. What only a running task knows stays as it is."""
    if not _is_list(queues):
        return queues
    return [{key: getattr(entry, key) for key in _KEYS} if isinstance(entry, QueueToReceive) else entry for entry in queues]


def listed(queues: object, receive: Receive) -> dict[str, Receive]:
    """Return the settings of each queue of the rendered entries, by its name: its own, and what it does not name as in ``receive``.

    Raises SettingError for what is no entry, a queue that has no handler, and a queue that is named twice, HandlerNotFoundError for what
    can be no handler.
    """
    if not _is_list(queues):
        raise SettingError("queues", queues, "a list of queue names, QueueToReceive, and dicts with the keys " + ", ".join(_KEYS))
    entries = [_entry(given, receive) for given in queues]
    check_named_once(name for name, _ in entries)
    return dict(entries)


def is_known(queues: object) -> bool:
    """Whether the entries stand in the DAG file, and none of them is another task's result."""
    return _is_list(queues) and all(isinstance(entry, str | dict | QueueToReceive) for entry in queues)


def _entry(given: object, receive: Receive) -> tuple[str, Receive]:
    parts: Mapping[str, object] = {"queue_name": given} if isinstance(given, str) else given if isinstance(given, Mapping) else {}
    name = parts.get("queue_name")
    if not isinstance(name, str) or not name or set(parts) - set(_KEYS):
        raise SettingError("queues", given, f"a queue's name, QueueToReceive, or a dict with queue_name and, when wanted, {', '.join(_KEYS[1:])}")
    own = receive.handler if parts.get("handler") is None else parts["handler"]
    if own is None:
        raise SettingError(f"queues[{name!r}].handler", None, "a handler, there or as the operator's handler for all queues")
    if not isinstance(own, Transformation):
        check_given(own)
    found = receive.of_queue(
        handler=own,
        policy=_policy(name, parts.get("policy")),
        services=tuple(_services(name, parts.get("services") or ())),
        mask=checked_mask(parts.get("mask")),  # type: ignore[arg-type]  # that is what is checked
    )
    found.check(name)
    return name, found


def _policy(queue: str, given: object) -> Policy | None:
    if isinstance(given, Mapping):
        return policy_from_dict(given)
    return checked_policy(given, f"queues[{queue!r}].policy")  # type: ignore[arg-type]  # that is what is checked


def _services(queue: str, given: object) -> Sequence[Service]:
    from airflow_poison.dialogs.services import Service

    if not _is_list(given) or not all(isinstance(each, Service | Mapping) for each in given):
        raise SettingError(f"queues[{queue!r}].services", given, "a list of Service, or of what its to_dict() gives")
    return [each if isinstance(each, Service) else Service.from_dict(each) for each in given]  # type: ignore[arg-type]  # checked above


def _is_list(queues: object) -> TypeGuard[Sequence[object]]:
    return isinstance(queues, Sequence) and not isinstance(queues, str)


PARALLELISM = 32
"""How many queues are received from at the same time where the number of Spark's cores is not known; passes wait for a free core."""


@dataclass(slots=True)
class QueuePass:
    """One queue of a task.

    :ivar send_alerts: sends alerts and calls the error handler for all events since the queue was opened. Raises AlertError.
    :ivar system: the name of the messaging system whose rules the pass goes by; empty before they are known.
    :ivar unhandled: after ``send_alerts``: messages that the error handler did not deal with (spec WCF-26); empty: none.
    """

    task: QueueReceiveOperator
    hook: QueueHook
    queue_name: str
    receive: Receive
    context: Context
    table: QueueTable | None = None
    send_alerts: Callable[[], None] = lambda: None
    system: str = ""
    unhandled: str = ""

    def prepare(self) -> tuple[ReceivePass, str]:
        """Open the queue, note where it stands, and return its pass with the run key."""
        from airflow_poison.passes.delivering import INTERRUPTS

        task = self.task
        made = self.hook.queue(self.queue_name).receive_pass(
            self.receive,
            lambda: self.hook.engine(task.log.info, task.py_files),
            run=this_run(),
            redriven=lambda view: task.log.warning("Redrive for a new handler: %s", plan_line(view)),
            small_pass=self.hook.settings.small_pass,
            progress=task.log.info,
            interrupts=(*INTERRUPTS, AirflowTaskTimeout),
        )
        self.table = table = made.table
        self.send_alerts = self._afterwards(table)
        self.system = made.policy.system
        return made, task_key(self.context, self.hook, table.uri)

    def _afterwards(self, table: QueueTable) -> Callable[[], None]:
        from airflow_poison.passes.alerts import alert_subscription
        from airflow_poison.passes.history import error_subscription, hand_over

        task, name, clock = self.task, subscriber(self.context, self.hook), SystemClock()
        error_handler = install_error_handler(task.error_handler) if task.error_handler is not None else None
        if error_handler is not None:
            error_subscription(table, name, clock).begin()
        if task.alerts:
            alert_subscription(table, name, clock).begin()

        def send_alerts() -> None:
            left = [] if error_handler is None else hand_over(table, name, error_handler, clock)
            if task.alerts:
                task.alerts.send(table, name, self.context, clock, task.log)
            if left:
                self.unhandled = (
                    f"The error handler {type(error_handler).__name__} did not deal with {counted(len(left), 'poison message')} of queue "
                    f"{table.name!r}: {left[:20]}. handle_error returned False or nothing for them. What was received is committed: look at these "
                    "messages; there is nothing to clear."
                )
                task.log.error(self.unhandled)

        return send_alerts


def receive_from_all(task: QueueReceiveOperator, hook: QueueHook, queues: Mapping[str, Receive], context: Context) -> dict[str, object]:
    """Run a pass over every queue, side by side; alert about each as soon as it has ended; return all numbers.

    Raises, when all have ended, QueuesFailedError for queues that failed, else AirflowFailException for queues that are halted, or whose error
    handler did not deal with a message.
    """
    ones = {name: QueuePass(task, hook, name, receive, context) for name, receive in queues.items()}
    untold: dict[str, Exception] = {}

    def ended(queue: str, end: ReceiveResult | Exception) -> None:
        if isinstance(end, Exception):
            task.log.error("Queue %r: %s", queue, end, exc_info=None if isinstance(end, QueueHaltedError) else end)
        else:
            table = ones[queue].table
            assert table is not None, "it was received from"
            task.report(end, table, hook.conn_id)
        try:
            ones[queue].send_alerts()
        except Exception as error:
            task.log.exception("The alerts of queue %r could not be given.", queue)
            untold[queue] = error

    result = receive_many(
        [QueueRun(queue, one.prepare) for queue, one in ones.items()],
        parallelism=task.parallelism or cores_of(spark_master(hook.settings.spark, hook.get_connection)) or PARALLELISM,
        stop=task.stop,
        ended=ended,
    )
    numbers = result.to_dict()
    landed = Counter[str]()
    for each in result.results.values():
        landed.update(each.landed)
    task.note_landed(landed, context, hook.store())
    task.push(numbers, context)
    _raise_what_failed(result, untold, {queue: one.system for queue, one in ones.items()})
    if unhandled := [one.unhandled for one in ones.values() if one.unhandled]:
        raise AirflowFailException("\n".join(unhandled))
    return numbers


def _raise_what_failed(result: ReceiveManyResult, untold: Mapping[str, Exception], systems: Mapping[str, str]) -> None:
    """Raise one error that names every queue. A failure comes before a halt: Airflow may retry it, and the halted ones stay untouched."""
    stopped = [_halted(result, queue, systems[queue]) for queue in result.halted]
    failures = [*result.failed.items(), *untold.items()]
    failed = [f"{queue}: {type(error).__name__}: {error}" for queue, error in failures]
    of = f"of {len(systems)} queues"
    if failed:
        also = [f"{len(stopped)} {of} halted:", *stopped] if stopped else []
        named = [f"{len({queue for queue, _ in failures})} {of} failed; what the others did is committed:", *failed, *also]
        raise QueuesFailedError("\n".join(named)) from failures[0][1]
    if stopped:
        raise AirflowFailException("\n".join([f"{len(stopped)} {of} halted; what the others did is committed:", *stopped]))


def _halted(result: ReceiveManyResult, queue: str, system: str) -> str:
    ended = result.results.get(queue)
    return f"{queue}: {halted(ended, system) if ended is not None else result.errors[queue]}"
