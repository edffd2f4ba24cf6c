"""Verbs of conversations outside a receive pass, each in one commit: begin, send, end, set a timer.

Event notifications: a disabled queue, as a message to a service that has subscribed to it (spec SB-16, SB-17).

The messages are derived from the committed events, so a process that dies between the disabling and the message loses nothing: the next pass over
the queue, or over the subscriber's, sends it. Each is in the subscriber's queue once.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from hashlib import sha256
from typing import TYPE_CHECKING, TypeVar
from uuid import UUID, uuid5

import pyarrow as pa
import pyarrow.compute as pc

from airflow_poison.dialogs import acts, arrivals
from airflow_poison.dialogs.acts import Change, ConversationEndpoint, Dialog, Envelope, Outgoing
from airflow_poison.dialogs.as_rows import arriving, endpoints_to_table, messages_to_table
from airflow_poison.dialogs.services import EVENT_NOTIFIER
from airflow_poison.dialogs.transaction import is_for_partner
from airflow_poison.passes import conversations
from airflow_poison.passes.conversations import found_queue, service_in
from airflow_poison.passes.history import ENDED, EventRange, Subscription
from airflow_poison.passes.messages import Chosen, find
from airflow_poison.passes.runs import check_key
from airflow_poison.rules.queue_disabling import CONTRACT, MESSAGE_TYPE, QueueDisabledDocument
from airflow_poison.store.control import EVENT_NOTIFICATIONS, Control
from airflow_poison.store.files import Replacement, Snapshot, Transaction
from airflow_poison.values.errors import ConversationLockedError, InputError, PoisonError, QueueHaltedError, ServiceNotFoundError, SettingError
from airflow_poison.values.events import Event, EventType
from airflow_poison.values.fault_points import reach
from airflow_poison.values.json_values import utf8
from airflow_poison.values.schema import MAX_BODY_BYTES
from airflow_poison.values.texts import Plain

if TYPE_CHECKING:
    from airflow_poison.dialogs.services import Contract
    from airflow_poison.store import QueueStore
    from airflow_poison.store.control import Control
    from airflow_poison.store.queue_table import QueueTable
    from airflow_poison.values.clock import Clock

log = logging.getLogger(__name__)


T = TypeVar("T")
_BEGUN = UUID("a3f1d2e0-5c34-5e0e-8a54-5d1d3c1c7b11")
"""The namespace of conversations that are begun under a key."""
CONVERSATION = "conversation"
"""Where such an event says which: its handle."""
_POLL_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class ActResult(Plain):
    """What was done.

    :param conversations: their handles at this side, in the order in which they were given.
    :param sent: messages that are on their way to the partner.
    :param removed: messages that went with the conversation (spec SB-30).
    :param arrived: messages of this side that have been put into the queues of partners since, also from earlier acts.
    :param waiting: messages of this side that stay until a disabled queue is enabled (spec SB-19).
    :param repeated: an earlier call with this key had done it; nothing was done now.
    """

    queue: str
    conversations: tuple[str, ...]
    sent: int = 0
    removed: int = 0
    repeated: bool = False
    states: tuple[str, ...] = field(default=())
    arrived: int = 0
    waiting: int = 0


def begin_dialogs(
    table: QueueTable, *, service: str, far_service: str, contract: str, dialogs: Sequence[Dialog], key: str, clock: Clock
) -> ActResult:
    """Begin dialogs and send their first messages, all in one commit (spec SB-36, SB-48, SB-57). They leave with ``transmit``.

    :param table: the queue of the service that begins them.
    :param far_service: the partner; that it is there is found out when the messages leave: an Error message comes back otherwise (-8490).
    :param key: a second call with the same key begins nothing, and returns the handles of the first call.
    Raises ServiceNotFoundError for a service that the queue has not, SettingError and InputError for what may not be sent.
    """
    agreed = _contract(table, service, contract)
    handles = tuple(str(uuid5(_BEGUN, f"{table.name}/{check_key(key)}/{number}")) for number in range(len(dialogs)))
    now = clock.now()
    changes = [
        _begun(handle, dialog, agreed, clock, service=service, far_service=far_service) for handle, dialog in zip(handles, dialogs, strict=True)
    ]
    sent = sum(map(_sent_by, changes))

    def plan(snapshot: Snapshot) -> Transaction:
        for group in {dialog.group_id for dialog in dialogs} - {None}:
            refuse_locked(table, snapshot, f"Conversation group {group!r}")
        return Transaction(_rows(changes, clock))

    done = table.transact(plan, f"begin:{key}", now) if dialogs else True
    reach("pass.begin.after_commit")
    if not done:
        return _begun_before(table, handles)
    return ActResult(table.name, handles, sent, states=tuple(change.endpoint.state.value for change in changes))


def send_on(
    table: QueueTable, handle: str, messages: Sequence[tuple[str, bytes]], *, key: str, clock: Clock, wait: timedelta = timedelta(0)
) -> ActResult:
    """Send on a conversation, once for each key. They leave with ``transmit``.

    :param key: identifies this call among others on the same conversation.
    Raises ConversationNotFoundError (8426), ConversationSendError (8429), ConversationLockedError, SettingError and InputError; nothing was sent
    then.
    """

    def act(endpoint: ConversationEndpoint) -> Change:
        return _sent(endpoint, messages, _contract(table, endpoint.service, endpoint.contract))

    return _act(table, handle, act, f"send:{check_key(key)}", clock, wait)


def set_timer(table: QueueTable, handle: str, timeout: timedelta, *, key: str, clock: Clock, wait: timedelta = timedelta(0)) -> ActResult:
    """Set the conversation timer of this side, or start it again (spec SB-45, SB-56), once for each key.

    Raises ConversationNotFoundError (8426), ConversationTimerError (8458), ConversationLockedError, SettingError.
    """
    return _act(table, handle, lambda endpoint: acts.set_timer(endpoint, timeout, clock.now()), f"timer-set:{check_key(key)}", clock, wait)


def end_conversation(
    table: QueueTable,
    handle: str,
    *,
    error: int | None = None,
    description: str = "",
    cleanup: bool = False,
    key: str,
    clock: Clock,
    wait: timedelta = timedelta(0),
    allowed: Callable[[Control], object] = lambda _control: None,
) -> ActResult:
    """End this side of a conversation, whether or not the queue is enabled (spec SB-21, SB-26, SB-54). All its messages go (spec SB-30).

    The local application gets no message: it must remove its state for the conversation itself (spec SB-31).

    :param error: the error code that the partner gets; None: the conversation ends without an error.
    :param cleanup: remove everything here without a message to the partner.
    :param allowed: looks at the control row that the commit builds upon; what it raises prevents the commit.
    Raises ConversationNotFoundError (8426), ConversationEndedError (8427), ConversationLockedError, SettingError; then nothing has changed.
    """
    act = ending(error=error, description=description, cleanup=cleanup)
    return _act(table, handle, act, f"end:{check_key(key)}", clock, wait, removes=True, allowed=allowed)


# Parts ----------------------------------------------------------------------------------------------------------------


def ending(*, error: int | None, description: str, cleanup: bool) -> Callable[[ConversationEndpoint], Change]:
    """Return the act that ends this side of a conversation. Raises SettingError."""
    if cleanup and (error is not None or description):
        raise SettingError("cleanup", cleanup, "without an error: the partner gets no error")

    def act(endpoint: ConversationEndpoint) -> Change:
        return acts.end_with_cleanup(endpoint) if cleanup else acts.end(endpoint, error=error, description=description)

    return act


def _act(  # noqa: PLR0917  (its own parts)
    table: QueueTable,
    handle: str,
    act: Callable[[ConversationEndpoint], Change],
    key: str,
    clock: Clock,
    wait: timedelta,
    *,
    removes: bool = False,
    allowed: Callable[[Control], object] = lambda _control: None,
) -> ActResult:
    changed: list[tuple[Change, int]] = []

    def plan(snapshot: Snapshot) -> Transaction:
        allowed(snapshot.control)
        refuse_locked(table, snapshot, f"Conversation {handle!r}")
        change = act(conversations.endpoint(table, snapshot, handle, clock.now()))
        replacements, events = _without(table, snapshot, handle, clock) if removes else ([], [])
        changed[:] = [(change, sum(replacement.removed for replacement in replacements))]
        return Transaction(_rows([change], clock), replacements=tuple(replacements), events=tuple(events), alone=True)

    done = _patiently(lambda: table.transact(plan, f"{key}:{handle}", clock.now()), wait)
    reach("pass.act.after_commit")
    if not done:
        return ActResult(table.name, (handle,), repeated=True)
    change, removed = changed[0]
    return ActResult(table.name, (handle,), _sent_by(change), removed, states=(change.endpoint.state.value,))


def _sent_by(change: Change) -> int:
    """Return how many messages the partner's application gets."""
    return sum(map(is_for_partner, change.sent))


