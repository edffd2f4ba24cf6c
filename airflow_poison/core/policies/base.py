"""The simplest answers to the questions of ``seam.py``: bases of the systems' settings and of their open endpoints."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

from airflow_poison.core.message import SubQueue
from airflow_poison.core.policies import settings
from airflow_poison.core.policies.counts import aborted
from airflow_poison.core.policies.decisions import Halted
from airflow_poison.core.policies.retry_return import ReturnOrder
from airflow_poison.core.policies.transactions import MOVE_ATTEMPTS, MOVE_INTERVAL

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from dataclasses import Field
    from datetime import timedelta

    from airflow_poison.core.policies.decisions import Counts, Halt
    from airflow_poison.core.policies.restarts import Restart
    from airflow_poison.core.policies.seam import Entry


class SystemSettings:
    """Base of frozen settings: an endpoint that receives one message at a time from main and remembers nothing; and the JSON round trip."""

    __slots__ = ()
    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    system: ClassVar[str]
    title: ClassVar[str]
    """The system's name as people know it, for lists."""
    aliases: ClassVar[Mapping[str, str]] = {}
    """The manuals' other words for a setting; accepted wherever settings are read as text or JSON."""

    reads: ClassVar[SubQueue] = SubQueue.MAIN

    @property
    def return_order(self) -> ReturnOrder | str:
        """Return whatever is due; never asked when nothing is ever parked."""
        return ReturnOrder.DUE_TIME

    @property
    def halts_as(self) -> Halted:
        """Stop."""
        return Halted.STOPPED

    @property
    def server_sessions(self) -> int:
        """One message at a time."""
        return 1

    @property
    def early_hand_out(self) -> int:
        """No session gets its next message before the results of the others are in."""
        return 0

    @property
    def sweeps(self) -> bool:
        """Receive from the top of the queue."""
        return False

    @property
    def locks_groups(self) -> bool:
        """No group is locked."""
        return False

    @property
    def spreads_groups(self) -> bool:
        """Groups mean nothing."""
        return False

    @property
    def reads_properties(self) -> bool:
        """No decision looks at a message's properties."""
        return False

    @property
    def starts_halted(self) -> Halted | None:
        """Receive from the start."""
        return None

    @property
    def destinations(self) -> tuple[str, ...]:
        """Send to no queue that must exist."""
        return ()

    def unreadable(self, entry: Entry) -> str | None:  # noqa: ARG002  (the seam's signature)
        """Hand over every message."""
        return None

    def counts_after(self, counts: Counts, restart: Restart) -> Counts:  # noqa: ARG002  (the seam's signature)
        """Keep a message's counts over every restart."""
        return counts

    def counters_after(self, counters: Mapping[str, int], restart: Restart) -> Mapping[str, int]:  # noqa: ARG002  (the seam's signature)
        """Keep the endpoint's counters over every restart."""
        return counters

    def counters_when_enabled(self, counters: Mapping[str, int]) -> Mapping[str, int]:
        """Keep the endpoint's counters when people set the queue to ON."""
        return counters

    def counters_when_altered(self, counters: Mapping[str, int]) -> Mapping[str, int]:
        """Keep the endpoint's counters when people change settings."""
        return counters

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
        return settings.from_json(cls, stored)


class OneAtATime:
    """Base of open endpoints whose transactions receive one message, and that leave nothing behind."""

    __slots__ = ()

    move_attempts: int = MOVE_ATTEMPTS
    move_interval: timedelta = MOVE_INTERVAL

    def after_failed_move(self, entry: Entry) -> Counts:
        """Return the counts of a message that could not be moved: its receive was aborted."""
        return aborted(entry.counts)

    def batch_size(self) -> int:
        """One message a transaction."""
        return 1

    def commit_due(self, elapsed: timedelta) -> bool:  # noqa: ARG002  (the seam's signature)
        """Always: a transaction holds one message."""
        return True

    def transaction_committed(self, entries: Sequence[Entry]) -> Halt | None:  # noqa: ARG002  (the seam's signature)
        """Nothing depends on commits."""
        return None

    def transaction_aborted(self, *, became_poison: bool) -> None:
        """Nothing depends on aborts."""

    def counters(self) -> Mapping[str, int]:
        """Nothing is left behind."""
        return {}
