"""Who is alerted: any Airflow notifiers, or functions that take the task's context."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from airflow_poison.core.errors import SettingError

if TYPE_CHECKING:
    from airflow_poison.core.clock import Clock
    from airflow_poison.core.passes.alerts import Alert, AlertKind
    from airflow_poison.core.store.seam import QueueTable

Target: TypeAlias = Callable[[Any], Any]
"""An Airflow notifier, or a function of the context."""

Targets: TypeAlias = Target | Sequence[Target] | None


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

    :param queue_disabled: told when the queue was halted.
    :param poison: told when messages went to poison or to another queue, were dropped or were rejected.
    :param blocked: told when a message blocked the queue, or waits at its place.
    """

    queue_disabled: tuple[Target, ...] = ()
    poison: tuple[Target, ...] = ()
    blocked: tuple[Target, ...] = ()

    @classmethod
    def of(cls, on_queue_disabled: Targets, on_poison: Targets, on_blocked: Targets = None) -> AlertTargets:
        """Return the receivers given one by one or in a list. Raises SettingError for what cannot be called."""
        return cls(listed("on_queue_disabled", on_queue_disabled), listed("on_poison", on_poison), listed("on_blocked", on_blocked))

    def __bool__(self) -> bool:
        return bool(self.queue_disabled or self.poison or self.blocked)

    def of_kind(self, kind: AlertKind) -> tuple[Target, ...]:
        """Return who is told of this kind."""
        targets: tuple[Target, ...] = getattr(self, kind.value)
        return targets

    def kinds(self) -> list[AlertKind]:
        """Return what somebody wants to be told of."""
        from airflow_poison.core.passes.alerts import AlertKind

        return [kind for kind in AlertKind if self.of_kind(kind)]

    def send(self, table: QueueTable, subscriber: str, context: Mapping[str, Any], clock: Clock, log: Log) -> list[dict[str, object]]:
        """Tell every receiver of what has happened to the queue since it was told last; return the alerts. Raises AlertError."""
        from airflow_poison.core.passes.alerts import send_alerts

        def tell(alert: Alert) -> None:
            log.warning("%s %s", alert.reason, alert.what_to_do)
            tell_all(self.of_kind(alert.kind), alert, context, log)

        return [alert.to_dict() for alert in send_alerts(table, subscriber, tell, clock, kinds=self.kinds())]


def tell_all(targets: Sequence[Target], alert: Alert, context: Mapping[str, Any], log: Log) -> None:
    """Tell every receiver, also after one has failed; then raise the first error. A notifier is copied: it renders its fields in place."""
    errors: list[Exception] = []
    for target in targets:
        try:
            copy(target)({**context, "poison_alert": alert.to_dict()})
        except Exception as error:
            log.exception("The alert could not be given to %r.", target)
            errors.append(error)
    if errors:
        raise errors[0]


def listed(setting: str, targets: Targets) -> tuple[Target, ...]:
    """Return the receivers given one by one or in a list. Raises SettingError for what cannot be called."""
    listed = () if targets is None else tuple(targets) if isinstance(targets, Sequence) else (targets,)
    for target in listed:
        if not callable(target):
            raise SettingError(setting, target, "Airflow notifiers and functions that take the context")
    return listed
