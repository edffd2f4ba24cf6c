"""Halted endpoints: the texts about a disabled, stopped or faulted one; the events and the row that record it (spec SB-15).

An endpoint is what reads a sub-queue: ``main``, or ``poison`` where the system has a reader for it. What a pass or an inspection knows of a halt is a
``HaltRecord``; what a reader of the queue sees of it, and may decide about, is a ``HaltedEndpoint``.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Self, assert_never
from uuid import UUID, uuid5

from airflow_poison.delivery.stage import HaltRecord
from airflow_poison.dialogs.acts import Envelope, Outgoing
from airflow_poison.dialogs.as_rows import arriving
from airflow_poison.dialogs.services import EVENT_NOTIFIER
from airflow_poison.passes.conversations import found_queue, service_in
from airflow_poison.passes.history import Subscription
from airflow_poison.rules.decisions import HALT_EVENTS, HALTS, Halted
from airflow_poison.rules.queue_disabling import CONTRACT, MESSAGE_TYPE, REMOVAL, QueueDisabledDocument
from airflow_poison.rules.settings import choice
from airflow_poison.store.control import HALTED_BY, POISON_HALTED_BY, QueueState
from airflow_poison.values.errors import PoisonError, QueueHaltedError, ServiceNotFoundError, SettingError
from airflow_poison.values.events import Event, EventType
from airflow_poison.values.fault_points import reach
from airflow_poison.values.schema import SubQueue, place_name
from airflow_poison.values.texts import Plain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from airflow_poison.passes.history import EventRange
    from airflow_poison.store import QueueStore
    from airflow_poison.store.control import Control
    from airflow_poison.store.files import Snapshot
    from airflow_poison.store.queue_table import QueueTable
    from airflow_poison.values.clock import Clock

log = logging.getLogger(__name__)
PART = "event_notifications"
"""Of the queue's recorded settings: the subscribed services, by the notifications' names."""
_DIALOGS = UUID("5d1a7c52-9a0e-5b0c-8f6e-0c6f9a2b7e11")
"""The namespace of the conversations that the notifications are sent in."""


def notifications(control: Control) -> Mapping[str, str]:
    """Return the services that a queue's event notifications go to, by name."""
    recorded: Any = control.desk.get(PART) or {}
    return {str(name): str(service) for name, service in recorded.items()}


def create(store: QueueStore, table: QueueTable, name: str, service: str, clock: Clock) -> None:
    """Subscribe a service: CREATE EVENT NOTIFICATION name ON QUEUE table FOR BROKER_QUEUE_DISABLED TO SERVICE service. Earlier events are not sent.

    Raises ServiceNotFoundError, and SettingError for a service without the contract ``EVENT_NOTIFICATION`` or a name that another service has.
    """
    with suppress(QueueHaltedError):  # its messages wait then
        _ready(store, service)
    if not name.strip() or notifications(table.snapshot().control).get(name, service) != service:
        raise SettingError("name", name, f"a name that no other event notification of queue {table.name!r} has")
    _subscription(table, name, clock).begin()
    reach("pass.notification.before_record")
    _record(table, lambda known: {**known, name: service}, clock)


def drop(table: QueueTable, name: str, clock: Clock) -> None:
    """End a subscription: DROP EVENT NOTIFICATION. What it has not sent yet is not sent. Raises SettingError for a name that is none."""
    known = notifications(table.snapshot().control)
    if name not in known:
        raise SettingError("name", name, f"an event notification of queue {table.name!r}: {', '.join(sorted(known)) or 'it has none'}")
    _record(table, lambda known: {other: service for other, service in known.items() if other != name}, clock, forget=name)


def notify(store: QueueStore, table: QueueTable, clock: Clock, told: Callable[[str, int], object] = lambda _queue, _messages: None) -> int:
    """Send what the queue's event notifications have not sent yet; return how many messages have arrived.

    They wait while their service is missing, has not the contract, or its queue is disabled (spec SB-19).

    :param told: called with each queue, and how many messages it was sent.
    """
    sent = 0
    for name, service in sorted(notifications(table.snapshot().control).items()):
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
        wanted = changed(notifications(control))
        row = control.with_counters(dict.fromkeys(_subscription(table, forget, clock).cursor.names)) if forget else control
        others = {part: value for part, value in row.desk.items() if part != PART}
        return replace(row, desk=others | ({PART: dict(wanted)} if wanted else {}))

    def events(before: Control, after: Control) -> list[Event]:
        old, new = notifications(before), notifications(after)
        return [
            Event(EventType.POLICY_CHANGED, clock.now(), details={"event_notification": name, "created" if name in new else "dropped": service})
            for name, service in sorted((new if len(new) > len(old) else old).items())
            if (name in new) is not (name in old)
        ]

    table.alter(change, events, clock.now())


