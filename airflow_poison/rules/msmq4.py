"""WCF queued bindings on MSMQ 4.0: immediate retries, retry cycles, final disposition (spec section 2).

WCF reading a poison sub-queue: immediate retries, no cycles, and no further move (spec section 3).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, ClassVar

from airflow_poison.rules import settings
from airflow_poison.rules.decisions import Counts, Deliver, Dispose, Halt, Park, Return, ReturnOrder, aborted, moved
from airflow_poison.rules.policy import FIRST, Entry, Opening
from airflow_poison.rules.retry_schedule import retry_window, window_of
from airflow_poison.rules.settings import LARGEST
from airflow_poison.rules.wcf import MACHINE_MAXIMUM_TRANSACTION_TIMEOUT, MACHINE_TRANSACTION_TIMEOUT, ReceiveErrorHandling, WcfReceiver, WcfSettings
from airflow_poison.values.errors import ConfigurationWarning, SettingError
from airflow_poison.values.events import EventType
from airflow_poison.values.schema import SubQueue

if TYPE_CHECKING:
    from airflow_poison.values.failures import Failure


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

    def open(self, opening: Opening = FIRST) -> PoisonSubQueueReceiver:  # noqa: ARG002  (the interface's signature)
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


BATCH_SHARE = 0.8
"""A batch commits when more than this share of the transaction timeout has passed."""


class RetrySubqueues(StrEnum):
    """How many retry sub-queues there are: one, or one for each cycle; counts and timing are the same (spec WCF-20)."""

    ONE = "one"
    PER_CYCLE = "per_cycle"


class BatchFallback(StrEnum):
    """Which abort of a batch makes the reader go on one message at a time (spec section 11, item 13)."""

    FIRST_ABORT = "first_abort"
    WHEN_POISON = "when_poison"


@dataclass(frozen=True, slots=True, kw_only=True)
class Msmq4(WcfSettings):
    """The settings of a queued WCF service on MSMQ 4.0. Raises SettingError for a value that is not allowed (spec WCF-11).

    What all listeners have is described at ``WcfSettings``: timeouts, limits, and what loses messages.

    :param receive_retry_count: immediate redeliveries in one cycle, 0 to 2147483647; the largest value means that no message
        ever becomes poison (spec WCF-3).
    :param max_retry_cycles: how often a message goes through the retry sub-queue, 0 to 2147483647 (spec WCF-4).
    :param retry_cycle_delay: how long it waits there, a duration >= 0 (spec WCF-5, WCF-30).
    :param retry_window: weekdays and times in a time zone, such as ``Mon-Fri 22:00-06:00 Europe/Berlin``, or a cron expression, whose minutes are the
        window, ``* 22-23,0-5 * * MON-FRI Europe/Berlin``: what would fall due outside is due when the window opens next; None: at any time. No
        setting of the product's.
    :param receive_error_handling: what happens after the last attempt: ``Fault``, ``Drop``, ``Reject`` or ``Move`` (spec WCF-6).
    :param max_batch_size: messages in one transaction; 0 or 1: no batching (spec WCF-40).
    :param batch_fallback: which abort ends batching: ``first_abort`` of any kind, or only ``when_poison``.
    :param sessions: a message is a session of several items; excludes batching (spec WCF-39).
    :param receive_context: attempts are counted by the move count (spec WCF-44).
    :param retry_subqueues: ``one``, or ``per_cycle``: ``retry1``, ``retry2`` ... (spec WCF-20).
    :param return_order: how the retry sub-queue is watched: by ``due_time`` or with a ``head_timer`` (spec WCF-31, WCF-32).

    Warns with ConfigurationWarning about settings that lose messages or that make neighbours poison (spec WCF-43), and about a timeout that the
    machine's maximum caps.
    """

    system: ClassVar[str] = "Msmq4"
    title: ClassVar[str] = "WCF queued bindings on MSMQ 4.0"
    checks: ClassVar[Mapping[str, settings.Check]] = {**WcfSettings.checks, "retry_window": settings.optional(retry_window)}

    receive_retry_count: int = 5
    max_retry_cycles: int = 2
    retry_cycle_delay: timedelta = timedelta(minutes=30)
    retry_window: str | None = None
    receive_error_handling: ReceiveErrorHandling | str = ReceiveErrorHandling.FAULT
    exactly_once: bool = True
    transaction_scope_required: bool = True
    transaction_timeout: timedelta = timedelta(0)
    machine_transaction_timeout: timedelta = MACHINE_TRANSACTION_TIMEOUT
    machine_maximum_transaction_timeout: timedelta = MACHINE_MAXIMUM_TRANSACTION_TIMEOUT
    max_batch_size: int = 0
    batch_fallback: BatchFallback | str = BatchFallback.FIRST_ABORT
    sessions: bool = False
    receive_context: bool = False
    retry_subqueues: RetrySubqueues | str = RetrySubqueues.ONE
    return_order: ReturnOrder | str = ReturnOrder.DUE_TIME
    max_received_message_size: int | None = None

    def check_together(self) -> None:
        """Refuse batches of sessions. Raises SettingError."""
        if self.sessions and self.max_batch_size > 1:
            raise SettingError("max_batch_size", self.max_batch_size, "0 or 1 while sessions=True: a session is a transaction of its own")

    def warnings(self) -> Iterator[ConfigurationWarning]:
        """Return what loses messages or makes neighbours poison (spec WCF-43), and a timeout that is capped."""
        yield from WcfSettings.warnings(self)
        if self.exactly_once and self.transaction_scope_required and self.receive_retry_count == 0 and self.max_batch_size > 1:
            yield ConfigurationWarning(
                "receive_retry_count=0 with batching: one failing message makes its whole batch poison. "
                "Set receive_retry_count to 1 or more, or max_batch_size to 0."
            )

    @property
    def stateless(self) -> bool:
        """Whether each decision depends on the message alone: only batching keeps anything in memory."""
        return self.max_batch_size <= 1

    def open(self, opening: Opening = FIRST) -> Msmq4Receiver:  # noqa: ARG002  (the interface's signature)
        """Open a listener: it starts in batch mode when batching is on."""
        return Msmq4Receiver(self)


@dataclass(slots=True)
class Msmq4Receiver(WcfReceiver):
    """An open listener. Keeps nothing but the batch mode; counts are durable and travel with the messages (spec WCF-9)."""

    policy: Msmq4
    _single_commits: int | None = field(default=None, init=False)
    """Commits since the reader fell back to one message at a time; None in batch mode (spec WCF-40 to WCF-42)."""

    def before(self, entry: Entry, now: datetime) -> Deliver | Park | Dispose | Halt:
        """Deliver, or find the message poison: park it while cycles are left, else dispose of it (spec WCF-15, WCF-16)."""
        policy, seen = self.policy, self._received(entry.counts)
        if not policy.exactly_once:
            return Deliver(seen, at_most_once=True)
        cycle = self._cycle(seen)
        if not self._is_poison(seen, cycle):
            return Deliver(seen, at_most_once=not policy.transaction_scope_required)
        if cycle >= policy.max_retry_cycles:
            return self.final_disposition(entry, now)
        return Park(moved(seen), self.parked_until(now), self._retry_subqueue(cycle), (EventType.POISON_EXCEPTION, EventType.MOVED_RETRY))

    def parked_until(self, now: datetime) -> datetime:
        """Return when a message that is moved to the retry sub-queue now is due (spec WCF-30); within the window, where there is one."""
        due_at = now.replace(microsecond=0) + self.policy.retry_cycle_delay
        return due_at if self.policy.retry_window is None else window_of(self.policy.retry_window).opened(due_at)

    def after_rollback(self, entry: Entry, failure: Failure, now: datetime) -> Return:  # noqa: ARG002  (the interface's signature)
        """Count the abort; the next receive decides (spec WCF-14)."""
        return Return(self._abandoned(entry.counts))

    def final_disposition(self, entry: Entry, now: datetime) -> Dispose | Halt:
        """Return what ends a message for good: its receive and its abort may be moves (spec WCF-44)."""
        seen = self._received(entry.counts)
        return self._disposition(entry, seen, self._abandoned(seen), now)

    def after_failed_move(self, entry: Entry) -> Counts:
        """Return the counts of a message that could not be moved; its receive was aborted (spec WCF-19)."""
        return entry.counts if self.policy.receive_context else aborted(entry.counts)

    def batch_size(self) -> int:
        """How many messages the next transaction may take (spec WCF-42)."""
        return max(self.policy.max_batch_size, 1) if self._single_commits is None else 1

    def commit_due(self, elapsed: timedelta) -> bool:
        """Whether more than 80 % of the transaction timeout has passed (spec WCF-42)."""
        return elapsed > BATCH_SHARE * self.policy.effective_transaction_timeout

    def transaction_committed(self, entries: Sequence[Entry]) -> None:  # noqa: ARG002  (the interface's signature)
        """Count a commit; twice the batch size of them in single mode bring batches back (spec WCF-42)."""
        if self._single_commits is not None:
            commits = self._single_commits + 1
            self._single_commits = commits if commits < 2 * self.policy.max_batch_size else None

    def transaction_aborted(self, *, became_poison: bool) -> None:
        """Fall back to single mode; an abort in single mode does not start the count again (spec WCF-40)."""
        if self._single_commits is None and (became_poison or self.policy.batch_fallback == BatchFallback.FIRST_ABORT):
            self._single_commits = 0

    def _received(self, counts: Counts) -> Counts:
        """Return what a receive sees: with a receive context it is itself a move, to the lock sub-queue (spec WCF-44)."""
        return moved(counts) if self.policy.receive_context else counts

    def _abandoned(self, seen: Counts) -> Counts:
        return moved(seen) if self.policy.receive_context else aborted(seen)

    def _cycle(self, seen: Counts) -> int:
        """Return how many cycles lie behind: each has two moves, to the retry sub-queue and back, and the moves of its attempts."""
        return seen.move_count // (self._moves_of_attempts() + 2)

    def _moves_of_attempts(self) -> int:
        """Return how many moves the attempts of a cycle make (spec WCF-44).

        With a receive context a receive moves the message to a lock sub-queue and an abandon moves it back, so one attempt is two moves, and the
        receive that finds the message poison makes the last. Without one attempts move nothing.
        """
        return 2 * (self.policy.receive_retry_count + 1) + 1 if self.policy.receive_context else 0

    def _is_poison(self, seen: Counts, cycle: int) -> bool:
        policy = self.policy
        if policy.receive_retry_count == LARGEST:
            return False
        if policy.receive_context:
            attempts = self._moves_of_attempts()
            return cycle > policy.max_retry_cycles or seen.move_count % (attempts + 2) >= attempts
        return seen.abort_count > policy.receive_retry_count

    def _retry_subqueue(self, cycle: int) -> str:
        return SubQueue.RETRY if self.policy.retry_subqueues == RetrySubqueues.ONE else f"{SubQueue.RETRY}{cycle + 1}"
