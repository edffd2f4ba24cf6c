"""Transformations: functions of a Spark DataFrame in the place of a handler; how one is declared, checked and carried."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from airflow_poison.delivery.handlers import HandlerRef, check_given, kind_of, load_handler, resolve_handler, wrong_call
from airflow_poison.values.ddl import column_names
from airflow_poison.values.errors import HandlerNotFoundError, SettingError
from airflow_poison.values.schema import LOOKUP_ID

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import DataFrame

    from airflow_poison.rules.policy import Policy

    Frames = DataFrame | Mapping[str, DataFrame]
    TransformLike = str | Callable[[DataFrame], Frames]

VERDICT = "_poison"
"""The column of a result that says why a row's message is poison; null: it is not. It does not land.

So a verdict must not be made null by one of its parts, as ``concat`` makes it: use ``concat_ws``, ``format_string`` or ``coalesce``.
"""


@dataclass(frozen=True, slots=True)
class Transformation:
    """A function of the DataFrame of a claim's messages, and how it is called.

    It is called in the driver, once for each chunk of a claim, and again for what failed. So it only builds a plan, and its result depends on
    nothing but the rows that it is given: what it is called with may be delivered again.

    :param function: an importable name (``"shop.arrivals:clean"``) or a function; it returns a DataFrame, or a mapping of names to such.
    :param schema: of the JSON bodies, as DDL (``"carrier string, flight int"``); the function is given these columns and ``lookup_id``, made by the
        function that makes the columns of batches (docs/reference/bodies.md). None: it gets the columns of messages as they are stored.
    :param mixes_rows: its result for a message depends on other messages: the claim is transformed as one unit.
    """

    function: TransformLike | HandlerRef
    schema: str | None = None
    mixes_rows: bool = False

    def __post_init__(self) -> None:
        check_transform(self.function)
        if self.schema is not None:
            check_schema(self.schema)

    @property
    def name(self) -> str:
        """The name of the function, for people."""
        if isinstance(self.function, str):
            return self.function
        if isinstance(self.function, HandlerRef):
            return self.function.name
        return f"{getattr(self.function, '__module__', '')}:{getattr(self.function, '__qualname__', type(self.function).__qualname__)}"

    def ref(self) -> HandlerRef:
        """Return the function ready to travel. Raises HandlerNotFoundError where it cannot be imported or carried."""
        if isinstance(self.function, HandlerRef):
            return self.function
        try:
            return resolve_handler(self.function)
        except HandlerNotFoundError as error:
            raise HandlerNotFoundError(f"transform: {error}") from error

    def resolved(self) -> Transformation:
        """Return the same transformation with a function that is there. One that was given stays as it is: it is called in this process.

        Raises HandlerNotFoundError.
        """
        return replace(self, function=self.ref()) if isinstance(self.function, str) else self

    def load(self) -> Callable[[DataFrame], Frames]:
        """Return the function. Raises HandlerNotFoundError."""
        loaded: Any = self.function if callable(self.function) else load_handler(self.ref())
        return loaded  # type: ignore[no-any-return]  # checked when it was declared


def check_transform(function: object) -> None:
    """Check a function as far as that needs no import.

    :raises HandlerNotFoundError: it is no ``module:function``, or cannot be called with a DataFrame alone.
    """
    if isinstance(function, HandlerRef):
        return
    if isinstance(function, str):
        try:
            check_given(function)
        except HandlerNotFoundError as error:
            raise HandlerNotFoundError(f"transform={function!r} is not of the form 'module:function', for example 'shop.arrivals:clean'.") from error
        return
    name = getattr(function, "__qualname__", type(function).__qualname__)
    kind = kind_of(function) if callable(function) else ""
    if not callable(function) or kind == "class":
        raise HandlerNotFoundError(f"transform={function!r} is {type(function).__name__}; name a function of a DataFrame that returns a DataFrame.")
    if kind:
        raise HandlerNotFoundError(f"transform={name} is a coroutine or a generator: called, it would not run. Write it as a function that returns.")
    if (wrong := wrong_call(function)) is not None:
        signature, why = wrong
        raise HandlerNotFoundError(
            f"transform={name}{signature} cannot be called with a DataFrame alone ({why}). Define it as 'def {name}(df)'; what else it needs it "
            "takes from module variables, from df.sparkSession or from columns."
        ) from why


def check_schema(schema: str) -> None:
    """Check the DDL of bodies. Raises SettingError for what is no DDL, and for columns that have a name of ours."""
    for name in column_names(schema):
        if name.lower() in {LOOKUP_ID, VERDICT}:
            raise SettingError("schema", schema, f"columns of other names than {LOOKUP_ID} and {VERDICT}; here is a column {name!r}")


def check_alone(*, batch: str | None = None, isolation: str = "process", unprocessable: Sequence[object] = ()) -> None:
    """Refuse settings of a handler for a transformation. Raises SettingError."""
    if batch is not None:
        raise SettingError(
            "batch", batch, "None with transform=...: a transformation is given a DataFrame of all messages, and schema=... its columns"
        )
    if isolation != "process":
        raise SettingError("isolation", isolation, "'process', which may be left out, with transform=...: it runs in Spark's own processes")
    if unprocessable:
        allowed = f"none with transform=...: say in its column {VERDICT} which message is poison; the policy decides how often it is tried"
        raise SettingError("unprocessable", list(unprocessable), allowed)


def check_policy(policy: Policy, transformation: Transformation, *, converses: bool = False) -> None:
    """Refuse a policy whose decisions depend on which message was delivered before which other one. Raises SettingError.

    A transformation gets thousands of messages at once: there is no order among their deliveries. What only halts at its first culprit is
    carried out exactly, for a transformation has no effects: those behind the culprit are left as they were.
    """
    if not policy.stateless:
        raise SettingError(
            "transform",
            policy.system,
            f"a policy whose decisions depend on one message alone. These settings of {policy.system} count over messages one after the other, or "
            "deliver several in one transaction; messages of a transformation are delivered together. Use a handler of one message for them",
        )
    if policy.halting and transformation.mixes_rows:
        raise SettingError(
            "mixes_rows",
            True,  # noqa: FBT003  (the value that is shown)
            f"a policy that does not halt at a message, or mixes_rows=False. With these settings of {policy.system} what is behind a culprit is not "
            "delivered, so the result would depend on it",
        )
    if converses:
        raise SettingError("transform", "a queue with services", "a queue without conversations: a transformation has no dialog. Use a handler")
