"""Conversations of a queue: endpoints as they are stored, what has arrived for them and waits, both as people and tasks get them, and services."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime
from functools import cache, partial
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from airflow_poison.dialogs import arrivals
from airflow_poison.dialogs.acts import SENDS, ConversationEndpoint, ConversationState, Envelope, target_handle
from airflow_poison.dialogs.as_rows import MESSAGE_COLUMNS, table_to_endpoints, table_to_messages, validation_of
from airflow_poison.dialogs.services import Service
from airflow_poison.dialogs.system_messages import is_system
from airflow_poison.dialogs.transaction import DialogState, WaitingMessages, is_for_partner, overtaking_messages
from airflow_poison.passes.browse import MOST_BODY_BYTES, MessageRow, look_up
from airflow_poison.passes.messages import Chosen, find
from airflow_poison.rules import policy_from_dict
from airflow_poison.rules.queue_disabling import Printed, printed
from airflow_poison.store.control import SERVICES_DROPPED, Control
from airflow_poison.values.errors import ConversationNotFoundError, PoisonError, QueueNotFoundError, ServiceNotFoundError, SettingError
from airflow_poison.values.schema import SubQueue
from airflow_poison.values.texts import Plain

if TYPE_CHECKING:
    from airflow_poison.store import QueueStore
    from airflow_poison.store.files import Claim, DataFile, Snapshot
    from airflow_poison.store.queue_table import QueueTable


_VERSIONED = ["conversation_id", "lookup_id", "body"]
ARRIVALS = ["lookup_id", "conversation_id", "group_id", "message_type", "priority"]
"""The columns that arrivals are looked up by."""


def stored(table: QueueTable, snapshot: Snapshot, handles: Collection[str] | None = None) -> dict[str, ConversationEndpoint]:
    """Return endpoints by handle as they are stored; all of them when no handles are given."""
    wanted = None if handles is None else pa.array(sorted(handles), pa.string())
    parts = []
    table.bring(snapshot.conversations)
    for file in snapshot.conversations:
        rows = table.read(file, _VERSIONED)
        parts.append(rows if wanted is None else rows.filter(pc.is_in(rows["conversation_id"], wanted)))
    return table_to_endpoints(pa.concat_tables(parts)) if parts else {}


def due(table: QueueTable, snapshot: Snapshot, now: datetime) -> dict[str, ConversationEndpoint]:
    """Return the endpoints whose timer or lifetime has ended; also of dialogs whose first message has arrived and has not been received."""
    handles = set[str]()
    for file in snapshot.conversations:
        if file.min_due_at is not None and file.min_due_at <= now:
            rows = table.read(file, ["conversation_id", "due_at"])
            cells = zip(rows["conversation_id"].to_pylist(), rows["due_at"].to_pylist(), strict=True)
            handles.update(handle for handle, due_at in cells if handle is not None and due_at is not None and due_at <= now)
    found = stored(table, snapshot, handles) if handles else {}
    found |= unreceived(table, snapshot)
    return {handle: endpoint for handle, endpoint in found.items() if endpoint.due_at is not None and endpoint.due_at <= now}


def waiting(table: QueueTable, snapshot: Snapshot, handles: Collection[str] | None = None) -> dict[str, list[str]]:
    """Return the types of the messages of each conversation that are in the queue, claimed or held back ones, and those put aside, too."""
    return _types(table, snapshot.files, handles)


def _arrived(table: QueueTable, snapshot: Snapshot, handles: Collection[str] | None = None) -> dict[str, list[str]]:
    """Return the types of what has arrived; what a disabled queue holds back has not (spec SB-22)."""
    return _types(table, [file for file in snapshot.files if file.sub_queue != SubQueue.TRANSMISSION], handles)


def _types(table: QueueTable, files: Sequence[DataFile], handles: Collection[str] | None) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    table.bring(files)
    for file in files:
        rows = members(table, file)
        for handle, message_type in zip(rows["conversation_id"].to_pylist(), rows["message_type"].to_pylist(), strict=True):
            if handle is not None and (handles is None or handle in handles):
                found.setdefault(handle, []).append(message_type or "")
    return found


def members(table: QueueTable, file: DataFile) -> pa.Table:
    """Return the rows of a file that belong to a conversation, with the columns ``ARRIVALS``."""
    rows = table.read(file, ARRIVALS)
    return rows.filter(pc.is_valid(rows["conversation_id"]))


def begun(table: QueueTable, snapshot: Snapshot, handles: Collection[str]) -> dict[str, ConversationEndpoint]:
    """Return the endpoints of dialogs whose first message waits and has not been received: they are stored when it is.

    A message that was sent on to another queue, a dead letter for example, still says which service it was for: its dialog is not there.
    """
    found: dict[str, ConversationEndpoint] = {}
    wanted, control = pa.array(sorted(handles), pa.string()), snapshot.control
    has_had_others = bool(control.counters.get(SERVICES_DROPPED))
    for file in snapshot.files if handles and control.has_had_services else ():
        here = pc.is_in(table.read(file, ["conversation_id"])["conversation_id"], wanted)
        if not pc.any(here).as_py():
            continue
        messages = table_to_messages(table.read(file, list(MESSAGE_COLUMNS)).filter(here))
        endpoints = (arrivals.begun_with(message) for message in messages if message is not None)
        here_are = (endpoint for endpoint in endpoints if endpoint is not None and (has_had_others or endpoint.service in control.services))
        found |= {endpoint.handle: endpoint for endpoint in here_are}
    return found


def unreceived(table: QueueTable, snapshot: Snapshot) -> dict[str, ConversationEndpoint]:
    """Return the endpoints of all dialogs whose first message waits and has not been received."""
    if not snapshot.control.has_had_services:  # a queue of plain messages need not be read to see that none does
        return {}
    handles = waiting(table, snapshot).keys()
    return begun(table, snapshot, handles - stored(table, snapshot, handles).keys()) if handles else {}


def endpoint(table: QueueTable, snapshot: Snapshot, handle: str, now: datetime | None = None) -> ConversationEndpoint:
    """Return an endpoint with what has arrived for it. Raises ConversationNotFoundError (8426).

    :param now: what the local broker has made by then has arrived, too, though no pass has put it into the queue yet (spec SB-22, SB-43). Nothing
        has while the queue is disabled.
    """
    found = stored(table, snapshot, [handle]).get(handle) or begun(table, snapshot, [handle]).get(handle)
    if found is None:
        raise ConversationNotFoundError(
            f"Error 8426: queue {table.name!r} has no conversation {handle!r}. "
            "A handle is of one side of a dialog: look it up among the conversations of this queue."
        )
    types = _arrived(table, snapshot, {handle}).get(handle, [])
    if now is not None and not snapshot.control.holds_sends:
        types += [message.message_type for message in arrivals.due(found, now)]
    return arrivals.arrived(found, types)


def seen(table: QueueTable, snapshot: Snapshot) -> Iterator[tuple[ConversationEndpoint, Mapping[str, int]]]:
    """Yield every endpoint with what has arrived for it, and how many messages of each type wait."""
    types, known_here = waiting(table, snapshot), stored(table, snapshot)
    there = _arrived(table, snapshot) if snapshot.control.holds_sends else types
    known_here |= begun(table, snapshot, types.keys() - known_here.keys())
    for handle, known in sorted(known_here.items()):
        yield arrivals.arrived(known, there.get(handle, ())), _by_type(types.get(handle, []))


def _by_type(types: Collection[str]) -> dict[str, int]:
    return dict(sorted(Counter(types).items()))


# As ``sys.conversation_endpoints`` shows them ---------------------------------------------------------------------------


COUNTED_ROWS, COUNTED_BYTES = 10_000, 8 * 1024 * 1024
"""So much of endpoints and waiting messages is read to count conversations."""


@dataclass(frozen=True, slots=True)
class ConversationRow(Plain):
    """One side of a dialog, with what has arrived for it.

    :param handle: of this side.
    :param state: SO, SI, CO, DI, DO, ER or CD (spec SB-55).
    :param lifetime: when the dialog's lifetime ends.
    :param dialog_timer: when the conversation timer expires.
    :param cleaned: this side has ended it with cleanup: the partner got no message.
    """

    handle: str
    conversation_id: str
    group_id: str
    is_initiator: bool
    service: str
    far_service: str
    contract: str
    state: str
    priority: int
    lifetime: datetime | None
    dialog_timer: datetime | None
    sent: int
    waiting: Mapping[str, int]
    failures: int
    error: tuple[int, str] | None
    began_at: datetime | None
    cleaned: bool = False

    @property
    def far_handle(self) -> str:
        """The partner's handle."""
        return target_handle(self.conversation_id) if self.is_initiator else self.conversation_id

    @classmethod
    def of(cls, endpoint: ConversationEndpoint, waiting: Mapping[str, int]) -> ConversationRow:
        """Return the row of an endpoint."""
        return cls(
            **{name: getattr(endpoint, name) for name in _AS_STORED},
            state=endpoint.state.value,
            lifetime=endpoint.expires_at,
            dialog_timer=endpoint.timer_at,
            waiting=dict(waiting),
            error=None if endpoint.error_code is None else (endpoint.error_code, endpoint.error_text),
        )

    def to_dict(self) -> dict[str, object]:
        """Return plain values; instants in ISO 8601."""
        return Plain.to_dict(self) | {"error": None if self.error is None else {"code": self.error[0], "description": self.error[1]}}


