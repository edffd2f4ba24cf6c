"""Who is alerted: any Airflow notifiers, or functions that take the task's context."""

from __future__ import annotations

import asyncio
import inspect
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, cast

from airflow_poison.rules.settings import duration
from airflow_poison.values.errors import AlertError, SettingError

if TYPE_CHECKING:
    from airflow_poison.passes.alerts import Alert, AlertKind
    from airflow_poison.passes.recovery import ConversationEnded
    from airflow_poison.store.queue_table import QueueTable
    from airflow_poison.values.clock import Clock

Target: TypeAlias = Callable[[Any], Any]
"""An Airflow notifier, or a function of the context."""

Targets: TypeAlias = Target | Sequence[Target] | None


STOPS = frozenset({"STOPPED", "FAULTED"})
"""The events of endpoints that stop by themselves while the queue still takes messages; a disabled queue is ``QUEUE_DISABLED``."""


class Log(Protocol):
    """The part of a logger that is used."""

    @property
    def warning(self) -> Callable[..., object]:
        """Log a warning."""
        ...

    @property
    def exception(self) -> Callable[..., object]:
        """Log an error with its traceback."""
        ...


@dataclass(frozen=True, slots=True)
class AlertTargets:
    """The receivers of a task's alerts.

    Each is called with a copy of the task's context that holds the alert as ``poison_alert``: a dict with ``key`` (the same when the alert is
    repeated, so that it can be dropped), ``kind``, ``queue``, ``event``, ``lookup_ids`` (at most 20), ``count``, ``reason``, ``what_to_do``
    and ``details``. A notifier's templated fields see it as ``{{ poison_alert.reason }}``, ``{{ poison_alert.details.document }}``.

    QueueAlertOperator describes its parameters. A target in both ``queue_disabled`` and ``stopped`` is called once.
    """

    queue_disabled: tuple[Target, ...] = ()
    poison: tuple[Target, ...] = ()
    blocked: tuple[Target, ...] = ()
    stopped: tuple[Target, ...] = ()
    backlog: tuple[Target, ...] = ()
    backlog_older_than: timedelta | None = None
    outage: tuple[Target, ...] = ()
    outage_over: tuple[Target, ...] = ()
    told: tuple[Target, ...] = ()

    @classmethod
    def of(
        cls,
        on_queue_disabled: Targets = None,
        on_poison: Targets = None,
        on_blocked: Targets = None,
        *,
        on_stopped: Targets = None,
        on_backlog: Targets = None,
        backlog_older_than: timedelta | None = None,
        on_outage: Targets = None,
        on_outage_over: Targets = None,
        on_told: Targets = None,
    ) -> AlertTargets:
        """Return the receivers given one by one or in a list.

        Raises SettingError for what cannot be called, and for ``on_backlog`` without ``backlog_older_than``, or the other way round.
        """
        backlog = listed("on_backlog", on_backlog)
        if bool(backlog) != (backlog_older_than is not None):
            raise SettingError("backlog_older_than", backlog_older_than, "a timedelta above 0 together with on_backlog, and nothing without it")
        return cls(
            listed("on_queue_disabled", on_queue_disabled),
            listed("on_poison", on_poison),
            listed("on_blocked", on_blocked),
            listed("on_stopped", on_stopped),
            backlog,
            None if backlog_older_than is None else duration("backlog_older_than", backlog_older_than, timedelta(microseconds=1)),
            listed("on_outage", on_outage),
            listed("on_outage_over", on_outage_over),
            listed("on_told", on_told),
        )

    def __bool__(self) -> bool:
        return any((self.queue_disabled, self.poison, self.blocked, self.stopped, self.backlog, self.outage, self.outage_over, self.told))

    def receivers(self, alert: Alert) -> tuple[Target, ...]:
        """Return the targets of an alert, each once."""
        targets: tuple[Target, ...] = self.poison + self.told if alert.kind == "desk" else getattr(self, alert.kind.value)
        if alert.event not in STOPS:
            return targets
        return targets + tuple(target for target in self.stopped if not any(target is other for other in targets))

    def kinds(self) -> list[AlertKind]:
        """Return the kinds of events that have a target."""
        from airflow_poison.passes.alerts import AlertKind

        wanted = {
            AlertKind.QUEUE_DISABLED: self.queue_disabled or self.stopped,
            AlertKind.POISON: self.poison,
            AlertKind.DESK: self.poison or self.told,
            AlertKind.BLOCKED: self.blocked,
            AlertKind.OUTAGE: self.outage,
            AlertKind.OUTAGE_OVER: self.outage_over,
        }
        return [kind for kind, targets in wanted.items() if targets]

    def send(self, table: QueueTable, subscriber: str, context: Mapping[str, Any], clock: Clock, log: Log) -> list[dict[str, object]]:
        """Send every target the alerts for events since the last call; return the alerts. Raises AlertError."""
        from airflow_poison.passes.alerts import send_alerts, send_backlog_alert

        given: dict[str, Alert] = {}
        errors: list[AlertError] = []

        def notify(target: Target, alert: Alert) -> None:
            if not any(target is each for each in self.receivers(alert)):
                return
            if alert.key not in given:
                log.warning("%s %s", alert.reason, alert.what_to_do)
                given[alert.key] = alert
            notify_all([target], alert, context, log)

        try:
            if kinds := self.kinds():
                named = self._named(self._of_events)
                send_alerts(table, subscriber, {name: partial(notify, target) for name, target in named}, clock, kinds=kinds)
        except AlertError as error:
            errors.append(error)
        for name, target in self._named(self.backlog):
            who = subscriber if target is self.backlog[0] else f"{subscriber}#{name}"  # each hears of a backlog once, whichever other one fails
            try:
                send_backlog_alert(table, who, cast("timedelta", self.backlog_older_than), partial(notify, target), clock)
            except AlertError as error:
                errors.append(error)
        if errors:
            raise errors[0]
        return [alert.to_dict() for alert in given.values()]

    @property
    def _of_events(self) -> tuple[Target, ...]:
        return (*self.queue_disabled, *self.poison, *self.blocked, *self.stopped, *self.outage, *self.outage_over, *self.told)

    @staticmethod
    def _named(targets: Sequence[Target]) -> Iterator[tuple[str, Target]]:
        """Yield targets, each once, with names that are the same in every run."""
        named, times = list[Target](), Counter[str]()
        for target in targets:
            if not any(target is other for other in named):
                named.append(target)
                name = _name(target)
                times[name] += 1
                yield f"{name} {times[name]}", target


