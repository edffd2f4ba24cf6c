"""Alerts: what people are told about a queue, made from its recorded events after the commit that recorded them."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from airflow_poison.core.errors import AlertError
from airflow_poison.core.events import EventType
from airflow_poison.core.passes.alter import ENDPOINTS
from airflow_poison.core.passes.keys import run_key
from airflow_poison.core.passes.remove import BY_HAND
from airflow_poison.core.passes.subscription import Subscription

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from airflow_poison.core.clock import Clock
    from airflow_poison.core.events import Event
    from airflow_poison.core.store.seam import QueueTable

NAMED = 20


class AlertKind(StrEnum):
    """What people can be alerted of."""

    QUEUE_DISABLED = "queue_disabled"  # the endpoint is disabled, stopped or faulted
    POISON = "poison"  # messages went to poison, or were dropped or rejected


EVENTS: Mapping[EventType, AlertKind] = {
    EventType.QUEUE_DISABLED: AlertKind.QUEUE_DISABLED,
    EventType.STOPPED: AlertKind.QUEUE_DISABLED,
    EventType.FAULTED: AlertKind.QUEUE_DISABLED,
    EventType.MOVED_POISON: AlertKind.POISON,
    EventType.DROPPED: AlertKind.POISON,
    EventType.REJECTED: AlertKind.POISON,
    EventType.DEAD_LETTERED: AlertKind.POISON,
}


@dataclass(frozen=True, slots=True)
class Alert:
    """One alert.

    :param key: the same when the alert is repeated; a receiver drops keys that it has seen.
    :param event: the event's name (spec 0.3).
    :param lookup_ids: the messages, at most 20; ``count`` is how many there are.
    :param reason: what happened, one line.
    :param what_to_do: the next step, one line.
    """

    key: str
    kind: AlertKind
    queue: str
    event: str
    lookup_ids: tuple[int, ...]
    count: int
    reason: str
    what_to_do: str

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
    failed: list[str] = []
    with alert_subscription(table, subscriber, clock, kinds).range() as told:
        alerts = _alerts(table, told.key, told.events)
        for alert in alerts:
            try:
                tell(alert)
            except Exception as error:  # noqa: BLE001  (any notifier's error; the others must still hear of it)
                failed.append(f"{alert.event} ({type(error).__name__}: {error})")
        if failed:
            raise AlertError(
                f"{len(failed)} of {len(alerts)} alerts of queue {table.name!r} failed: {'; '.join(failed)}. What the passes did is committed. "
                "Mend the notifier and run the task again: the alerts are repeated with the same keys."
            )
    return alerts


def alert_subscription(table: QueueTable, subscriber: str, clock: Clock, kinds: Iterable[AlertKind] = tuple(AlertKind)) -> Subscription:
    """Return the subscription behind a subscriber's alerts."""
    wanted = set(kinds)
    return Subscription(table, f"alert:{subscriber}", frozenset(event for event, kind in EVENTS.items() if kind in wanted), clock)


def _alerts(table: QueueTable, range_key: str, events: Iterable[Event]) -> list[Alert]:
    """Return one alert for each type of event."""
    counts: Counter[EventType] = Counter()
    ids: dict[EventType, list[int]] = {}
    for event in events:
        if event.details.get("by") == BY_HAND:
            continue
        counts[event.type] += 1
        named = ids.setdefault(event.type, [])
        if event.lookup_id is not None and len(named) < NAMED:
            named.append(event.lookup_id)
    return [_alert(table, range_key, event, tuple(ids[event]), count) for event, count in counts.items()]


def _alert(table: QueueTable, range_key: str, event: EventType, lookup_ids: tuple[int, ...], count: int) -> Alert:
    kind, queue = EVENTS[event], table.name
    if kind is AlertKind.QUEUE_DISABLED:
        endpoints = [table.snapshot().control.endpoint(reads) for reads in ENDPOINTS]
        reasons = [f"Queue {queue!r} is {state.value}: {reason}" for state, reason in endpoints if reason]
        reason = "; ".join(reasons) or f"Queue {queue!r} was halted."
    else:
        reason = f"{count:,} {'message' if count == 1 else 'messages'} of queue {queue!r}: {_BECAME[event]}."
    return Alert(run_key(table.uri, range_key, event), kind, queue, event.value, lookup_ids, count, reason, what_to_do(event, queue, lookup_ids))


_BECAME: Mapping[EventType, str] = {
    EventType.MOVED_POISON: "moved to the poison sub-queue",
    EventType.DROPPED: "dropped",
    EventType.REJECTED: "rejected to the sender's dead-letter queue",
    EventType.DEAD_LETTERED: "moved to the dead-letter queue",
}


def what_to_do(event: EventType, queue: str, lookup_ids: tuple[int, ...]) -> str:
    """Return the next step after an event, one line."""
    match event:
        case EventType.MOVED_POISON:
            return f"Mend the cause, then put them back for one more cycle: QueueHook().put_back({queue!r})."
        case EventType.DROPPED:
            return "They are gone from the queue; only their sender can send them again."
        case EventType.REJECTED | EventType.DEAD_LETTERED:
            return f"Look at queue '{queue}.dead-letter', or the one that the sender named."
        case _:
            return halted_what_to_do(queue, lookup_ids[0] if lookup_ids else None)


def halted_what_to_do(queue: str, lookup_id: object) -> str:
    """Return what to do about a halted queue, one line."""
    enable = f"enable the queue with QueueHook().enable({queue!r}); nothing is received until then"
    if lookup_id is None:
        return f"To go on, {enable}."
    remove = f"take the message out with QueueHook().remove({queue!r}, {lookup_id})"
    return f"To go on, {remove} (its attempts are used up, it would halt the queue again), then {enable}."
