"""WCF reading a poison sub-queue: immediate retries, no cycles, and no further move (spec section 3)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, ClassVar

from airflow_poison.rules.decisions import Deliver, Dispose, Halt
from airflow_poison.rules.policy import FIRST
from airflow_poison.rules.settings import LARGEST
from airflow_poison.rules.wcf import (
    MACHINE_MAXIMUM_TRANSACTION_TIMEOUT,
    MACHINE_TRANSACTION_TIMEOUT,
    ReceiveErrorHandling,
    WcfReceiver,
    WcfSettings,
)
from airflow_poison.values.errors import SettingError
from airflow_poison.values.schema import SubQueue

if TYPE_CHECKING:
    from datetime import datetime

    from airflow_poison.rules.policy import Entry, Opening


@dataclass(frozen=True, slots=True, kw_only=True)
class PoisonSubQueue(WcfSettings):
    """The settings of a service that reads ``<queue>;poison``. Raises SettingError for a value that is not allowed (spec POI-2).

    What all listeners have is described at ``WcfSettings``: timeouts, limits, and what loses messages.

    :param receive_retry_count: immediate redeliveries, 0 to 2147483647; the largest value means for ever.
    :param max_retry_cycles: accepted and ignored: there are no cycles.
    :param receive_error_handling: ``Fault``, ``Drop`` or ``Reject``; ``Move`` is refused (spec POI-3).

    Warns with ConfigurationWarning about a timeout that the machine's maximum caps.
    """

    system: ClassVar[str] = "PoisonSubQueue"
    title: ClassVar[str] = "WCF reading a poison sub-queue"
    reads: ClassVar[SubQueue] = SubQueue.POISON
    stateless: ClassVar[bool] = True

    receive_retry_count: int = 5
    max_retry_cycles: int = 2
    receive_error_handling: ReceiveErrorHandling | str = ReceiveErrorHandling.FAULT
    transaction_timeout: timedelta = timedelta(0)
    machine_transaction_timeout: timedelta = MACHINE_TRANSACTION_TIMEOUT
    machine_maximum_transaction_timeout: timedelta = MACHINE_MAXIMUM_TRANSACTION_TIMEOUT
    max_received_message_size: int | None = None

    def check_together(self) -> None:
        """Refuse ``Move`` (spec POI-3). Raises SettingError."""
        if self.receive_error_handling == ReceiveErrorHandling.MOVE:
            allowed = "Drop, Reject or Fault while a poison sub-queue is read: its messages cannot be moved to a poison sub-queue again"
            raise SettingError("receive_error_handling", str(self.receive_error_handling), allowed)

    def open(self, opening: Opening = FIRST) -> PoisonSubQueueReceiver:  # noqa: ARG002  (the seam's signature)
        """Open a listener on the poison sub-queue."""
        return PoisonSubQueueReceiver(self)


@dataclass(slots=True)
class PoisonSubQueueReceiver(WcfReceiver):
    """An open listener on a poison sub-queue. Keeps nothing in memory."""

    policy: PoisonSubQueue

    def before(self, entry: Entry, now: datetime) -> Deliver | Dispose | Halt:
        """Deliver, or dispose of a message that has no attempt left; its move count is ignored (spec POI-4, POI-5)."""
        limit = self.policy.receive_retry_count
        return Deliver(entry.counts) if limit == LARGEST or entry.counts.abort_count <= limit else self.final_disposition(entry, now)