_AS_STORED = {each.name for each in fields(ConversationRow)} & {"handle", *(each.name for each in fields(ConversationEndpoint))} - {"state"}
"""What a row has from its endpoint under the same name."""


def conversations(table: QueueTable, *, handle: str | None = None, ended: bool = False) -> tuple[ConversationRow, ...]:
    """Return the conversation endpoints of a queue, sorted by handle.

    :param handle: only this one.
    :param ended: also those that this side remembers only because they have ended (CD).
    Raises ConversationNotFoundError (8426) for a handle that the queue does not know.
    """
    snapshot = table.snapshot()
    if handle is not None:
        found = endpoint(table, snapshot, handle)
        types = waiting(table, snapshot, {handle}).get(handle, [])
        return (ConversationRow.of(found, _by_type(types)),)
    rows = (ConversationRow.of(known, types) for known, types in seen(table, snapshot))
    return tuple(row for row in rows if ended or row.state != ConversationState.CLOSED)


def awaited(table: QueueTable, chosen: Chosen) -> dict[str, str]:
    """Return the services that wait for an answer to one of these messages, each by the handle of its conversation at this side."""
    snapshot = table.snapshot()
    if not snapshot.has_conversations:
        return {}
    asking = {row.conversation_id or "" for row in look_up(table, chosen) if Envelope.of(row.properties) and is_system(row.message_type) is None}
    known = stored(table, snapshot, asking)
    known |= begun(table, snapshot, asking - known.keys())
    types = _arrived(table, snapshot, asking)
    now_known = (arrivals.arrived(endpoint, types.get(handle, ())) for handle, endpoint in known.items())
    return {endpoint.handle: endpoint.far_service for endpoint in now_known if endpoint.state in SENDS}


