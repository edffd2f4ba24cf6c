"""WCF queued bindings on MSMQ 3.0: immediate retries that the channel counts in its own memory (spec section 4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, ClassVar

from airflow_poison.rules.decisions import Counts, Deliver, Dispose, Halt, Return, aborted
from airflow_poison.rules.policy import FIRST, Entry, Opening
from airflow_poison.rules.settings import LARGEST
from airflow_poison.rules.wcf import MACHINE_MAXIMUM_TRANSACTION_TIMEOUT, MACHINE_TRANSACTION_TIMEOUT, ReceiveErrorHandling, WcfReceiver, WcfSettings
from airflow_poison.values.errors import SettingError

if TYPE_CHECKING:
    from airflow_poison.values.failures import Failure


_REFUSED = {
    ReceiveErrorHandling.MOVE: "Fault or Drop on MSMQ 3.0: it has no sub-queues to move a message to",
    ReceiveErrorHandling.REJECT: "Fault or Drop on MSMQ 3.0: it has no negative acknowledgements",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Msmq3(WcfSettings):
    """The settings of a queued WCF service on MSMQ 3.0. Raises SettingError for a value that is not allowed (spec M3-3, WCF-11).

    What all listeners have is described at ``WcfSettings``: timeouts, limits, and what loses messages.

    :param receive_retry_count: immediate redeliveries, 0 to 2147483647; the largest value means that no message ever becomes poison.
    :param max_retry_cycles: accepted and ignored: there are no cycles (spec M3-2).
    :param retry_cycle_delay: accepted and ignored, a duration >= 0 (spec M3-2).
    :param receive_error_handling: ``Fault`` or ``Drop``; ``Move`` and ``Reject`` are refused (spec M3-3).
    :param sessions: a message is a session of several items (spec WCF-39).
    :param seen_table_size: how many messages the channel counts at the same time, at least 1 (spec M3-5, M3-11).

    Memory: the channel's table of seen counts lives as long as its endpoint, so it is lost when the pass ends or crashes, and
    every message has ``receive_retry_count + 1`` fresh deliveries then (spec M3-4, M3-10). With ``Drop`` a pass may be spread over
    tasks; each task is a service of its own with a table of its own, as in a farm (spec M3-6). A handler sees the count of this
    table. The ``abort_count`` in the queue table is only for people: all rollbacks of the message, by whatever service. It never
    falls, and no decision looks at it.

    Warns with ConfigurationWarning about settings that lose messages, and about a timeout that the machine's maximum caps.
    """

    system: ClassVar[str] = "Msmq3"
    title: ClassVar[str] = "WCF queued bindings on MSMQ 3.0"
    stateless: ClassVar[bool] = False

    receive_retry_count: int = 5
    max_retry_cycles: int = 2
    retry_cycle_delay: timedelta = timedelta(minutes=30)
    receive_error_handling: ReceiveErrorHandling | str = ReceiveErrorHandling.FAULT
    exactly_once: bool = True
    transaction_scope_required: bool = True
    transaction_timeout: timedelta = timedelta(0)
    machine_transaction_timeout: timedelta = MACHINE_TRANSACTION_TIMEOUT
    machine_maximum_transaction_timeout: timedelta = MACHINE_MAXIMUM_TRANSACTION_TIMEOUT
    sessions: bool = False
    max_received_message_size: int | None = None
    seen_table_size: int = 256

    def check_together(self) -> None:
        """Refuse what MSMQ 3.0 does not have (spec M3-3). Raises SettingError."""
        handling = ReceiveErrorHandling(self.receive_error_handling)
        if handling in _REFUSED:
            raise SettingError("receive_error_handling", str(handling), _REFUSED[handling])

    def open(self, opening: Opening = FIRST) -> Msmq3Receiver:  # noqa: ARG002  (the interface's signature)
        """Open a listener, whose table is empty."""
        return Msmq3Receiver(self)


@dataclass(slots=True)
class SeenTable:
    """How often each of the last messages was read, by lookup id: what a channel keeps in memory (spec M3-5, M3-7, M3-8).

    :param size: how many messages it holds, at least 1; a further one takes the place of the smallest lookup id.
    """

    size: int
    _seen: dict[int, int] = field(default_factory=dict, init=False)

    def read(self, lookup_id: int) -> int:
        """Count a read and return the message's seen count."""
        if lookup_id not in self._seen and len(self._seen) >= self.size:
            del self._seen[min(self._seen)]
        seen = self._seen[lookup_id] = self._seen.get(lookup_id, 0) + 1
        return seen

    def take_back(self, lookup_id: int) -> None:
        """Uncount a message's last read, if it is still in the table."""
        if lookup_id in self._seen:
            self._seen[lookup_id] -= 1

    def remove(self, lookup_id: int) -> None:
        """Forget a message."""
        self._seen.pop(lookup_id, None)

    def __len__(self) -> int:
        return len(self._seen)

    def __contains__(self, lookup_id: int) -> bool:
        return lookup_id in self._seen


@dataclass(slots=True)
class Msmq3Receiver(WcfReceiver):
    """An open listener, with the table of seen counts and the message that it has handed over last."""

    policy: Msmq3
    _table: SeenTable = field(init=False)
    _handed_over: tuple[int, Counts] | None = field(default=None, init=False)
    """Lookup id and durable counts, until its transaction has ended."""

    def __post_init__(self) -> None:
        self._table = SeenTable(self.policy.seen_table_size)

    def before(self, entry: Entry, now: datetime) -> Deliver | Dispose | Halt:
        """Count the read; deliver, or dispose of a message that was read once too often (spec M3-7)."""
        self._uncount_postponed()
        policy = self.policy
        if not policy.exactly_once:
            return Deliver(entry.counts, at_most_once=True)
        seen = self._table.read(entry.lookup_id)
        if seen > policy.receive_retry_count + 1 and policy.receive_retry_count != LARGEST:
            return self.final_disposition(entry, now)
        self._handed_over = (entry.lookup_id, entry.counts)
        shown = Counts(min(seen - 1, LARGEST), entry.counts.move_count)
        return Deliver(shown, at_most_once=not policy.transaction_scope_required)

    def after_rollback(self, entry: Entry, failure: Failure, now: datetime) -> Return:  # noqa: ARG002  (the interface's signature)
        """Add the rollback to the message's durable count, not to what this delivery saw; the next receive decides."""
        stored = self._durable(entry)
        self._handed_over = None
        return Return(aborted(stored))

    def transaction_committed(self, entries: Sequence[Entry]) -> None:  # noqa: ARG002  (the interface's signature)
        """Let the read of a processed message stay counted (spec M3-7)."""
        self._handed_over = None

    def _uncount_postponed(self) -> None:
        """Uncount the read of a message whose transaction neither committed nor aborted: its handler gave it back uncounted."""
        if self._handed_over is not None:
            self._table.take_back(self._handed_over[0])
            self._handed_over = None

    def _durable(self, entry: Entry) -> Counts:
        if self._handed_over is not None and self._handed_over[0] == entry.lookup_id:
            return self._handed_over[1]
        return entry.counts

    def final_disposition(self, entry: Entry, now: datetime) -> Dispose | Halt:
        """Forget the message, which ends for good."""
        self._table.remove(entry.lookup_id)
        return WcfReceiver.final_disposition(self, entry, now)
