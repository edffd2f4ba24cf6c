"""``@task.receive``: a function of one message becomes a receive pass."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from airflow.sdk.bases.decorator import get_unique_task_id, task_decorator_factory

from airflow_poison.delivery.handlers import check_given, check_transform
from airflow_poison.operators.receive import QueueReceiveOperator
from airflow_poison.values.errors import HandlerNotFoundError, SettingError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from airflow.sdk.bases.decorator import TaskDecorator


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
