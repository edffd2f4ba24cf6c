"""TaskFlow: ``@task.receive`` and ``@task.send``.

``@task.receive``: a function of one message becomes a receive pass.

``@task.send``: what a function returns becomes messages.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from inspect import signature
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, TypeGuard

from airflow.sdk.bases.decorator import DecoratedOperator, TaskDecorator, get_unique_task_id, task_decorator_factory

from airflow_poison.delivery.handlers import check_given, check_transform
from airflow_poison.operators.receive import QueueReceiveOperator
from airflow_poison.operators.send import QueueSendOperator
from airflow_poison.sources.source import Source
from airflow_poison.values.data_frames import is_frame
from airflow_poison.values.errors import HandlerNotFoundError, InputError, SettingError

if TYPE_CHECKING:
    from airflow.sdk import Context
    from pyspark.sql import DataFrame

    from airflow_poison.hooks.poison import QueueHook
    from airflow_poison.store.queue_table import QueueTable


class ReceiveDecoratedOperator(QueueReceiveOperator):
    """A receive pass whose handler is the decorated function.

    :param python_callable: the function; called with each message, where the handlers run, not in the task.
    """

    custom_operator_name = "@task.receive"

    def __init__(
        self,
        *,
        python_callable: Callable[..., Any],
        task_id: str,
        op_args: Collection[Any] | None = None,
        op_kwargs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        if op_args or op_kwargs:
            _refuse_arguments(python_callable, *map(repr, op_args or ()), *(f"{name}=..." for name in op_kwargs or ()))
        as_what = "transform" if kwargs.pop("transform", None) else "handler"
        super().__init__(task_id=get_unique_task_id(task_id, kwargs.get("dag"), kwargs.get("task_group")), **{as_what: python_callable, **kwargs})


def receive_task(python_callable: Callable[..., Any] | None = None, *, queue_name: str | None = None, **kwargs: Any) -> TaskDecorator:
    """Make a task of a function of one message: a receive pass over a queue with the function as its handler; or of one of a DataFrame.

    Calling the function in a DAG gives the task; it returns the pass's numbers.

    :param queue_name: the queue's name. (templated)
    :param kwargs: what ``QueueReceiveOperator`` takes, but ``handler``. ``transform=True``: the function transforms a DataFrame of messages.
    Raises SettingError without a queue or for a setting that is given twice, and HandlerNotFoundError for a function that cannot be called
    with a message alone.
    """
    if "handler" in kwargs:
        raise SettingError("@task.receive: handler", kwargs["handler"], "none here; decorate the function")
    if not isinstance(kwargs.get("transform", False), bool):
        raise SettingError("@task.receive: transform", kwargs["transform"], "True, where the decorated function transforms a DataFrame")
    if queue_name is None and kwargs.get("queues") is None:
        raise SettingError("@task.receive: queue_name", None, "a queue's name, as in @task.receive(queue_name='orders'), or queues=[...]")
    if python_callable is not None:
        raise SettingError("@task.receive", python_callable, "settings by name, as in @task.receive(queue_name='orders')")

    def decorate(function: Callable[..., Any]) -> Any:
        if kwargs.get("transform"):
            check_transform(function)
        else:
            check_given(function, returns_rows=kwargs.get("output") is not None or kwargs.get("deliver") is not None)
        decorated: Any = task_decorator_factory(
            function, multiple_outputs=False, decorated_operator_class=ReceiveDecoratedOperator, queue_name=queue_name, **kwargs
        )
        decorated.expand = decorated.expand_kwargs = decorated.partial = partial(_refuse_arguments, function)
        return decorated

    return decorate  # type: ignore[return-value]  # the factory's form of the protocol, as Airflow's own decorators return it


def _refuse_arguments(function: Callable[..., Any], *given: object, **named: object) -> NoReturn:
    """Raise HandlerNotFoundError, because only the queue gives a handler its messages, neither a call nor a mapping."""
    name = function.__name__
    arguments = ", ".join([*map(str, given), *(f"{name}=..." for name in named)])
    raise HandlerNotFoundError(
        f"@task.receive: {name}({arguments}) was given arguments, but its messages come from the queue. Call {name}() in the DAG; "
        "for a pass over several queues give queues=[...] to the decorator."
    )


SOURCES = ("messages", "path", "table", "dataframe", "source")


class SendDecoratedOperator(DecoratedOperator, QueueSendOperator):
    """A send of the values that the decorated function returns.

    The function is called only when the task instance has sent nothing yet.

    :param python_callable: the function; an argument ``spark`` without a value is the connection's Spark session.
    :param op_args: its arguments by position. (templated)
    :param op_kwargs: its arguments by name. (templated)
    """

    template_fields: Sequence[str] = (
        *DecoratedOperator.template_fields,
        *(field for field in QueueSendOperator.template_fields if field not in SOURCES),
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {**DecoratedOperator.template_fields_renderers}
    custom_operator_name = "@task.send"

    def __init__(
        self,
        *,
        python_callable: Callable[..., Any],
        op_args: Collection[Any] | None = None,
        op_kwargs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        self.wants_spark = _wants_spark(python_callable, op_args or (), op_kwargs or {})
        named = {**(op_kwargs or {}), "spark": None} if self.wants_spark else op_kwargs
        super().__init__(python_callable=python_callable, op_args=op_args, op_kwargs=named, messages=(), **kwargs)

    def execute(self, context: Context) -> dict[str, object]:
        """Call the function and send. Raises what the function raises, and the errors of QueueSendOperator; then nothing was sent."""
        self._context = context
        sent: dict[str, object] = QueueSendOperator.execute(self, context)
        return sent

    def _source(self, hook: QueueHook, queue: QueueTable, key: str) -> Source | None:
        """Call the function, unless an earlier run has sent what it returned."""
        if queue.sent_before(key) is None:
            self._take(self._returned(hook))
        return self.source

    def _returned(self, hook: QueueHook) -> object:
        if self.wants_spark:
            self.op_kwargs = {**self.op_kwargs, "spark": hook.spark(self.py_files)}
        arguments = self.determine_kwargs({**self._context, **self.op_kwargs})
        return self.python_callable(*self.op_args, **arguments)

    def _take(self, returned: object) -> None:
        """Make the operator's source from what the function returned. Raises InputError for other types."""
        self.messages = None
        if isinstance(returned, Source):
            self.source = returned
        elif _is_spark_frame(returned):
            self.dataframe = lambda _spark: returned
        elif isinstance(returned, str | os.PathLike):
            self.path = str(returned)
        elif is_frame(returned) or (isinstance(returned, Iterable) and not isinstance(returned, bytes | bytearray | Mapping)):
            self.messages = returned  # type: ignore[assignment]  # also a generator: rows are read once
        else:
            raise InputError(
                f"{self.task_id}: {self.python_callable.__name__} returned {type(returned).__name__}; expected a list of dicts, text or bytes, "
                "a path (text), a DataFrame, or a source. For one message return a list of it, for none []. Nothing was sent."
            )


