"""Event notifications: a disabled queue, as a message to a service that has subscribed to it (spec SB-16, SB-17).

The messages are derived from the committed events, so a process that dies between the disabling and the message loses nothing: the next pass over
the queue, or over the subscriber's, sends it. Each is in the subscriber's queue once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from hashlib import sha256
from typing import TYPE_CHECKING
from uuid import UUID, uuid5

from airflow_poison.dialogs.acts import Envelope, Outgoing
from airflow_poison.dialogs.as_rows import arriving
from airflow_poison.dialogs.services import EVENT_NOTIFIER
from airflow_poison.passes.conversations import found_queue, service_in
from airflow_poison.passes.history import EventRange, Subscription
from airflow_poison.rules.queue_disabling import CONTRACT, MESSAGE_TYPE, QueueDisabledDocument
from airflow_poison.store.control import EVENT_NOTIFICATIONS, Control
from airflow_poison.values.errors import PoisonError, QueueHaltedError, ServiceNotFoundError, SettingError
from airflow_poison.values.events import Event, EventType
from airflow_poison.values.fault_points import reach

if TYPE_CHECKING:
    from airflow_poison.store import QueueStore
    from airflow_poison.store.queue_table import QueueTable
    from airflow_poison.values.clock import Clock

log = logging.getLogger(__name__)
_DIALOGS = UUID("5d1a7c52-9a0e-5b0c-8f6e-0c6f9a2b7e11")
"""The namespace of the conversations that the notifications are sent in."""


def create(store: QueueStore, table: QueueTable, name: str, service: str, clock: Clock) -> None:
    """Subscribe a service: CREATE EVENT NOTIFICATION name ON QUEUE table FOR BROKER_QUEUE_DISABLED TO SERVICE service. Earlier events are not sent.

    Raises ServiceNotFoundError, and SettingError for a service without the contract ``EVENT_NOTIFICATION`` or a name that another service has.
    """
    with suppress(QueueHaltedError):  # its messages wait then
        _ready(store, service)
    if not name.strip() or table.snapshot().control.event_notifications.get(name, service) != service:
        raise SettingError("name", name, f"a name that no other event notification of queue {table.name!r} has")
    _subscription(table, name, clock).begin()
    reach("pass.notification.before_record")
    _record(table, lambda known: {**known, name: service}, clock)


def drop(table: QueueTable, name: str, clock: Clock) -> None:
    """End a subscription: DROP EVENT NOTIFICATION. What it has not sent yet is not sent. Raises SettingError for a name that is none."""
    known = table.snapshot().control.event_notifications
    if name not in known:
        raise SettingError("name", name, f"an event notification of queue {table.name!r}: {', '.join(sorted(known)) or 'it has none'}")
    _record(table, lambda known: {other: service for other, service in known.items() if other != name}, clock, forget=name)


def notify(store: QueueStore, table: QueueTable, clock: Clock, told: Callable[[str, int], object] = lambda _queue, _messages: None) -> int:
    """Send what the queue's event notifications have not sent yet; return how many messages have arrived.

    They wait while their service is missing, has not the contract, or its queue is disabled (spec SB-19).

    :param told: called with each queue, and how many messages it was sent.
    """
    sent = 0
    for name, service in sorted(table.snapshot().control.event_notifications.items()):
        subscription, ended = _subscription(table, name, clock), False
        try:
            while not ended:
                with subscription.range() as events:
                    messages = [_message(table, service, f"{events.key}/{number}", event) for number, event in enumerate(events.events)]
                    if messages:
                        target = _ready(store, service)
                        reach("pass.notification.before_send")
                        sent += target.append(arriving(messages, clock.now()), _key(table, events, messages), clock.now()).messages
                        told(target.name, len(messages))
                        reach("pass.notification.after_send")
                ended = not events.repeated
        except PoisonError as error:  # no queue waits for another one to be mended
            log.warning("Event notification %r of queue %r waits: %s", name, table.name, error)
    return sent


def _ready(store: QueueStore, service: str) -> QueueTable:
    """Return the queue that takes a notification. Raises ServiceNotFoundError, SettingError, QueueHaltedError while it does not."""
    target = found_queue(store, service)
    if target is None:
        raise ServiceNotFoundError(f"There is no service {service!r} in the store. Declare it on its queue, with the contract {CONTRACT}.")
    if CONTRACT not in service_in(target, service).contracts:
        raise SettingError("service", service, f"a service with the contract {CONTRACT}: declare it with EVENT_NOTIFICATION")
    if target.snapshot().control.holds_sends:
        raise QueueHaltedError(f"Queue {target.name!r} of service {service!r} is disabled. What is for it waits until it is enabled.")
    return target


def _message(table: QueueTable, service: str, key: str, event: Event) -> Outgoing:
    """Return the message of an event: the first of a dialog of its own."""
    handle = str(uuid5(_DIALOGS, f"{table.uri}/{key}/{event.at.isoformat()}"))
    envelope = Envelope(
        conversation_id=handle,
        from_initiator=True,
        from_service=EVENT_NOTIFIER,
        to_service=service,
        contract=CONTRACT,
        group=handle,
        sequence=1,
    )
    document = event.details.get("document") or QueueDisabledDocument(queue=table.name, post_time=event.at).to_xml()
    return Outgoing(envelope, MESSAGE_TYPE, document.encode())


def _key(table: QueueTable, events: EventRange, messages: list[Outgoing]) -> str:
    """Return the key of a range: another queue that gets the name of a removed one has other dialogs."""
    dialogs = "\n".join(message.envelope.conversation_id for message in messages)
    return f"notify:{table.name}:{events.key}:{sha256(dialogs.encode()).hexdigest()[:16]}"


def _subscription(table: QueueTable, name: str, clock: Clock) -> Subscription:
    return Subscription(table, f"notification:{name}", frozenset({EventType.QUEUE_DISABLED}), clock)


def _record(table: QueueTable, changed: Callable[[Mapping[str, str]], Mapping[str, str]], clock: Clock, *, forget: str = "") -> None:
    def change(control: Control) -> Control:
        wanted = changed(control.event_notifications)
        row = control.with_counters(dict.fromkeys(_subscription(table, forget, clock).cursor.names)) if forget else control
        others = {part: value for part, value in row.desk.items() if part != EVENT_NOTIFICATIONS}
        return replace(row, desk=others | ({EVENT_NOTIFICATIONS: dict(wanted)} if wanted else {}))

    def events(before: Control, after: Control) -> list[Event]:
        old, new = before.event_notifications, after.event_notifications
        return [
            Event(EventType.POLICY_CHANGED, clock.now(), details={"event_notification": name, "created" if name in new else "dropped": service})
            for name, service in sorted((new if len(new) > len(old) else old).items())
            if (name in new) is not (name in old)
        ]

    table.alter(change, events, clock.now())
