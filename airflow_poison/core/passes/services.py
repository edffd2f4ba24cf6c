"""Services: which of them a queue has, and which queue a service has."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from airflow_poison.core.conversations.receive_columns import validation_of
from airflow_poison.core.conversations.services import Service
from airflow_poison.core.errors import PoisonError, QueueNotFoundError, ServiceNotFoundError, SettingError
from airflow_poison.core.passes.browse import MOST_BODY_BYTES
from airflow_poison.core.policies import policy_from_dict
from airflow_poison.core.policies.recovery import printed
from airflow_poison.core.store.control import SERVICES_DROPPED

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from airflow_poison.core.clock import Clock
    from airflow_poison.core.passes.browse import MessageRow
    from airflow_poison.core.policies.recovery import Printed
    from airflow_poison.core.store import QueueStore
    from airflow_poison.core.store.control import Control
    from airflow_poison.core.store.queue_table import QueueTable


def services_of(control: Control) -> dict[str, Service]:
    """Return a queue's services by name."""
    return {name: Service.from_dict(definition) for name, definition in control.services.items()}  # type: ignore[arg-type]  # JSON


def declare_services(store: QueueStore, table: QueueTable, services: Iterable[Service], clock: Clock) -> None:
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
        table.alter(lambda row: replace(row, services={**row.services, **definitions}), lambda _before, _after: (), clock.now())


def drop_service(table: QueueTable, name: str, clock: Clock) -> None:
    """Take a service from its queue: DROP SERVICE. Whoever sends to it gets an Error message (spec SB-57). Raises ServiceNotFoundError."""
    if name not in table.snapshot().control.services:
        raise ServiceNotFoundError(_not_found(name, f"queue {table.name!r}", table.snapshot().control.services))

    def change(row: Control) -> Control:
        left = {other: definition for other, definition in row.services.items() if other != name}
        return replace(row.with_counters({SERVICES_DROPPED: row.counters.get(SERVICES_DROPPED, 0) + 1}), services=left)

    table.alter(change, lambda _before, _after: (), clock.now())


def queue_of(store: QueueStore, service: str) -> QueueTable:
    """Return the queue of a service. Raises ServiceNotFoundError."""
    found = found_queue(store, service)
    if found is None:
        known = {name for table in _queues(store) for name in table.snapshot().control.services}
        raise ServiceNotFoundError(_not_found(service, store.uri, known))
    return found


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
            yield store.open(name, upgrade=False)
        except QueueNotFoundError:  # removed meanwhile
            continue
        except PoisonError as error:
            unread = unread or error
    if unread is not None:
        raise unread


def _not_found(name: str, place: str, known: Iterable[str] | Mapping[str, object]) -> str:
    names = ", ".join(sorted(known)) or "none yet"
    return f"There is no service {name!r} in {place}. Services there: {names}. Declare it on its queue, or correct the name."
