"""What the policies of all queued WCF bindings do the same way with their settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from airflow_poison.core.policies import transactions
from airflow_poison.core.policies.base import SystemSettings
from airflow_poison.core.policies.decisions import Halted

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import timedelta

    from airflow_poison.core.policies.seam import Entry


class WcfSettings(SystemSettings):
    """Base of frozen settings: the transaction timeout and the size limit."""

    __slots__ = ()

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
    transaction_timeout: timedelta
    machine_transaction_timeout: timedelta
    machine_maximum_transaction_timeout: timedelta
    max_received_message_size: int | None

    @property
    def halts_as(self) -> Halted:
        """Fault (spec WCF-21)."""
        return Halted.FAULTED

    @property
    def effective_transaction_timeout(self) -> timedelta:
        """How long one delivery may take (spec WCF-35)."""
        return transactions.effective_timeout(self.transaction_timeout, self.machine_transaction_timeout, self.machine_maximum_transaction_timeout)

    def unreadable(self, entry: Entry) -> str | None:
        """Say that a message is above the size limit (spec WCF-29); None when it is not."""
        limit = self.max_received_message_size
        if limit is None or entry.size <= limit:
            return None
        return f"{entry.size} bytes are above max_received_message_size={limit}"
