"""What every messaging system's policy offers: settings that open an endpoint, the facts that it opens with, and its three questions.

The two bases answer as the simplest system does: its endpoint receives one message at a time from main and remembers nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import Field, dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self

from airflow_poison.rules import settings
from airflow_poison.rules.decisions import AfterRollback, BeforeDelivery, Counts, GivenUp, Halt, Halted, ReturnOrder, aborted
from airflow_poison.values.errors import ConfigurationWarning, SettingError
from airflow_poison.values.schema import SubQueue

if TYPE_CHECKING:
    from airflow_poison.values.failures import Failure


class Entry(Protocol):
    """A message in its queue, as far as rules look at it."""

    @property
    def lookup_id(self) -> int:
        """The queue's number of the message."""

    @property
    def counts(self) -> Counts:
        """Its counts now."""

    @property
    def size(self) -> int:
        """Bytes of its body."""

    @property
    def expires_at(self) -> datetime | None:
        """When its time to live ends; None: never."""

    @property
    def group(self) -> str:
        """Its conversation group; a message without one is a group of its own."""

    @property
    def properties(self) -> Mapping[str, str]:
        """Its properties, as sent; only for policies with ``reads_properties``."""


class Access(StrEnum):
    """Whether an endpoint can send to another queue."""

    GRANTED = "granted"
    MISSING = "missing"  # there is no such queue
    DENIED = "denied"  # some authority is lacking (spec DMP-17, WMQ-22)


@dataclass(frozen=True, slots=True)
class Opening:
    """What an endpoint finds when it opens.

    :param queue: the name of the queue that it receives from.
    :param counters: what an earlier endpoint of this queue left behind, as its ``Receiver.counters()`` gave it.
    :param access: of the queues that the policy sends to, those that it cannot simply send to.
    :param spans: the other queues that its transactions receive from, as far as their rollbacks are counted (spec SB-9).
    """

    queue: str = "queue"
    counters: Mapping[str, int] = field(default_factory=dict)
    access: Mapping[str, Access] = field(default_factory=dict)
    spans: tuple[str, ...] = ()

    def can_send_to(self, queue: str) -> Access:
        """Return whether the endpoint can send to a queue."""
        return self.access.get(queue, Access.GRANTED)


FIRST = Opening()
"""An endpoint of a queue that remembers nothing."""


class Restart(StrEnum):
    """What is started anew, and so loses what it keeps in memory (spec SB-7, M3-4, DMP-19, WMQ-8, ZOS-5). What that is, is the policy's to say."""

    ENDPOINT = "endpoint"  # the listener, activation specification or listener port
    SERVER = "server"  # the application's host: service host, application server
    BROKER = "broker"  # database engine, messaging engine, queue manager


class Receiver(Protocol):
    """An open endpoint: the rules with what the system keeps in memory. Deterministic and picklable; time is handed in.

    Losing a receiver loses exactly what the specification says is lost when the endpoint closes or crashes.
    """

    __slots__ = ()

    move_attempts: int = 50
    """How often a move to a sub-queue is tried while a reader holds the message (spec WCF-19)."""
    move_interval: timedelta = timedelta(milliseconds=100)
    """The time between these tries."""

    def before(self, entry: Entry, now: datetime) -> BeforeDelivery:
        """Decide what a receive of this message does. Asked once for each receive, before anything is delivered."""

    def after_rollback(self, entry: Entry, failure: Failure, now: datetime) -> AfterRollback:
        """Decide what a counted rollback does; ``entry.counts`` belong to the delivery."""

    def give_up(self, entry: Entry, failure: Failure, now: datetime) -> GivenUp:
        """Return the final disposition at once (unreadable messages, spec WCF-29; ``Unprocessable``)."""

    def parked_until(self, now: datetime) -> datetime:
        """Return when a message that is moved to the retry sub-queue now may return to main."""
        return now

    def after_failed_move(self, entry: Entry) -> Counts:
        """Return the counts of a message whose move was given up: it stays, and its receive was aborted (spec WCF-19)."""
        return aborted(entry.counts)

    def batch_size(self) -> int:
        """How many messages the next transaction may take; 1 without batching (spec WCF-40 to WCF-42)."""
        return 1

    def commit_due(self, elapsed: timedelta) -> bool:  # noqa: ARG002  (the simplest answer)
        """Whether a batch that is open for this long commits now (spec WCF-42)."""
        return True

    def transaction_committed(self, entries: Sequence[Entry]) -> Halt | None:  # noqa: ARG002  (the simplest answer)
        """Take note of a commit of a transaction that received these messages, which may end receiving (spec SB-13)."""
        return None

    def transaction_aborted(self, *, became_poison: bool) -> None:  # noqa: ARG002  (the simplest answer)
        """Take note of a rollback; ``became_poison``: it was the poison check that ended the transaction, not a handler."""
        return

    def counters(self) -> Mapping[str, int]:
        """Return what the queue keeps for the next endpoint; asked when this one closes, not when it crashes."""
        return {}