ENDPOINTS = (SubQueue.MAIN, SubQueue.POISON)
"""The sub-queues that an endpoint can read."""
Endpoints = StrEnum("Endpoints", ["MAIN", "POISON", "ANY"])
"""An endpoint of a queue: ``main``, the reader of the poison sub-queue, or any of the two."""
SUSPECTS: Mapping[SubQueue, str] = {SubQueue.MAIN: HALTED_BY, SubQueue.POISON: POISON_HALTED_BY}
"""The counter of the control row that names an endpoint's suspect."""
STARTED: Mapping[QueueState, EventType] = {
    QueueState.DISABLED: EventType.QUEUE_ENABLED,
    QueueState.STOPPED: EventType.STARTED,
    QueueState.FAULTED: EventType.STARTED,
}
"""The event of an endpoint that receives again, by the state that it was in."""
STARTS = frozenset(STARTED.values())
LONGEST_REASON = 500
WHEN_ENABLED = (
    "The next run of its receive task receives what is left; clear the failed task only to have that at once, or to let later tasks of its run go on."
)
"""What the run that has failed over a halted queue needs when that is enabled: a pass is committed before its task fails."""
_EXHAUSTED = "its delivery attempts are exhausted"
_FORGETS = "Msmq3"
"""The system whose listener gives a message fresh attempts when it is opened again (spec M3-10)."""


# What records a halt ---------------------------------------------------------------------------------------------------


def halt_event(halt: HaltRecord, endpoint: str, system: str) -> Event:
    """Return the endpoint's own event, one for each halt, whatever the number of tasks that met it.

    :param endpoint: ``orders``, or ``orders;poison``.
    """
    facts = {"place": "", "endpoint": endpoint, "system": system} | ({"error": halt["error"]} if halt["error"] else {}) | halt["details"]
    at = datetime.fromisoformat(halt["at"])
    return Event(HALT_EVENTS[Halted(halt["how"])], at, halt["lookup_id"], halt["abort_count"], halt["move_count"], facts)


def halt_of(event: Event) -> HaltRecord:
    """Return the halt that an event of ``HALTS`` records."""
    return HaltRecord(
        lookup_id=event.lookup_id,
        how=HALTS[event.type].value,
        error=event.details.get("error", ""),
        at=event.at.isoformat(),
        abort_count=event.abort_count,
        move_count=event.move_count,
        details=dict(event.details),
    )


def halted_row(control: Control, reads: SubQueue, halt: HaltRecord, endpoint: str) -> Control:
    """Return the control row of a queue whose endpoint has halted."""
    cause = f"message {halt['lookup_id']} of queue {endpoint!r} halted it" if halt["lookup_id"] is not None else "it was halted"
    reason = f"{cause}: {halt['error'] or halt['details'].get('text') or _EXHAUSTED}"
    return control.halted(reads, QueueState(halt["how"]), reason[:LONGEST_REASON], halt["lookup_id"])


# What is seen of it ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HaltedEndpoint(Plain):
    """A halt, as it was read.

    :param sub_queue: what the endpoint reads: ``main`` or ``poison``.
    :param state: ``disabled``, ``stopped`` or ``faulted``.
    :param lookup_id: the suspect: the message that halted it; None: no single one.
    :param version: of the queue, when it was seen.
    """

    queue: str
    sub_queue: SubQueue
    state: QueueState
    reason: str
    lookup_id: int | None
    version: int = -1

    @property
    def name(self) -> str:
        """The endpoint, as people write it: ``orders`` or ``orders;poison``."""
        return place_name(self.queue, self.sub_queue)

    @property
    def identity(self) -> tuple[str, str, str, int | None]:
        """The identity of this halt, without the time when it was read."""
        return self.sub_queue.value, self.state.value, self.reason, self.lookup_id

    def holds(self, control: Control) -> bool:
        """Whether the endpoint is still halted in this way."""
        state, reason = control.endpoint(self.sub_queue)
        return (state, reason, control.counters.get(SUSPECTS[self.sub_queue])) == (self.state, self.reason, self.lookup_id)

    @classmethod
    def from_dict(cls, told: Mapping[str, Any]) -> Self:
        """Return the halt of its plain values."""
        number = told["lookup_id"]
        place, state = SubQueue(told["sub_queue"]), QueueState(told["state"])
        return cls(told["queue"], place, state, told["reason"], None if number is None else int(number), int(told["version"]))