def number(table: QueueTable) -> int | None:
    """Return how many conversations go on; None where more would have to be read than an overview should wait for."""
    snapshot = table.snapshot()
    looked_at = [*snapshot.conversations, *snapshot.files]
    if sum(file.rows for file in looked_at) > COUNTED_ROWS or sum(file.size for file in looked_at) > COUNTED_BYTES:
        return None
    return len(conversations(table))


@dataclass(frozen=True, slots=True)
class ConversationView:
    """One side of a dialog, and what lies in the queue for it and for its partner.

    :param messages: the first that wait for this side, in the order in which they came, wherever in the queue.
    :param unsent: how many messages of each type are here on their way to the partner: its queue does not take them, or no pass has carried them yet
        (spec SB-19).
    """

    row: ConversationRow
    messages: tuple[MessageRow, ...]
    more: int
    unsent: Mapping[str, int]


def conversation(table: QueueTable, handle: str, limit: int) -> ConversationView:
    """Return one conversation endpoint of a queue with its messages. Raises ConversationNotFoundError (8426).

    :param limit: how many messages, at least 1.
    """
    [row] = conversations(table, handle=handle)
    snapshot = table.snapshot()
    numbers = sorted(number for holder in find(table, snapshot, Chosen(conversation_id=handle)) for number in holder.lookup_ids)
    first = look_up(table, Chosen.ids(numbers[:limit]))
    unsent = _types(table, snapshot.transmissions, {row.far_handle}).get(row.far_handle, [])
    return ConversationView(row, first, len(numbers) - len(first), _by_type(unsent))