def _patiently(act: Callable[[], T], wait: timedelta) -> T:
    until = time.monotonic() + wait.total_seconds()
    while True:
        try:
            return act()
        except ConversationLockedError:
            if time.monotonic() >= until:
                raise
            time.sleep(_POLL_SECONDS)


def refuse_locked(table: QueueTable, snapshot: Snapshot, what: str) -> None:
    """Raise ConversationLockedError while a pass has claimed messages of the queue: it holds the locks of its groups (spec SB-47, SB-53)."""
    if snapshot.claims:
        raise ConversationLockedError(
            f"{what} of queue {table.name!r} is locked: pass {snapshot.claims[0].key} is receiving from the queue. "
            "Try again when it has ended, or give a time to wait. Nothing has changed."
        )


def _without(table: QueueTable, snapshot: Snapshot, handle: str, clock: Clock) -> tuple[list[Replacement], list[Event]]:
    chosen, now = Chosen(conversation_id=handle), clock.now()
    replacements, events = list[Replacement](), list[Event]()
    for holder in find(table, snapshot, chosen):
        rows = table.read(holder.file)
        kept = rows.filter(pc.invert(chosen.mask(rows)))
        replacements.append(Replacement(holder.file, kept, removed=rows.num_rows - kept.num_rows))
        events += (
            Event(EventType.DROPPED, now, lookup_id, details={"place": "", "by": ENDED, CONVERSATION: handle})
            for lookup_id in sorted(holder.lookup_ids)
        )
    return replacements, events


