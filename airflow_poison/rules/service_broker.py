"""SQL Server Service Broker: a queue's settings and its readers, which drive the counters of queue_disabling.py (spec sections 1.1 to 1.4)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from functools import partial
from typing import ClassVar

from airflow_poison.rules import settings
from airflow_poison.rules.decisions import Counts, Deliver, Dispose, Disposition, Halt, Halted, Return, aborted
from airflow_poison.rules.policy import FIRST, Entry, Opening, Policy, Receiver, Restart
from airflow_poison.rules.queue_disabling import (
    ROLLBACK_LIMIT,
    Counter,
    Disables,
    Inspection,
    QueueDisabledDocument,
    QueueStatus,
    ReceivedGroup,
    RecoveryOrder,
    RollbackCounters,
    Scope,
)
from airflow_poison.values.errors import ConfigurationWarning, MaxQueueReadersError, SettingError
from airflow_poison.values.events import EventType
from airflow_poison.values.failures import Failure, FailureKind

MOST_QUEUE_READERS = 32_767
_SWITCH = {"ON": True, "OFF": False}
ROLLBACKS, QUEUES = "rollbacks", "queues"
"""The counter of a queue; and where the event of a transaction over several queues names those that it disables, as JSON."""
_OF_GROUP, _OF_QUEUE, _DISABLING = "rollbacks:", "rollbacks@", "disabling"


def of_queue(name: str) -> str:
    """Return the name of the counter of another queue that the transaction receives from."""
    return _OF_QUEUE + name


class Disabling(StrEnum):
    """When the queue is set to OFF (spec SB-13)."""

    SYNCHRONOUS = "synchronous"  # before the rollback returns
    BACKGROUND = "background"  # shortly afterwards, as in the product: one more delivery slips in


def _name(setting: str, value: object) -> str:
    """Return a name that an XML document can hold. Raises SettingError."""
    if not isinstance(value, str) or not value.isprintable():
        raise SettingError(setting, value, "text that can be printed")
    return value


def _switched(given: str, name: str, value: object) -> object:  # noqa: ARG001  (a Meaning)
    """Take ``ON`` and ``OFF`` for poison handling."""
    return _SWITCH.get(value.upper(), value) if name == "poison_message_handling" and isinstance(value, str) else value


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceBroker(Policy):
    """The settings of a Service Broker queue. Raises SettingError for a value that is not allowed.

    :param poison_message_handling: whether consecutive rollbacks disable the queue (spec SB-11); ``ON`` and ``OFF`` in JSON, too. With
        False nothing counts, and a message that always fails is delivered again and again: a pass tries it at most 4,095 times and leaves
        it for the next one. The handler must have a strategy of its own, see ``track_failures``.
    :param rollback_limit: the rollback in a row that disables, at least 1. The product knows only 5 (spec SB-4).
    :param scope: what is counted: the ``queue``, or each ``conversation_group`` (spec SB-7).
    :param disables: of the queues that one transaction received from, ``all_received`` or only those ``at_limit`` (spec SB-9). In a pass only
        the first goes with ``spans``; without that its transactions receive from one queue.
    :param disabling: ``synchronous``, or ``background``: exactly one more delivery slips in (spec SB-13).
    :param inspection: ``exempt``: the rollback of an inspection is not counted; ``strict``: it is; ``browse``: it reads without a lock
        (spec SB-33).
    :param recovery_order: whether a recovery ends the poison conversation before or after the queue is ON again (spec SB-34).
    :param max_queue_readers: how many messages are processed at the same time, 0 to 32767 (spec SB-23; MaxQueueReadersError, 187, otherwise).
        0: no reader, a pass receives nothing.
    :param transaction_timeout: how long one delivery may take, a duration > 0. The product has none.
    :param database_name: the database that the event's document names (spec SB-17).
    :param schema_name: the schema that it names.

    Warns with ConfigurationWarning when poison handling is off or without readers.

    Memory: the counters of consecutive rollbacks live in the memory of the database engine (spec SB-7). The endpoint of a pass hands them
    to the next one; a restart of the application's host, which a killed pass is, and of the database engine lose them, and STATUS = ON
    starts them anew. A message's abort count is only shown to people: no rule looks at it, and nothing sets it back. That the queue is
    disabled is durable.

    Order: messages of one conversation group are received one after the other (spec SB-47). Without poison handling and with scope
    ``conversation_group`` groups do not depend on each other, so each may have an endpoint of its own.
    """

    system: ClassVar[str] = "ServiceBroker"
    title: ClassVar[str] = "SQL Server Service Broker"
    aliases: ClassVar[Mapping[str, str]] = {
        "POISON_MESSAGE_HANDLING": "poison_message_handling",
        "MAX_QUEUE_READERS": "max_queue_readers",
        "is_poison_message_handling_enabled": "poison_message_handling",
    }
    checks: ClassVar[Mapping[str, settings.Check]] = {
        "rollback_limit": partial(settings.whole_number, least=1),
        "max_queue_readers": partial(settings.whole_number, most=MOST_QUEUE_READERS, error=MaxQueueReadersError),
        "transaction_timeout": partial(settings.duration, least=settings.TICK),
        "database_name": _name,
        "schema_name": _name,
    }
    meant: ClassVar[settings.Meaning] = staticmethod(_switched)
    halts_as: ClassVar[Halted] = Halted.DISABLED
    locks_groups: ClassVar[bool] = True

    poison_message_handling: bool = True
    rollback_limit: int = ROLLBACK_LIMIT
    scope: Scope | str = Scope.QUEUE
    disables: Disables | str = Disables.ALL_RECEIVED
    disabling: Disabling | str = Disabling.SYNCHRONOUS
    inspection: Inspection | str = Inspection.EXEMPT
    recovery_order: RecoveryOrder | str = RecoveryOrder.END_THEN_ENABLE
    max_queue_readers: int = 1
    transaction_timeout: timedelta = timedelta(minutes=10)
    database_name: str = ""
    schema_name: str = "dbo"

    def warnings(self) -> Iterator[ConfigurationWarning]:
        """Return what leaves messages where they are, or delivers them again and again."""
        if not self.poison_message_handling:
            yield ConfigurationWarning(
                "poison_message_handling=False: a message that always fails is delivered again and again, up to 4,095 times in each pass. "
                "Let the handler count failures itself, or give such messages up with Unprocessable."
            )
        if self.max_queue_readers == 0:
            yield ConfigurationWarning("max_queue_readers=0: no reader receives from the queue, its messages stay where they are.")

    @property
    def halting(self) -> bool:
        """Whether rollbacks can disable the queue (spec SB-11)."""
        return self.poison_message_handling

    @property
    def stateless(self) -> bool:
        """Whether nothing is counted, and there are readers."""
        return not self.poison_message_handling and self.max_queue_readers > 0

    @property
    def server_sessions(self) -> int:
        """How many readers there are."""
        return self.max_queue_readers

    @property
    def spreads_groups(self) -> bool:
        """Whether no group depends on another."""
        return not self.poison_message_handling or self.scope == Scope.CONVERSATION_GROUP

    def counters_after(self, counters: Mapping[str, int], restart: Restart) -> Mapping[str, int]:
        """Lose everything but at a mere reopening: the counters are in memory (spec SB-7)."""
        return counters if restart is Restart.ENDPOINT else {}

    def counters_when_enabled(self, counters: Mapping[str, int], *, starts: bool) -> Mapping[str, int]:  # noqa: ARG002  (the interface's signature)
        """Start anew, also when the queue was ON already (spec SB-7, section 11.1)."""
        return {}

    def check_spans(self, queues: Sequence[str]) -> None:
        """Take other queues where one counter a queue is kept, and all that a transaction received from are disabled."""
        if not (self.poison_message_handling and self.scope == Scope.QUEUE and self.disables == Disables.ALL_RECEIVED):
            raise SettingError("spans", list(queues), "poison_message_handling=True, scope='queue' and disables='all_received'")

    def status(self, *, on: bool, activation: bool = False) -> QueueStatus:
        """Return the queue's status as ``sys.service_queues`` shows it (spec SB-11, SB-12).

        :param on: whether the queue is enabled.
        :param activation: whether something starts its readers, for example a schedule.
        """
        status = QueueStatus(is_activation_enabled=activation, is_poison_message_handling_enabled=self.poison_message_handling)
        return status.switched(on=on)

    def open(self, opening: Opening = FIRST) -> ServiceBrokerReceiver:
        """Open a reader: it goes on with the counters that an earlier one left."""
        return ServiceBrokerReceiver(self, opening)


@dataclass(slots=True)
class ServiceBrokerReceiver(Receiver):
    """The open readers of a queue: they share its counters."""

    policy: ServiceBroker
    opening: Opening = FIRST
    _counters: RollbackCounters = field(init=False)
    _in_this_rollback: set[Counter] = field(init=False, default_factory=set)
    _reached: int = field(init=False, default=0)
    """The number of rollbacks for which the queue is still to be disabled in the background; 0: it is not."""
    _slipped_in: bool = field(init=False, default=False)
    _disabled: bool = field(init=False, default=False)
    _last_asked: datetime | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        policy = self.policy
        kept = self.opening.counters if policy.poison_message_handling else {}
        self._counters = RollbackCounters(policy.rollback_limit, Scope(policy.scope), Disables(policy.disables), self._restored(kept))
        self._reached = kept.get(_DISABLING, 0)
        self._slipped_in = self._reached > 0

    def before(self, entry: Entry, now: datetime) -> Deliver | Halt:
        """Deliver; in the background the queue is disabled after one more delivery (spec SB-13)."""
        self._last_asked = now
        if self._is_due():
            return self._disable(entry.counts, self._reached, now)
        self._slipped_in = self._reached > 0
        return Deliver(entry.counts)

    def after_rollback(self, entry: Entry, failure: Failure, now: datetime) -> Return | Halt:
        """Count the rollback of a transaction once; the limit disables the queue (spec SB-4, SB-10).

        An invalid request is no poison message: its receive is going to commit, see ``give_up`` (spec SB-2).
        """
        self._last_asked = now
        if failure.kind is FailureKind.UNPROCESSABLE:
            return Return(entry.counts)
        reached = self._count(entry)
        if reached and self.policy.disabling == Disabling.SYNCHRONOUS:
            return self._disable(aborted(entry.counts), reached, now)
        if self._is_due():
            return self._disable(aborted(entry.counts), self._reached, now)
        self._reached = self._reached or reached
        return Return(aborted(entry.counts))

    def give_up(self, entry: Entry, failure: Failure, now: datetime) -> Dispose | Halt:
        """Remove a message that is invalid or corrupt; neither counts (spec SB-2). It is kept in the queue's dead-letter queue.

        An invalid request is removed by the application: its receive commits. A corrupt message is found by the broker.
        """
        if failure.kind is FailureKind.UNPROCESSABLE:
            self._counters.committed(self._transaction(entry))
        elif self._is_due():
            return self._disable(entry.counts, self._reached, now)
        return Dispose(Disposition.SEND, entry.counts, (EventType.DEAD_LETTERED,), destination=f"{self.opening.queue}.dead-letter")

    def transaction_committed(self, entries: Sequence[Entry]) -> Halt | None:
        """Begin to count anew (spec SB-7)."""
        self._counters.committed(received for entry in entries for received in self._transaction(entry))
        if self._is_due() and self._last_asked is not None:
            return self._disable(Counts(), self._reached, self._last_asked)
        return None

    def transaction_aborted(self, *, became_poison: bool) -> None:  # noqa: ARG002  (the interface's signature)
        """Begin the rollback of another transaction."""
        self._in_this_rollback.clear()

    def counters(self) -> Mapping[str, int]:
        """Return the counters that are not zero, and whether the queue is still to be disabled in the background."""
        whole = self.policy.scope == Scope.QUEUE
        own = self.opening.queue
        kept = {
            (ROLLBACKS if queue == own else of_queue(queue)) if whole else f"{_OF_GROUP}{group}": count
            for (queue, group), count in self._counters.counts.items()
        }
        return kept | ({_DISABLING: self._reached} if self._reached and not self._disabled else {})

    def _restored(self, kept: Mapping[str, int]) -> dict[tuple[str, str], int]:
        queue = self.opening.queue
        if self.policy.scope == Scope.QUEUE:
            others = {(name, ""): kept[of_queue(name)] for name in self.opening.spans if kept.get(of_queue(name))}
            return others | ({(queue, ""): kept[ROLLBACKS]} if kept.get(ROLLBACKS) else {})
        return {(queue, name.removeprefix(_OF_GROUP)): count for name, count in kept.items() if name.startswith(_OF_GROUP)}

    def _received(self, entry: Entry) -> ReceivedGroup:
        return ReceivedGroup(self.opening.queue, entry.group, self.policy.poison_message_handling)

    def _transaction(self, entry: Entry) -> list[ReceivedGroup]:
        """Return what the transaction of a message has received: also from the other queues that it spans (spec SB-9)."""
        return [self._received(entry), *(ReceivedGroup(name) for name in self.opening.spans)]

    def _count(self, entry: Entry) -> int:
        """Count a rollback, once for all messages of its transaction; return the count that disables the queue, else 0."""
        received = self._received(entry)
        counter = self._counters.counter(received)
        if counter in self._in_this_rollback:
            return 0
        self._in_this_rollback.add(counter)
        received_all = self._transaction(entry)
        return max(map(self._counters.count, received_all)) if self._counters.rolled_back(received_all) else 0

    def _is_due(self) -> bool:
        return self._slipped_in and not self._disabled

    def _disable(self, counts: Counts, rollbacks: int, now: datetime) -> Halt:
        self._disabled = True
        document = QueueDisabledDocument(
            queue=self.opening.queue, post_time=now, database_name=self.policy.database_name, schema_name=self.policy.schema_name
        )
        others = {QUEUES: json.dumps(list(self.opening.spans))} if self.opening.spans else {}
        details = {"rollbacks": str(rollbacks), "document": document.to_xml(), **others}
        return Halt(Halted.DISABLED, counts, (EventType.QUEUE_DISABLED,), details)
