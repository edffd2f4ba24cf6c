"""What every messaging system's policy offers: settings that open an endpoint, and the endpoint's three questions.

``base.py`` has the answers of a system that needs no more than the simplest ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Protocol, Self

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime, timedelta

    from airflow_poison.core.failures import Failure
    from airflow_poison.core.message import SubQueue
    from airflow_poison.core.policies.decisions import AfterRollback, BeforeDelivery, Counts, GivenUp, Halt, Halted
    from airflow_poison.core.policies.opening import Opening
    from airflow_poison.core.policies.restarts import Restart
    from airflow_poison.core.policies.retry_return import ReturnOrder


class Entry(Protocol):
    """A message in its queue, as far as rules look at it."""

    @property
    def lookup_id(self) -> int:
        """The queue's number of the message."""
        ...

    @property
    def counts(self) -> Counts:
        """Its counts now."""
        ...

    @property
    def size(self) -> int:
        """Bytes of its body."""
        ...

    @property
    def expires_at(self) -> datetime | None:
        """When its time to live ends; None: never."""
        ...

    @property
    def group(self) -> str:
        """Its conversation group; a message without one is a group of its own."""
        ...

    @property
    def properties(self) -> Mapping[str, str]:
        """Its properties, as sent; only for policies with ``reads_properties``."""
        ...


class Receiver(Protocol):
    """An open endpoint: the rules with what the system keeps in memory. Deterministic and picklable; time is handed in.

    Losing a receiver loses exactly what the specification says is lost when the endpoint closes or crashes.
    """

    @property
    def move_attempts(self) -> int:
        """How often a move to a sub-queue is tried while somebody holds the message (spec WCF-19)."""
        ...

    @property
    def move_interval(self) -> timedelta:
        """The time between these tries."""
        ...

    def before(self, entry: Entry, now: datetime) -> BeforeDelivery:
        """Decide what a receive of this message does. Asked once for each receive, before anything is delivered."""
        ...

    def after_rollback(self, entry: Entry, failure: Failure, now: datetime) -> AfterRollback:
        """Decide what a counted rollback does; ``entry.counts`` are those of the delivery."""
        ...

    def give_up(self, entry: Entry, failure: Failure, now: datetime) -> GivenUp:
        """Return the final disposition at once (unreadable messages, spec WCF-29; ``Unprocessable``)."""
        ...

    def after_failed_move(self, entry: Entry) -> Counts:
        """Return the counts of a message whose move was given up: it stays, and its receive was aborted (spec WCF-19)."""
        ...

    def batch_size(self) -> int:
        """How many messages the next transaction may take; 1 without batching (spec WCF-40 to WCF-42)."""
        ...

    def commit_due(self, elapsed: timedelta) -> bool:
        """Whether a batch that is open for this long commits now (spec WCF-42)."""
        ...

    def transaction_committed(self, entries: Sequence[Entry]) -> Halt | None:
        """Take note of a commit of a transaction that received these messages, which may end receiving (spec SB-13)."""
        ...

    def transaction_aborted(self, *, became_poison: bool) -> None:
        """Take note of a rollback; ``became_poison``: it was the poison check that ended the transaction, not a handler."""
        ...

    def counters(self) -> Mapping[str, int]:
        """Return what the queue keeps for the next endpoint; asked when this one closes, not when it crashes."""
        ...


class Policy(Protocol):
    """The settings of one messaging system: frozen, validated, picklable, with a JSON round trip. No I/O."""

    system: ClassVar[str]
    """The name in ``to_dict()["system"]``, for example ``Msmq4``."""

    reads: ClassVar[SubQueue]
    """The sub-queue that an endpoint receives from."""

    @property
    def return_order(self) -> ReturnOrder | str:
        """How the retry sub-queue is watched (spec WCF-31, WCF-32); never asked when nothing is ever parked."""
        ...

    @property
    def halting(self) -> bool:
        """Whether the endpoint can end receiving: such a policy needs one order, so one task (exclusive claim)."""
        ...

    @property
    def stateless(self) -> bool:
        """Whether each decision depends on the message alone: the order of other messages and their outcomes change nothing."""
        ...

    @property
    def effective_transaction_timeout(self) -> timedelta:
        """How long one delivery may take before it is rolled back (spec WCF-35)."""
        ...

    def unreadable(self, entry: Entry) -> str | None:
        """Say why this message cannot be handed to a handler at all (spec WCF-29); None when it can."""
        ...

    @property
    def server_sessions(self) -> int:
        """How many messages a halting endpoint processes at the same time (spec WMQ-17); 0: none (spec SB-23)."""
        ...

    @property
    def early_hand_out(self) -> int:
        """How many sessions get their next message before all results of a round are in (spec WMQ-20)."""
        ...

    @property
    def sweeps(self) -> bool:
        """Whether a receive goes on behind the last message that was taken, and at the end from the top; else from the top (spec WMQ-29)."""
        ...

    @property
    def locks_groups(self) -> bool:
        """Whether a conversation group is with one session at a time (spec SB-47)."""
        ...

    @property
    def spreads_groups(self) -> bool:
        """Whether every conversation group may have an endpoint of its own: groups then spread over tasks, each in its order."""
        ...

    @property
    def reads_properties(self) -> bool:
        """Whether decisions look at ``entry.properties``."""
        ...

    @property
    def starts_halted(self) -> Halted | None:
        """How the endpoint of a new queue is halted until somebody starts it (spec WMQ-27); None: it receives."""
        ...

    @property
    def halts_as(self) -> Halted:
        """How this system's endpoint ends receiving."""
        ...

    @property
    def destinations(self) -> tuple[str, ...]:
        """The queues that must exist and be writable for its dispositions: ``Opening.access`` tells of them."""
        ...

    def counts_after(self, counts: Counts, restart: Restart) -> Counts:
        """Return what is left of a message's counts after a restart."""
        ...

    def counters_after(self, counters: Mapping[str, int], restart: Restart) -> Mapping[str, int]:
        """Return what is left of the endpoint's counters after a restart. A crash of an endpoint is a restart of its server."""
        ...

    def counters_when_enabled(self, counters: Mapping[str, int]) -> Mapping[str, int]:
        """Return what is left of the endpoint's counters when people set the queue to ON (spec SB-7)."""
        ...

    def counters_when_altered(self, counters: Mapping[str, int]) -> Mapping[str, int]:
        """Return what these settings, just changed, leave of the counters of an endpoint. That is no start of one (spec SB-7, WMQ-8)."""
        ...

    def altered(self, changes: Mapping[str, object]) -> Self:
        """Return the policy with some settings changed, in our words or the manual's. Raises SettingError."""
        ...

    def open(self, opening: Opening = ...) -> Receiver:
        """Open an endpoint."""
        ...

    def to_dict(self) -> dict[str, object]:
        """Return the settings as JSON values, with ``system``."""
        ...

    @classmethod
    def from_dict(cls, settings: Mapping[str, object]) -> Self:
        """Return the policy of ``to_dict()``. Raises SettingError."""
        ...