@dataclass(frozen=True, slots=True)
class UnsentMessage(Plain):
    """A message that waits at this side until the partner's queue takes it, as ``sys.transmission_queue`` shows it (spec SB-19).

    :param conversation: the handle of this side.
    :param status: why it waits; empty: the next pass of either side carries it.
    """

    conversation: str
    to_service: str
    message_type: str
    sequence: int
    enqueued_at: datetime | None
    status: str


def transmission_queue(store: QueueStore, table: QueueTable, limit: int | None = None) -> tuple[UnsentMessage, ...]:
    """Return what waits at this side for the queues of partners, in the order in which it leaves.

    :param limit: at most so many; None: all.
    """
    status = cache(partial(_status, store))
    files = table.snapshot().transmissions
    table.bring(files)
    found = list[UnsentMessage]()
    for file in files:
        rows = table.read(file, [*MESSAGE_COLUMNS, "enqueued_at"])
        for message, at in zip(table_to_messages(rows), rows["enqueued_at"].to_pylist(), strict=True):
            if message is not None and is_for_partner(message):
                envelope = message.envelope
                here = envelope.turned().to_handle
                status_now = status(envelope.to_service)
                found.append(UnsentMessage(here, envelope.to_service, message.message_type, envelope.sequence, at, status_now))
        if limit is not None and len(found) >= limit:
            break
    return tuple(found[:limit])


def _status(store: QueueStore, service: str) -> str:
    try:
        target = found_queue(store, service)
    except PoisonError as error:
        return f"a queue of the store cannot be read: {error}"
    if target is None:
        return "no queue has the service"
    return f"queue {target.name!r} is disabled" if target.snapshot().control.holds_sends else ""


# For the tasks of a pass -----------------------------------------------------------------------------------------------


def dialog_state(table: QueueTable, claim: Claim) -> DialogState:
    """Return services, endpoints, what waits in their conversations, and which claimed messages are received before their place."""
    snapshot = table.snapshot()
    claimed = list(_claimed(table, claim))
    handles = {row.handle for row in claimed if row.handle is not None}
    arrived, endpoints, overtaking = waiting(table, snapshot, handles), stored(table, snapshot, handles), overtaking_messages(claimed)
    overtaken = {row.handle for row in claimed if row.handle is not None and row.lookup_id in overtaking}
    here = Counter(row.handle for row in claimed)
    elsewhere = {handle for handle, types in arrived.items() if len(types) > here[handle]}  # the first message, perhaps
    return DialogState(
        services=services_of(snapshot.control),
        endpoints=endpoints,
        waiting={handle: tuple(types) for handle, types in arrived.items()},
        exceptions=overtaking,
        begun=begun(table, snapshot, (overtaken | elsewhere) - endpoints.keys()),
    )


