"""Alerts: what people are told about a queue, made from its recorded events after the commit that recorded them."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from airflow_poison.core.conversations.arrivals import BY_CONVERSATION
from airflow_poison.core.errors import AlertError
from airflow_poison.core.events import EventType
from airflow_poison.core.fault_points import reach
from airflow_poison.core.passes.alert_texts import HALTS, reason, what_to_do
from airflow_poison.core.passes.conversations.acts import ENDED
from airflow_poison.core.passes.keys import run_key
from airflow_poison.core.passes.remove import BY_HAND
from airflow_poison.core.passes.subscription import Subscription

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from airflow_poison.core.clock import Clock
    from airflow_poison.core.events import Event
    from airflow_poison.core.store.queue_table import QueueTable

NAMED = 20
UNTOLD = frozenset({BY_HAND, ENDED, BY_CONVERSATION})
"""What an event says in ``by`` that nobody is alerted of: who did it knows, or it is how every dialog ends."""


class AlertKind(StrEnum):
    """What people can be alerted of."""

    QUEUE_DISABLED = "queue_disabled"  # the endpoint is disabled, stopped or faulted: nothing goes on until somebody acts
    POISON = "poison"  # messages went to poison or to another queue, or were dropped or rejected
    BLOCKED = "blocked"  # messages wait at their place, and perhaps the whole queue with them: it goes on by itself, or after a restart
    BACKLOG = "backlog"  # what waits has become too old; no event of the queue makes it, see ``backlog``


EVENTS: Mapping[EventType, AlertKind] = {
    **dict.fromkeys(HALTS, AlertKind.QUEUE_DISABLED),
    EventType.MOVED_POISON: AlertKind.POISON,
    EventType.DROPPED: AlertKind.POISON,
    EventType.REJECTED: AlertKind.POISON,
    EventType.DEAD_LETTERED: AlertKind.POISON,
    EventType.REQUEUED: AlertKind.POISON,
    EventType.EXCEPTIONED: AlertKind.POISON,
    EventType.BLOCKED: AlertKind.BLOCKED,
}


@dataclass(frozen=True, slots=True)
class Alert:
    """One alert.

    :param key: the same when the alert is repeated; a receiver drops keys that it has seen.
    :param event: the event's name (spec 0.3), or ``BACKLOG_TOO_OLD``.
    :param lookup_ids: the messages, at most 20; ``count`` is how many there are.
    :param reason: what happened, one line.
    :param what_to_do: the next step, one line.
    :param details: what is recorded of the event, as text; where the alert is about several events, of the first one. For example
        ``document``, the event document of a disabled queue (spec SB-17), ``warning`` (CWSIP0291), or the exception properties
        (``JMS_IBM_ExceptionReason``, spec DMP-18).
    """

    key: str
    kind: AlertKind
    queue: str
    event: str
    lookup_ids: tuple[int, ...]
    count: int
    reason: str
    what_to_do: str
    details: Mapping[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, object]:
        """Return plain values."""
        return asdict(self) | {"kind": self.kind.value, "lookup_ids": list(self.lookup_ids)}


def send_alerts(
    table: QueueTable, subscriber: str, tell: Callable[[Alert], None], clock: Clock, *, kinds: Iterable[AlertKind] = tuple(AlertKind)
) -> list[Alert]:
    """Tell of what has happened to the queue since the subscriber was told last; return what was told.

    :param subscriber: who is told, the same name in every run; a new one is told of all that the queue has recorded, unless it has begun before.
    :param tell: called once for each alert; after an error the other alerts are told all the same.
    Raises AlertError when an alert failed: all of this range are told again next time, with the same keys.
    """
    subscription, told, ended = alert_subscription(table, subscriber, clock, kinds), list[Alert](), False
    while not ended:  # behind a range that a dead run has left lies what has happened since
        alerts, ended = _tell_range(subscription, tell)
        told += alerts
    return told


def _tell_range(subscription: Subscription, tell: Callable[[Alert], None]) -> tuple[list[Alert], bool]:
    """Tell of one range; return its alerts, and whether it was the last."""
    table, failed = subscription.table, list[str]()
    with subscription.range() as told:
        alerts = _alerts(table, told.key, told.events)
        for alert in alerts:
            try:
                tell(alert)
            except Exception as error:  # noqa: BLE001  (any notifier's error; the others must still hear of it)
                failed.append(f"{alert.event} ({type(error).__name__}: {error})")
            reach("pass.alert.after_one")
        if failed:
            raise AlertError(
                f"{len(failed)} of {len(alerts)} alerts of queue {table.name!r} failed: {'; '.join(failed)}. What the passes did is committed. "
                "Mend the notifier and run the task again: the alerts are repeated with the same keys."
            )
    return alerts, not told.repeated


def alert_subscription(table: QueueTable, subscriber: str, clock: Clock, kinds: Iterable[AlertKind] = tuple(AlertKind)) -> Subscription:
    """Return the subscription behind a subscriber's alerts."""
    wanted = set(kinds)
    return Subscription(table, f"alert:{subscriber}", frozenset(event for event, kind in EVENTS.items() if kind in wanted), clock)


@dataclass(slots=True)
class _Told:
    """The events of one alert."""

    first: Event
    count: int = 0
    lookup_ids: list[int] = field(default_factory=list)

    def add(self, event: Event) -> None:
        self.count += 1
        if event.lookup_id is not None and len(self.lookup_ids) < NAMED:
            self.lookup_ids.append(event.lookup_id)


def _alerts(table: QueueTable, range_key: str, events: Iterable[Event]) -> list[Alert]:
    """Return one alert for each halt, and one for each other type of event."""
    told: dict[str, _Told] = {}
    halts = 0
    for event in events:
        if event.details.get("by") in UNTOLD:
            continue
        name = event.type.value
        if event.type in HALTS:
            halts += 1
            name = f"{name}-{halts}"
        told.setdefault(name, _Told(event)).add(event)
    return [_alert(table, run_key(table.uri, range_key, name), about) for name, about in told.items()]


def _alert(table: QueueTable, key: str, told: _Told) -> Alert:
    event, queue = told.first, table.name
    details = {name: fact for name, fact in event.details.items() if fact}
    return Alert(
        key=key,
        kind=EVENTS[event.type],
        queue=queue,
        event=event.type.value,
        lookup_ids=tuple(told.lookup_ids),
        count=told.count,
        reason=reason(queue, event, told.count),
        what_to_do=what_to_do(queue, event),
        details=details,
    )