def halted_endpoints(queue: str, snapshot: Snapshot, which: Endpoints = Endpoints.ANY) -> Iterator[HaltedEndpoint]:
    """Yield how the endpoints of a queue are halted, ``main`` first."""
    control = snapshot.control
    for place in ENDPOINTS if which is Endpoints.ANY else (SubQueue(which.value),):
        state, reason = control.endpoint(place)
        if state is not QueueState.ENABLED:
            yield HaltedEndpoint(queue, place, state, reason, control.counters.get(SUSPECTS[place]), snapshot.version)


def halted_endpoint(table: QueueTable, which: Endpoints | str = Endpoints.ANY) -> HaltedEndpoint | None:
    """Return how an endpoint is halted; None when it receives. Of both, the one that reads ``main`` comes first. Raises SettingError."""
    return next(halted_endpoints(table.name, table.snapshot(), choice("sub_queue", which, Endpoints)), None)


# Texts for people --------------------------------------------------------------------------------------------------


def what_halted(halt: HaltRecord, endpoint: str) -> str:
    """Say which message halted an endpoint and why, one line."""
    lookup_id, how = halt["lookup_id"], halt["how"]
    if lookup_id is None:
        happened = f"Queue {endpoint!r} was halted ({how}) after a commit."
        if leader := halt["details"].get("transaction"):
            happened = f"Queue {endpoint!r} was halted ({how}) with queue {leader!r}: a transaction received from both."
    else:
        happened = f"Message {lookup_id} of queue {endpoint!r} halted it ({how}): {(halt['error'] or _EXHAUSTED).rstrip('.')}."
    return " ".join([happened, *(f"{said.rstrip('.')}." for said in _said(halt["details"]))])


def what_to_do_when_halted(halt: HaltRecord, queue: str, system: str = "") -> str:
    """Say what to do about a halted endpoint, one line.

    :param system: the policy's, where it is known.
    """
    how, lookup_id = Halted(halt["how"]), halt["lookup_id"]
    enable = f"enable the queue with QueueHook().enable({queue!r})"
    out = f"take the message out with QueueHook().remove({queue!r}, {lookup_id})"
    steps: tuple[str, ...]
    if (handle := halt["details"].get("conversation")) and lookup_id is not None:
        out = f"end its conversation with {ending_of(queue, handle)}"
    match how:
        case Halted.DISABLED:
            steps = (f"look at it with QueueHook().inspect({queue!r}, mode='browse')", f"mend the cause or {out}")
            then = "Until then nothing is received, and what is sent to the queue waits."
            if partner := halt["details"].get("partner"):
                then += f" Do not remove the message alone: service {partner!r} would wait for its answer for good."
        case Halted.STOPPED:
            steps, then = (f"mend the cause or {out}",), "It begins at the top of the queue; nothing is received until then."
        case Halted.FAULTED if system == _FORGETS:
            steps, then = (f"mend the cause or {out}",), "The message has fresh attempts then; nothing is received until then."
        case Halted.FAULTED:
            steps, then = (f"{out} (its attempts are used up, it would halt the queue again)",), "Nothing is received until then."
        case _:
            assert_never(how)
    return f"To go on, {', then '.join((*(steps if lookup_id is not None else ()), enable))}. {then} {WHEN_ENABLED}"


def ending_of(queue: str, handle: str) -> str:
    """Return the call, and the command, that end the conversation of a poison message as people do (spec SB-26)."""
    said = f"{REMOVAL.error}, description={REMOVAL.description!r}"
    return (
        f"ConversationHook().end_conversation({queue!r}, {handle!r}, error={said}, key='poison'), or "
        f"airflow poison end-conversation {queue} {handle} --error {REMOVAL.error} --description '{REMOVAL.description}'"
    )


def _said(facts: Mapping[str, str]) -> list[str]:
    """Return what the facts say beyond the error, in sentences without their full stops."""
    said = []
    if rollbacks := facts.get("rollbacks"):
        said.append(f"{rollbacks} receives in a row were rolled back")
    if text := facts.get("text"):
        said.append(f"{facts['code']}: {text}" if "code" in facts else text)
    return [*said, *(facts[name] for name in ("reason", "warning") if facts.get(name))]
