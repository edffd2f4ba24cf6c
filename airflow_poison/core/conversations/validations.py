"""Validations: how the body of a message that waits is validated, as the queue's column ``validation`` says (spec SB-50, SB-52)."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from airflow_poison.core.conversations.endpoint import Envelope
from airflow_poison.core.conversations.services import SYSTEM_MESSAGE_TYPES, is_system
from airflow_poison.core.policies.recovery import Validation
from airflow_poison.core.schema import DIALOG

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from airflow_poison.core.conversations.services import Contract, Service


def validation_of(services: Mapping[str, Service], message_type: str | None, properties: Mapping[str, str]) -> Validation | None:
    """Return the validation of a message; None when no contract of the queue's services names its type.

    :param services: of the queue, by name.
    :param properties: of the message, among them the envelope of a dialog's.
    """
    if message_type is None:
        return None
    if (system := is_system(message_type)) is not None:
        return Validation(SYSTEM_MESSAGE_TYPES[system].validation)
    for contract in _contracts(services, properties):
        if (kind := contract.message_types.get(message_type)) is not None:
            return Validation(kind.validation)
    return None


def _contracts(services: Mapping[str, Service], properties: Mapping[str, str]) -> Iterator[Contract]:
    """Yield the contract of the message's dialog, then all others of the services."""
    with suppress(KeyError, ValueError, TypeError):  # no message of a dialog, or its service has changed since
        envelope = Envelope.from_text(properties[DIALOG])
        yield services[envelope.to_service].contracts[envelope.contract]
    for service in services.values():
        yield from service.contracts.values()