def _claimed(table: QueueTable, claim: Claim) -> Iterator[WaitingMessages]:
    for file in claim.files:
        rows = members(table, file)
        for cells in zip(*(rows[name].to_pylist() for name in ARRIVALS), strict=True):
            lookup_id, handle, group, message_type, priority = cells
            yield WaitingMessages(lookup_id, handle, group or handle, message_type or "", priority)


# Services: which of them a queue has, and which queue a service has --------------------------------------------------


def services_of(control: Control) -> dict[str, Service]:
    """Return a queue's services by name."""
    return {name: Service.from_dict(definition) for name, definition in control.services.items()}  # type: ignore[arg-type]  # JSON


def declare_services(store: QueueStore, table: QueueTable, services: Iterable[Service]) -> None:
    """Let services receive from a queue: CREATE SERVICE, or ALTER SERVICE where the queue has it already. The queue's other services stay.

    Raises SettingError when its policy does not lock conversation groups, or another queue has a service of this name; then nothing has changed.
    """
    services = tuple(services)
    for service in services:
        if not isinstance(service, Service):
            raise SettingError("services", service, "a list of Service, for example [Service('warehouse', contracts=[…])]")
    definitions = {service.name: service.to_dict() for service in services}
    control = table.snapshot().control
    if not policy_from_dict(control.policy).locks_groups:
        raise SettingError("services", sorted(definitions), f"only on a queue with Service Broker's rules; queue {table.name!r} has others")
    for name in definitions.keys() - control.services.keys():
        other = found_queue(store, name)
        if other is not None and other.name != table.name:
            raise SettingError("services", name, f"a name that no other queue's service has; queue {other.name!r} has one")
    if any(control.services.get(name) != definition for name, definition in definitions.items()):
        table.alter(lambda row: replace(row, services={**row.services, **definitions}))


def drop_service(table: QueueTable, name: str) -> None:
    """Take a service from its queue: DROP SERVICE. A sender to it gets an Error message (spec SB-57). Raises ServiceNotFoundError."""
    if name not in table.snapshot().control.services:
        raise ServiceNotFoundError(_not_found(name, f"queue {table.name!r}", table.snapshot().control.services))

    def change(row: Control) -> Control:
        left = {other: definition for other, definition in row.services.items() if other != name}
        return replace(row.with_counters({SERVICES_DROPPED: row.counters.get(SERVICES_DROPPED, 0) + 1}), services=left)

    table.alter(change)


def service_in(table: QueueTable, name: str) -> Service:
    """Return a service of a queue. Raises ServiceNotFoundError."""
    services = services_of(table.snapshot().control)
    if name not in services:
        raise ServiceNotFoundError(_not_found(name, f"queue {table.name!r}", services))
    return services[name]


def printed_body(table: QueueTable, message: MessageRow) -> Printed | None:
    """Return what an inspection prints of a message, of its first 64 KiB (spec SB-27); None when no contract of the queue names its type."""
    validation = validation_of(services_of(table.snapshot().control), message.message_type, message.properties)
    return None if validation is None else printed(message.body[:MOST_BODY_BYTES], validation)


def found_queue(store: QueueStore, service: str) -> QueueTable | None:
    """Return the queue of a service; None when there is none. Raises what a queue does that cannot be read, unless another one has the service."""
    return next((table for table in _queues(store) if service in table.snapshot().control.services), None)


def _queues(store: QueueStore) -> Iterator[QueueTable]:
    """Yield the queues; at last raise what one did that could not be read."""
    unread: PoisonError | None = None
    for name in store.names():
        try:
            yield store.open(name, read_only=True)
        except QueueNotFoundError:  # removed meanwhile
            continue
        except PoisonError as error:
            unread = unread or error
    if unread is not None:
        raise unread


def _not_found(name: str, place: str, known: Iterable[str] | Mapping[str, object]) -> str:
    names = ", ".join(sorted(known)) or "none yet"
    return f"There is no service {name!r} in {place}. Services there: {names}. Declare it on its queue, or correct the name."