class Policy(ABC):
    """The settings of one messaging system: frozen, validated, picklable, with a JSON round trip. No I/O."""

    __slots__ = ()
    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    checks: ClassVar[Mapping[str, settings.Check]] = {}
    """How settings are checked that the kind of their default does not say enough of."""
    meant: ClassVar[settings.Meaning] = staticmethod(settings.as_it_is)
    """What the manual's values mean as JSON values."""

    system: ClassVar[str]
    """The name in ``to_dict()["system"]``, for example ``Msmq4``."""
    title: ClassVar[str]
    """The system's name as people know it, for lists."""
    aliases: ClassVar[Mapping[str, str]] = {}
    """The manuals' other words for a setting; accepted wherever settings are read as text or JSON."""
    reads: ClassVar[SubQueue] = SubQueue.MAIN
    """The sub-queue that an endpoint receives from."""
    halts_as: ClassVar[Halted] = Halted.STOPPED
    """How this system's endpoint ends receiving."""
    locks_groups: ClassVar[bool] = False
    """Whether a conversation group is with one session at a time (spec SB-47)."""
    jms: ClassVar[bool] = False
    """Whether handlers see the properties by which a JMS provider counts deliveries (``Message.properties``)."""
    transaction_timeout: timedelta

    def __post_init__(self) -> None:
        settings.check(self, self.checks)
        self.check_together()
        for text in self.warnings():
            settings.warn(text)

    def check_together(self) -> None:  # noqa: B027  (the simplest answer)
        """Refuse settings that do not go together. Raises SettingError."""

    def warnings(self) -> Iterable[ConfigurationWarning]:
        """Return what is allowed and rarely wanted."""
        return ()

    @property
    def return_order(self) -> ReturnOrder | str:
        """How the retry sub-queue is watched (spec WCF-31, WCF-32); never asked when nothing is ever parked."""
        return ReturnOrder.DUE_TIME

    @property
    @abstractmethod
    def halting(self) -> bool:
        """Whether the endpoint can end receiving: such a policy needs one order, so one task (exclusive claim)."""

    @property
    @abstractmethod
    def stateless(self) -> bool:
        """Whether each decision depends on the message alone: the order of other messages and their outcomes change nothing."""

    @property
    def effective_transaction_timeout(self) -> timedelta:
        """How long one delivery may take before it is rolled back (spec WCF-35)."""
        return self.transaction_timeout

    def unreadable(self, entry: Entry) -> str | None:  # noqa: ARG002  (the simplest answer)
        """Say why this message cannot be handed to a handler at all (spec WCF-29); None when it can."""
        return None

    @property
    def server_sessions(self) -> int:
        """How many messages a halting endpoint processes at the same time (spec WMQ-17); 0: none (spec SB-23)."""
        return 1

    @property
    def early_hand_out(self) -> int:
        """How many sessions get their next message before all results of a round are in (spec WMQ-20)."""
        return 0

    @property
    def sweeps(self) -> bool:
        """Whether a receive goes on behind the last message that was taken, and at the end from the top; else from the top (spec WMQ-29)."""
        return False

    @property
    def spreads_groups(self) -> bool:
        """Whether every conversation group may have an endpoint of its own: groups then spread over tasks, each in its order."""
        return False

    @property
    def strict_order(self) -> bool:
        """Whether no message may be delivered while an earlier one has not ended."""
        return False

    @property
    def reads_properties(self) -> bool:
        """Whether decisions look at ``entry.properties``."""
        return False

    @property
    def starts_halted(self) -> Halted | None:
        """How the endpoint of a new queue is halted until it is started (spec WMQ-27); None: it receives."""
        return None

    @property
    def destinations(self) -> tuple[str, ...]:
        """The queues that must exist and be writable for its dispositions: ``Opening.access`` has them."""
        return ()

    @property
    def obstacle(self) -> str:
        """Why a message that has used its deliveries stays in its queue and blocks it (spec DMP-14); empty: none does."""
        return ""

    def counts_after(self, counts: Counts, restart: Restart) -> Counts:  # noqa: ARG002  (the simplest answer)
        """Return what is left of a message's counts after a restart."""
        return counts

    def counters_after(self, counters: Mapping[str, int], restart: Restart) -> Mapping[str, int]:  # noqa: ARG002  (the simplest answer)
        """Return what is left of the endpoint's counters after a restart. A crash of an endpoint is a restart of its server."""
        return counters

    def counters_when_enabled(self, counters: Mapping[str, int], *, starts: bool) -> Mapping[str, int]:
        """Return what is left of the endpoint's counters when people set the queue to ON (spec SB-7).

        :param starts: its endpoint did not receive, and starts now (spec WMQ-8).
        """
        return self.counters_after(counters, Restart.ENDPOINT) if starts else counters

    def counters_when_altered(self, counters: Mapping[str, int]) -> Mapping[str, int]:
        """Return what these settings, just changed, leave of the counters: what an endpoint of them would have kept itself (spec SB-7)."""
        return self.open(Opening(counters=counters)).counters()

    def check_spans(self, queues: Sequence[str]) -> None:
        """Raise SettingError where no transaction can span several queues: only Service Broker counts so."""
        raise SettingError("spans", list(queues), "Service Broker's rules: no other system counts over several queues")

    @abstractmethod
    def open(self, opening: Opening = FIRST) -> Receiver:
        """Open an endpoint."""

    def altered(self, changes: Mapping[str, object]) -> Self:
        """Return the policy with some settings changed, in our words or the manual's, as JSON values. Raises SettingError."""
        with settings.stored():
            return replace(self, **type(self).arguments(changes))

    def to_dict(self) -> dict[str, object]:
        """Return the settings as JSON values: durations in seconds, and ``system``."""
        return settings.to_json(self)

    @classmethod
    def from_dict(cls, stored: Mapping[str, object]) -> Self:
        """Return the policy of ``to_dict()``, or of settings in the manual's words, without warnings. Raises SettingError."""
        with settings.stored():
            return cls(**cls.arguments(stored))

    @classmethod
    def arguments(cls, stored: Mapping[str, object]) -> dict[str, Any]:
        """Return the constructor's arguments from JSON values, in our words or the manual's. Raises SettingError."""
        return settings.from_json(cls, stored, cls.meant)
