"""What a receive is: its settings, declared once. Task groups, operators, decorators, the shell, tests and scripts take these and pass them on.

``ReceiveOptions`` is what authors write, by name. ``Receive.of`` checks it and makes values of it; ``ReceivePass`` is a ``Receive`` on one queue.
A new setting stands here (its option, its field) and where it works.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Self, TypedDict, TypeVar, Unpack

from airflow_poison.delivery.handlers import (
    BATCH_SIZE,
    MANGLED_PREFIX,
    Batching,
    Transformation,
    check_alone,
    check_deliver,
    check_given,
    check_policy,
    check_schema,
    check_transform,
    name_of,
    refuse_dialogs,
)
from airflow_poison.outputs.output import Output, outputs_of
from airflow_poison.rules import checked_policy
from airflow_poison.rules.outage import Outage, checked_outage
from airflow_poison.rules.settings import flag, several
from airflow_poison.store.parking import check_parking
from airflow_poison.values.errors import SettingError
from airflow_poison.values.masking import checked_mask
from airflow_poison.values.texts import Plain

if TYPE_CHECKING:
    from airflow_poison.delivery.handlers import HandlerLike, TransformLike
    from airflow_poison.dialogs.services import Service
    from airflow_poison.passes.land import Deliver
    from airflow_poison.rules.policy import Policy
    from airflow_poison.sources.source import Source


@dataclass(frozen=True, slots=True)
class Canary(Plain):
    """The messages of a plan that are done first.

    :param messages: so many of them, of each error group some.
    :param share: of them that must have been settled before the others follow, above 0 to 1.
    """

    messages: int
    share: float = 1.0

    def __post_init__(self) -> None:
        """Refuse what is no canary."""
        if self.messages < 1:
            raise SettingError("canary.messages", self.messages, "a whole number, at least 1")
        if not 0 < self.share <= 1:
            raise SettingError("canary.share", self.share, "a number above 0 and at most 1, for example 0.95")


F = TypeVar("F", bound=Callable[..., Any])


class ReceiveOptions(TypedDict, total=False):
    """The settings of a receive, as authors write them.

    :param transform: in the handler's place: a function of a Spark DataFrame of messages, or its name (templated, the name). It returns a
        DataFrame, or a mapping of names to such.
    :param source: whose new rows ``transform`` is given where they are, with their own types: what succeeds lands, and only rows that fail become
        messages, in one commit with the source's position. They are delivered in the same pass, as what waits in the queue. Where Spark cannot read
        the source by itself, all of its rows become messages.
    :param mixes_rows: what ``transform`` makes of a message depends on others: the messages are transformed as one unit, all or nothing.
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
    :param on_bad_cell: ``null``: a row with a cell that does not fit its column of the output lands without it, and the column ``_corrections`` says
        so; of a key, or of a column that must have a value, it fails. None: each such row fails.
    :param deliver: in place of ``output``: a function of an Arrow table of returned rows and a key, called after the commit that settled their
        messages, again with the same key when it failed: in the task, or in the driver where that is submitted.
    :param batch: ``arrow``, ``pandas`` or ``polars``: the handler is called with a frame of many messages; None: with one message. A frame is one
        transaction; where it fails, the messages that are to blame are searched for, and only they are charged. Not with ``max_batch_size``.
    :param batch_size: how many messages a frame has at most.
    :param schema: the columns of the bodies, JSON objects, as DDL (``"carrier string, flight int"``), and so of the frames, or of the DataFrame of
        ``transform``, beside ``lookup_id``; None: these have the columns of messages.
    :param outage: when failures count as an outage of a system that the handler needs, and cost no message an attempt; None: each failure counts.
    :param mask: paths of values that are hidden wherever messages are shown (``$.card``, ``properties.token``); None: as recorded, []: none.
    :param handler_version: a text that changes with each version of the handler, such as a date or a release. (templated)
    :param redrive_on_new_handler: a ``Canary``: for each new ``handler_version`` so many poison messages of each error group go back to ``main``, and
        the others when enough of them were settled. Recorded in the queue; None: as it is recorded there.
    :param park_group: a message that failed has later ones of its group wait behind it, uncharged, until it is resolved; not with policies that lock
        groups or keep an order of their own. Recorded in the queue; None: as it is recorded there.
    :param spans: other queues that the handler's transaction receives from, too, with ``queue_name`` and Service Broker's rules: each counts its
        rollbacks, and the fifth in a row of any of them disables all (spec SB-4, SB-9).
    """

    transform: TransformLike | None
    source: Source | None
    mixes_rows: bool
    services: Sequence[Service]
    max_messages: int | str
    isolation: str
    unprocessable: Sequence[str | type[BaseException]]
    output: Mapping[str, str] | str | None
    output_schema: Any
    output_keys: Any
    evolve: bool
    provenance: bool
    on_bad_cell: str | None
    deliver: Deliver | None
    batch: str | None
    batch_size: int
    schema: str | None
    outage: Outage | None
    mask: Sequence[str] | str | None
    handler_version: str | None
    redrive_on_new_handler: Canary | None
    park_group: bool | None
    spans: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Receive:
    """The settings of a receive, checked: what is the same for each queue and each try.

    :param handler: an importable name or a callable; or a transformation of a DataFrame. None: each of several queues has its own.
    :param outputs: where the rows land that the handler returns (``outputs_of``).
    :param deliver: takes the rows of the output without a table, after the commit that settled their messages: a function of an Arrow table and a
        key, which is the same when the rows are given again after it, or its process, has failed.
    :param batching: the handler gets frames of many messages; None: one message at a time.

    What is not described here is as in ``ReceiveOptions``.
    """

    handler: HandlerLike | Transformation | None = None
    policy: Policy | None = None
    source: Source | None = None
    services: tuple[Service, ...] = ()
    max_messages: int = 10_000_000
    isolation: str = "process"
    unprocessable: tuple[str, ...] = ()
    outputs: tuple[Output, ...] = ()
    deliver: Deliver | None = None
    batching: Batching | None = None
    outage: Outage | None = None
    mask: Sequence[str] | str | None = None
    handler_version: str | None = None
    redrive_on_new_handler: Canary | None = None
    park_group: bool | None = None
    spans: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, queue_name: str = "", /, *, handler: HandlerLike | None = None, policy: Policy | None = None, **options: Unpack[ReceiveOptions]
    ) -> Self:
        """Check settings and return them.

        :param queue_name: for the errors; empty: several queues, or not known yet.
        :param handler: an importable name (``"shop.arrivals:land"``) or a function; called with a Message, raises to roll back.
        :param policy: the queue's rules, recorded in it; makes the queue when it is missing. None: the recorded policy rules.
        Raises SettingError, and HandlerNotFoundError for what can be no handler, as far as it is there: a name is imported when a pass begins.
        """
        given: dict[str, Any] = {**DEFAULTS, **options, "handler": handler, "policy": policy}
        if other := sorted(set(given) - set(DEFAULTS)):
            raise TypeError(f"{', '.join(other)}: a receive has no such setting; it has {', '.join(DEFAULTS)}")
        transform, deliver = given["transform"], given["deliver"]
        if deliver is not None:
            check_deliver(deliver)
        if handler is not None:
            check_given(handler, returns_rows=given["output"] is not None or deliver is not None)
        _check_transform(given)
        for name in ("mixes_rows", "evolve", "provenance"):  # a template would leave text, and 'False' would be true
            flag(name, given[name])
        outputs = outputs_of(
            given["output"],
            schema=given["output_schema"],
            keys=given["output_keys"],
            evolve=given["evolve"],
            provenance=given["provenance"],
            deliver=deliver is not None,
            on_bad_cell=given["on_bad_cell"],
        )
        if given["redrive_on_new_handler"] is not None and given["handler_version"] is None:
            raise SettingError("handler_version", None, "a text that changes with each version of the handler, where redrive_on_new_handler is set")
        several("spans", given["spans"], "a list of queue names")
        schema = given["schema"]
        made = cls(
            handler=handler if transform is None else Transformation(transform, schema, given["mixes_rows"]),
            policy=checked_policy(policy),
            source=given["source"],
            services=tuple(several("services", given["services"], "a list of services")),
            max_messages=whole("max_messages", given["max_messages"]),
            isolation=given["isolation"],
            unprocessable=importable_types(given["unprocessable"], inline=given["isolation"] == "none"),
            outputs=outputs,
            deliver=deliver,
            batching=Batching.of(given["batch"], given["batch_size"], None if transform is not None else schema),
            outage=checked_outage(given["outage"]),
            mask=checked_mask(given["mask"]),
            handler_version=given["handler_version"],
            redrive_on_new_handler=given["redrive_on_new_handler"],
            park_group=given["park_group"],
            spans=tuple(given["spans"]),
        )
        made.check(queue_name)
        return made

    def check(self, queue_name: str = "") -> None:
        """Refuse what does not go with the policy or with services. Raises SettingError."""
        transformation = self.handler if isinstance(self.handler, Transformation) else None
        if self.policy is not None:
            if transformation is not None:
                check_policy(self.policy, transformation, converses=bool(self.services))
            if self.park_group:
                check_parking(queue_name, self.policy, converses=bool(self.services), transforms=transformation is not None)
            if self.batching is not None:
                self.batching.check_policy(self.policy)
            if self.spans:
                self.policy.check_spans(self.spans)
        if self.services:
            refuse_dialogs(self.batching, queue_name)

    def of_queue(self, **own: Any) -> Self:
        """Return the same with what one queue has of its own (None: nothing). Raises SettingError."""
        return replace(self, **{name: value for name, value in own.items() if value is not None})

    def settings(self) -> dict[str, Any]:
        """Return the fields by name, as ``ReceivePass`` takes them."""
        return {each.name: getattr(self, each.name) for each in fields(Receive)}


DEFAULTS: Mapping[str, object] = {
    **dict.fromkeys(("handler", "policy", *ReceiveOptions.__annotations__)),
    **{each.name: each.default for each in fields(Receive) if each.name in ReceiveOptions.__annotations__},
    "mixes_rows": False,
    "evolve": False,
    "provenance": False,
    "batch_size": BATCH_SIZE,
}
"""What each setting is where it is not given."""
_ANNOTATIONS = {"handler": "HandlerLike | None", "policy": "Policy | None"} | {
    name: getattr(kind, "__forward_arg__", kind) for name, kind in ReceiveOptions.__annotations__.items()
}


def takes_options(function: F) -> F:
    """Show the settings of a receive as parameters of a function that takes them as ``**options``: for default arguments of DAGs, and for help."""
    signature = inspect.signature(function)
    there = signature.parameters
    own = [each for each in there.values() if each.kind is not inspect.Parameter.VAR_KEYWORD]
    rest = [each for each in there.values() if each.kind is inspect.Parameter.VAR_KEYWORD]
    settings = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=_ANNOTATIONS[name])
        for name, default in DEFAULTS.items()
        if name not in there
    ]
    function.__signature__ = signature.replace(parameters=[*own, *settings, *rest])  # type: ignore[attr-defined]  # inspect.signature reads it
    return function


def whole(name: str, given: object) -> int:
    """Return a number that is given, or what a template leaves of one. Raises SettingError."""
    try:
        return int(given)  # type: ignore[call-overload,no-any-return]  # what is no number raises
    except (TypeError, ValueError):
        raise SettingError(name, given, "a whole number, or text of one") from None


def check_handler_given(handler: object, transform: object) -> None:
    """Raise SettingError where there is neither."""
    if handler is None and transform is None:
        raise SettingError("handler", None, "an importable name such as 'shop.arrivals:land', or a function; or transform=...")


def _check_transform(given: Mapping[str, Any]) -> None:
    """Check the settings of a transformation. Raises SettingError and HandlerNotFoundError."""
    transform = given["transform"]
    if transform is None:
        if given["mixes_rows"]:
            raise SettingError("mixes_rows", given["mixes_rows"], "a setting of a transformation; declare transform=... too")
        return
    if given["handler"] is not None:
        named = transform if isinstance(transform, str) else name_of(transform)
        raise SettingError("transform", named, "either handler or transform, and not both")
    check_transform(transform)
    if given["schema"] is not None:
        check_schema(given["schema"])
    check_alone(
        batch=given["batch"],
        isolation=given["isolation"],
        unprocessable=given["unprocessable"],
    )


def importable_types(kinds: Iterable[str | type[BaseException]], *, inline: bool = False) -> tuple[str, ...]:
    """Return the names of exception types that server sessions can import. Raises SettingError for one of a DAG file.

    :param inline: handlers run in this process, which has its own ``__main__``.
    """
    several("unprocessable", kinds, "a list of exception types, or of their names as 'module:Type'")
    return tuple(kind if isinstance(kind, str) else _importable(kind, inline=inline) for kind in kinds)


def _importable(kind: type[BaseException], *, inline: bool) -> str:
    if not isinstance(kind, type):
        raise SettingError("unprocessable", kind, "exception types, not exceptions, or names as 'module:Type'")
    if kind.__module__.startswith(MANGLED_PREFIX) or (kind.__module__ == "__main__" and not inline):
        raise SettingError("unprocessable", kind.__qualname__, "exception types of importable modules; in a DAG file raise Unprocessable instead")
    return name_of(kind)
