"""The queues of a receive task, as a DAG file gives them and as rendered; and QueuePass, which builds the receive pass of one, runs it and alerts.

What a pass did, in words: for the task's log and for the error of a halted queue.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, TypeAlias, TypeGuard

from airflow.sdk.exceptions import AirflowFailException, AirflowTaskTimeout

from airflow_poison.delivery.handlers import Transformation, check_given
from airflow_poison.hooks.connection import cores_of, spark_master
from airflow_poison.hooks.poison import QueueHook, this_run
from airflow_poison.operators.base import logged, subscriber, task_key
from airflow_poison.passes.runs import QueueRun, ReceiveManyResult, ReceiveResult, check_named_once, halted, receive_many
from airflow_poison.rules import checked_policy, policy_from_dict
from airflow_poison.values.clock import SystemClock
from airflow_poison.values.errors import QueueHaltedError, QueuesFailedError, SettingError
from airflow_poison.values.failures import install_error_handler
from airflow_poison.values.masking import checked_mask
from airflow_poison.values.texts import counted

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_poison.delivery.handlers import HandlerLike
    from airflow_poison.dialogs.services import Service
    from airflow_poison.operators.receive import QueueReceiveOperator
    from airflow_poison.passes.declaration import Receive
    from airflow_poison.passes.receive import ReceivePass
    from airflow_poison.rules.policy import Policy
    from airflow_poison.store.queue_table import QueueTable


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

    :ivar tell: sends alerts and calls the error handler for all events since the queue was opened. Raises AlertError.
    :ivar system: the name of the messaging system whose rules the pass goes by; empty before they are known.
    :ivar unhandled: after ``tell``: messages that the error handler did not deal with (spec WCF-26); empty: none.
    """

    task: QueueReceiveOperator
    hook: QueueHook
    queue_name: str
    receive: Receive
    context: Context
    table: QueueTable | None = None
    tell: Callable[[], None] = lambda: None
    system: str = ""
    unhandled: str = ""

    def prepare(self) -> tuple[ReceivePass, str]:
        """Open the queue, note where it stands, and return its pass with the run key."""
        from airflow_poison.passes.engines import INTERRUPTS

        task = self.task
        made = self.hook.queue(self.queue_name).receive_pass(
            self.receive,
            lambda: self.hook.engine(task.log.info, task.py_files),
            run=this_run(),
            redriven=lambda view: task.log.warning("Redrive for a new handler: %s", logged(view)),
            small_pass=self.hook.settings.small_pass,
            progress=task.log.info,
            interrupts=(*INTERRUPTS, AirflowTaskTimeout),
        )
        self.table = table = made.table
        self.tell = self._afterwards(table)
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

        def tell() -> None:
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

        return tell


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
            ones[queue].tell()
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