def _contract(table: QueueTable, service: str, contract: str) -> Contract:
    contracts = service_in(table, service).contracts
    if contract not in contracts:
        raise SettingError("contract", contract, f"a contract of service {service!r}: {', '.join(sorted(contracts)) or 'it has none'}")
    return contracts[contract]


def _begun(handle: str, dialog: Dialog, contract: Contract, clock: Clock, *, service: str, far_service: str) -> Change:
    endpoint = acts.begin(handle, dialog, service=service, far_service=far_service, contract=contract.name, now=clock.now())
    change = _sent(endpoint, dialog.messages, contract)
    if dialog.timer is None:
        return change
    return Change(acts.set_timer(change.endpoint, dialog.timer, clock.now()).endpoint, change.sent)


def _begun_before(table: QueueTable, handles: Sequence[str]) -> ActResult:
    """Return what an earlier call has begun, which may have been asked for fewer dialogs, and how they stand."""
    snapshot = table.snapshot()
    known, types = conversations.stored(table, snapshot, handles), conversations.waiting(table, snapshot, handles)
    begun = tuple(handle for handle in handles if handle in known)
    states = tuple(arrivals.arrived(known[handle], types.get(handle, ())).state.value for handle in begun)
    return ActResult(table.name, begun, repeated=True, states=states)


def _sent(endpoint: ConversationEndpoint, messages: Sequence[tuple[str, bytes]], contract: Contract) -> Change:
    if not messages:
        raise InputError("There is no message to send: give at least one, as (message type, body).")
    sent = list[Outgoing]()
    for number, message in enumerate(messages):
        match message:
            case (str() as message_type, given):
                pass
            case _:
                raise InputError(f"messages[{number}] is {message!r:.100}; expected (message type, body). Nothing was sent.")
        body = utf8(given, f"messages[{number}], a {message_type!r}")
        if len(body) > MAX_BODY_BYTES:
            raise InputError(f"A message body has {len(body)} bytes; at most {MAX_BODY_BYTES} are allowed. Nothing was sent.")
        change = acts.send(endpoint, message_type, body, contract)
        endpoint = change.endpoint
        sent += change.sent
    return Change(endpoint, tuple(sent))


def _rows(changes: Sequence[Change], clock: Clock) -> pa.Table:
    messages = messages_to_table((message for change in changes for message in change.sent), clock.now())
    return pa.concat_tables([endpoints_to_table(change.endpoint for change in changes), messages])


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


def notify(store: QueueStore, table: QueueTable, clock: Clock, on_sent: Callable[[str, int], object] = lambda _queue, _messages: None) -> int:
    """Send what the queue's event notifications have not sent yet; return how many messages have arrived.

    They wait while their service is missing, has not the contract, or its queue is disabled (spec SB-19).

    :param on_sent: called with each queue, and how many messages it was sent.
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
                        on_sent(target.name, len(messages))
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

    table.alter(change, events)
