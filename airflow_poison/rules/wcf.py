"""What the policies of all queued WCF bindings share: timeouts (spec WCF-35); on errors fault, drop, reject or move to poison (spec WCF-21 to 24)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, ClassVar, assert_never

from airflow_poison.rules import settings
from airflow_poison.rules.decisions import Counts, Dispose, Disposition, Halt, Halted, Return, aborted, moved
from airflow_poison.rules.policy import Entry, Policy, Receiver
from airflow_poison.values.errors import ConfigurationWarning
from airflow_poison.values.events import EventType

if TYPE_CHECKING:
    from airflow_poison.values.failures import Failure

MACHINE_TRANSACTION_TIMEOUT = timedelta(minutes=1)
MACHINE_MAXIMUM_TRANSACTION_TIMEOUT = timedelta(minutes=10)


class ReceiveErrorHandling(StrEnum):
    """What happens to a poison message after its last attempt: the four values of the setting, as the manual writes them."""

    FAULT = "Fault"
    DROP = "Drop"
    REJECT = "Reject"
    MOVE = "Move"


class WcfSettings(Policy):
    """Base of frozen settings: the transaction timeout, the size limit and what ends a message.

    :param exactly_once: False: no poison handling; a failure loses the message (spec WCF-12).
    :param transaction_scope_required: False: the message is consumed before the handler is called (spec WCF-37).
    :param transaction_timeout: how long one delivery may take; 0 takes the machine's value (spec WCF-35).
    :param machine_transaction_timeout: the machine's value, a duration > 0.
    :param machine_maximum_transaction_timeout: the cap of both, a duration > 0.
    :param max_received_message_size: larger messages are never delivered, bytes >= 1; None: no limit (spec WCF-29).
    """

    __slots__ = ()

    checks: ClassVar[Mapping[str, settings.Check]] = {
        "machine_transaction_timeout": partial(settings.duration, least=settings.TICK),
        "machine_maximum_transaction_timeout": partial(settings.duration, least=settings.TICK),
        "max_received_message_size": settings.optional(partial(settings.whole_number, least=1)),
        "seen_table_size": partial(settings.whole_number, least=1),
    }
    aliases: ClassVar[Mapping[str, str]] = {
        "ReceiveRetryCount": "receive_retry_count",
        "MaxRetryCycles": "max_retry_cycles",
        "RetryCycleDelay": "retry_cycle_delay",
        "ReceiveErrorHandling": "receive_error_handling",
        "ExactlyOnce": "exactly_once",
        "TransactionScopeRequired": "transaction_scope_required",
        "TransactionTimeout": "transaction_timeout",
        "MaxBatchSize": "max_batch_size",
        "MaxReceivedMessageSize": "max_received_message_size",
    }
    halts_as: ClassVar[Halted] = Halted.FAULTED

    receive_error_handling: ReceiveErrorHandling | str
    exactly_once: bool = True
    transaction_scope_required: bool = True
    transaction_timeout: timedelta
    machine_transaction_timeout: timedelta
    machine_maximum_transaction_timeout: timedelta
    max_received_message_size: int | None

    def warnings(self) -> Iterator[ConfigurationWarning]:
        """Say that the timeout is above the machine's maximum, which then holds (spec WCF-35), and what loses messages."""
        most = self.machine_maximum_transaction_timeout
        name = "transaction_timeout" if self.transaction_timeout else "machine_transaction_timeout"
        wanted = self.transaction_timeout or self.machine_transaction_timeout
        if wanted > most:
            yield ConfigurationWarning(
                f"{name}={wanted} is above machine_maximum_transaction_timeout={most}, which caps it: a delivery is rolled back after {most}. "
                "Set machine_maximum_transaction_timeout, too, where deliveries may take longer."
            )
        if not self.exactly_once:
            yield ConfigurationWarning("exactly_once=False: a message whose handler fails is lost, and no message ever becomes poison.")
        elif not self.transaction_scope_required:
            yield ConfigurationWarning("transaction_scope_required=False: a message whose handler fails is lost.")

    @property
    def halting(self) -> bool:
        """Whether the listener can fault (spec WCF-21, M3-10)."""
        return self.exactly_once and self.receive_error_handling == ReceiveErrorHandling.FAULT

    @property
    def effective_transaction_timeout(self) -> timedelta:
        """The service's timeout or, when that is 0, the machine's; never above the machine's maximum (spec WCF-35)."""
        return min(self.transaction_timeout or self.machine_transaction_timeout, self.machine_maximum_transaction_timeout)

    def unreadable(self, entry: Entry) -> str | None:
        """Say that a message is above the size limit (spec WCF-29); None when it is not."""
        limit = self.max_received_message_size
        if limit is None or entry.size <= limit:
            return None
        return f"{entry.size} bytes are above max_received_message_size={limit}"


@dataclass(slots=True)
class WcfReceiver(Receiver):
    """An open listener that keeps nothing in memory: counts are durable and travel with the messages (spec WCF-9)."""

    policy: WcfSettings

    def after_rollback(self, entry: Entry, failure: Failure, now: datetime) -> Return:  # noqa: ARG002  (the interface's signature)
        """Count the abort; the next receive decides (spec WCF-14)."""
        return Return(aborted(entry.counts))

    def give_up(self, entry: Entry, failure: Failure, now: datetime) -> Dispose | Halt:  # noqa: ARG002  (the interface's signature)
        """Return the final disposition at once, without the attempts and cycles that are left (spec WCF-29)."""
        if not self.policy.exactly_once:
            return Dispose(Disposition.DROP, entry.counts, (EventType.DROPPED,))
        return self.final_disposition(entry, now)

    def final_disposition(self, entry: Entry, now: datetime) -> Dispose | Halt:
        """Return what ends a message for good; each one raises the poison exception first (spec WCF-18)."""
        return self._disposition(entry, entry.counts, aborted(entry.counts), now)

    def _disposition(self, entry: Entry, seen: Counts, faulted: Counts, now: datetime) -> Dispose | Halt:
        """Do what ``receive_error_handling`` says (spec WCF-21 to WCF-24).

        :param seen: the counts that the receive saw.
        :param faulted: the counts of a message that stays because its listener faults.
        """
        handling = ReceiveErrorHandling(self.policy.receive_error_handling)
        match handling:
            case ReceiveErrorHandling.FAULT:
                return Halt(Halted.FAULTED, faulted, (EventType.POISON_EXCEPTION, EventType.FAULTED))
            case ReceiveErrorHandling.DROP:
                expired = entry.expires_at is not None and entry.expires_at <= now
                return Dispose(Disposition.DROP, seen, (EventType.POISON_EXCEPTION, EventType.DROPPED), to_dead_letter=expired)
            case ReceiveErrorHandling.REJECT:
                return Dispose(Disposition.REJECT, seen, (EventType.POISON_EXCEPTION, EventType.REJECTED), to_dead_letter=True)
            case ReceiveErrorHandling.MOVE:
                return Dispose(Disposition.MOVE_TO_POISON, moved(seen), (EventType.POISON_EXCEPTION, EventType.MOVED_POISON))
            case _:
                assert_never(handling)