def send_task(python_callable: Callable[..., Any] | None = None, *, queue_name: str | None = None, **kwargs: Any) -> TaskDecorator:
    """Make a task that sends what a function returns: rows (dicts, text, bytes), a path, a DataFrame, or a source.

    The function runs in the task, with arguments, XComs and context as in any ``@task``. Sends once per task instance.

    :param queue_name: the queue's name. (templated)
    :param kwargs: what ``QueueSendOperator`` takes, but the sources.
    Raises SettingError without a queue, or for a source: the function is the source.
    """
    for name in SOURCES:
        if name in kwargs:
            raise SettingError(f"@task.send: {name}", kwargs[name], "none here; return it from the function")
    if queue_name is None:
        raise SettingError("@task.send: queue_name", None, "a queue's name, as in @task.send(queue_name='orders')")
    return task_decorator_factory(
        python_callable, multiple_outputs=False, decorated_operator_class=SendDecoratedOperator, queue_name=queue_name, **kwargs
    )


def _wants_spark(function: Callable[..., Any], args: Collection[Any], kwargs: Mapping[str, Any]) -> bool:
    names = list(signature(function).parameters)
    return "spark" in names[len(args) :] and "spark" not in kwargs


def _is_spark_frame(value: object) -> TypeGuard[DataFrame]:
    return any(kind.__name__ == "DataFrame" and kind.__module__.startswith("pyspark.sql") for kind in type(value).__mro__)