def _name(target: Target) -> str:
    return str(getattr(target, "__qualname__", type(target).__qualname__))


def notify_all(targets: Sequence[Target], alert: Alert, context: Mapping[str, Any], log: Log) -> None:
    """Send an alert to every target, also after one has failed; then raise the first error."""
    _notify(targets, lambda: {**context, "poison_alert": alert.to_dict()}, log)


def notify_ended(targets: Sequence[Target], ended: ConversationEnded, context: Mapping[str, Any], log: Log) -> None:
    """Call every target for a conversation that was ended here, also after one has failed; then raise the first error."""
    _notify(targets, lambda: {**context, "conversation_ended": ended.to_dict()}, log)


def _notify(targets: Sequence[Target], context: Callable[[], dict[str, Any]], log: Log) -> None:
    """Call every receiver, each with a context of its own. A notifier is copied: it renders its fields in place."""
    errors: list[Exception] = []
    for target in targets:
        try:
            _call(copy(target), context())
        except (Exception, SystemExit) as error:
            log.exception("%s could not be called.", _name(target))
            errors.append(error if isinstance(error, Exception) else AlertError(f"it called sys.exit({error})"))
    if errors:
        raise errors[0]


def _call(target: Any, context: dict[str, Any]) -> None:
    """Call a receiver in this process; one that is only asynchronous in an event loop of its own."""
    if hasattr(target, "async_notify"):
        from airflow.sdk import BaseNotifier

        if isinstance(target, BaseNotifier) and type(target).notify is BaseNotifier.notify:
            target.context = context  # type: ignore[assignment]  # how Airflow gives it to an awaited one
            asyncio.run(_wait_for(target))
            return
    answer = target(context)
    if inspect.isawaitable(answer):
        asyncio.run(_wait_for(answer))


async def _wait_for(answer: Awaitable[object]) -> None:
    await answer


def listed(setting: str, targets: Targets) -> tuple[Target, ...]:
    """Return the receivers given one by one or in a list. Raises SettingError for what cannot be called."""
    listed = () if targets is None else tuple(targets) if isinstance(targets, Sequence) else (targets,)
    for target in listed:
        if not callable(target):
            raise SettingError(
                setting, target if isinstance(targets, list | tuple) else targets, "Airflow notifiers and functions that take the context"
            )
    return listed
