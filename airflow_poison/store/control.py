"""Control: settings of a queue and persistent state of its endpoints; one row of the table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

from airflow_poison.values.clock import EPOCH
from airflow_poison.values.schema import SubQueue

FORMAT_VERSION = 1
"""Of the tables that this version reads and writes."""


class QueueState(StrEnum):
    """Whether a queue's endpoint receives."""

    ENABLED = "enabled"
    DISABLED = "disabled"
    STOPPED = "stopped"
    FAULTED = "faulted"


BLOCKED_UNTIL, BLOCKED_BY = "blocked_until_us", "blocked_by"
"""Counters of the control row: until when the queue is blocked, microseconds since 1970, and by which message."""
NOT_BEFORE_RESTART = datetime(9999, 12, 31, tzinfo=UTC)
"""The end of a block that only a restart of the broker, or the removal of the message, ends."""
HALTED_BY, POISON_HALTED_BY = "halted_by", "poison_halted_by"
"""Counters of the control row: the message that halted the endpoint, and the one that halted the reader of the poison sub-queue."""
SERVICES_DROPPED = "services_dropped"
"""Counter of the control row: services that were taken from the queue. Messages of their dialogs may wait there, or be on their way."""
EVENT_NOTIFICATIONS = "event_notifications"
"""The part of a queue's desk with the subscribed services, by the notifications' names."""
DESK = "desk:"
"""Begins the names of the control row's counters of what the desk does by itself. A version that does not know them leaves them out at its passes."""
_OURS = frozenset({BLOCKED_UNTIL, BLOCKED_BY, HALTED_BY, POISON_HALTED_BY, SERVICES_DROPPED})


def _is_ours(counter: str) -> bool:
    return counter.startswith(("told:", "telling:", "backlog:", DESK, _OUTAGE)) or counter in _OURS


_OUTAGE = "outage:"
"""Begins the names of the control row's counters about outages; then comes what the endpoint reads. A version that does not know them takes them for
counters of the endpoint, and a pass of it leaves them out: the queue is received from as ever, which is what that version does."""


@dataclass(frozen=True, slots=True)
class OutageState:
    """An outage of a service that an endpoint's handler needs.

    :param since: when it was found.
    :param next_probe_at: before this nothing is delivered.
    :param fingerprint: that the failures share.
    """

    since: datetime
    next_probe_at: datetime
    fingerprint: str


@dataclass(frozen=True, slots=True)
class Control:
    """Settings and endpoint state of a queue; one row of the table.

    :param policy: settings of the messaging system, as ``policy.to_dict()`` gives them.
    :param state: whether the endpoint receives.
    :param reason: why it does not, one line; empty when enabled.
    :param poison_state: the same of the reader of the poison sub-queue, which is an endpoint of its own (spec POI-1).
    :param poison_reason: why that one does not receive.
    :param counters: what the endpoint must remember over restarts, by name.
    :param services: the services whose dialogs the queue takes part in, as plain JSON values by name.
    :param desk: settings of the desk: display and automatic handling of poison messages, as plain JSON values by name.
    :param format_version: version of the table's layout.
    """

    policy: Mapping[str, object]
    state: QueueState = QueueState.ENABLED
    reason: str = ""
    counters: Mapping[str, int] = field(default_factory=dict)
    format_version: int = FORMAT_VERSION
    poison_state: QueueState = QueueState.ENABLED
    poison_reason: str = ""
    services: Mapping[str, object] = field(default_factory=dict)
    desk: Mapping[str, object] = field(default_factory=dict)

    @property
    def has_had_services(self) -> bool:
        """Whether dialogs begin in this queue, or have begun: messages of services that it has no more may still come."""
        return bool(self.services or self.counters.get(SERVICES_DROPPED))

    @property
    def event_notifications(self) -> Mapping[str, str]:
        """The services that the queue's event notifications go to, by name."""
        recorded: Any = self.desk.get(EVENT_NOTIFICATIONS) or {}
        return {str(name): str(service) for name, service in recorded.items()}

    @property
    def endpoint_counters(self) -> Mapping[str, int]:
        """Return the counters of the application queue's endpoint, without counters of subscriptions, blocks, halts and services."""
        return {name: number for name, number in self.counters.items() if not _is_ours(name)}

    def with_endpoint_counters(self, counters: Mapping[str, int]) -> Control:
        """Return what the row says when the endpoint has left these counters behind."""
        ours = {name: number for name, number in self.counters.items() if _is_ours(name)}
        return replace(self, counters=ours | dict(counters))

    def with_counters(self, changed: Mapping[str, int | None]) -> Control:
        """Return what the row says with these counters; None takes one out."""
        others = {name: number for name, number in self.counters.items() if name not in changed}
        return replace(self, counters=others | {name: number for name, number in changed.items() if number is not None})

    def blocked(self, lookup_id: int, until: datetime) -> Control:
        """Return what the row says while a message blocks the queue (spec DMP-14)."""
        return self.with_counters({BLOCKED_UNTIL: _micros(until), BLOCKED_BY: lookup_id})

    def unblocked(self) -> Control:
        """Return what the row says when nothing blocks the queue."""
        return self.with_counters({BLOCKED_UNTIL: None, BLOCKED_BY: None})

    def blocked_until(self, now: datetime) -> datetime | None:
        """Return until when the queue is blocked; None when it is not, or not any more."""
        instant = self.counters.get(BLOCKED_UNTIL)
        until = None if instant is None else _instant(instant)
        return until if until is not None and until > now else None

    @property
    def blocked_by(self) -> int | None:
        """The message that blocks the queue, or did; None: none has since the last pass."""
        return self.counters.get(BLOCKED_BY)

    def outage(self, reads: SubQueue = SubQueue.MAIN) -> OutageState | None:
        """Return the outage that the endpoint of a sub-queue waits for the end of; None: it knows of none."""
        since, next_at, mark = (self.counters.get(name) for name in _outage_names(reads))
        if since is None or next_at is None or mark is None:
            return None
        return OutageState(_instant(since), _instant(next_at), f"{mark:012x}")

    def with_outage(self, reads: SubQueue, outage: OutageState | None) -> Control:
        """Return the row with the outage of a sub-queue's endpoint set, or cleared when ``outage`` is None."""
        values = (None, None, None) if outage is None else (_micros(outage.since), _micros(outage.next_probe_at), int(outage.fingerprint, 16))
        return self.with_counters(dict(zip(_outage_names(reads), values, strict=True)))

    def rests_until(self, reads: SubQueue, now: datetime) -> datetime | None:
        """Return before when a pass delivers nothing of a sub-queue, because it is blocked or waits for the next probe; None: it delivers."""
        outage = self.outage(reads)
        waits = [self.blocked_until(now) if reads is SubQueue.MAIN else None, None if outage is None else outage.next_probe_at]
        return max((until for until in waits if until is not None and until > now), default=None)

    def endpoint(self, reads: SubQueue) -> tuple[QueueState, str]:
        """Return state and reason of the endpoint that reads a sub-queue."""
        return (self.poison_state, self.poison_reason) if reads is SubQueue.POISON else (self.state, self.reason)

    @property
    def holds_sends(self) -> bool:
        """Whether messages that are sent to the queue wait until it is enabled (spec SB-18, SB-19). A stopped or faulted one takes them."""
        return self.state is QueueState.DISABLED

    @property
    def halted_by(self) -> int | None:
        """The message that halted the endpoint, else the one that halted the reader of the poison sub-queue; None when none did."""
        return self.counters.get(HALTED_BY, self.counters.get(POISON_HALTED_BY))

    def halted(self, reads: SubQueue, state: QueueState, reason: str, lookup_id: int | None = None) -> Control:
        """Return what the row says when the endpoint that reads a sub-queue has halted; the other one goes on.

        A queue that people have disabled meanwhile stays so.

        :param lookup_id: the message that halted it; None: no single one.
        """
        row = self.with_counters({POISON_HALTED_BY if reads is SubQueue.POISON else HALTED_BY: lookup_id})
        if reads is SubQueue.POISON:
            return replace(row, poison_state=state, poison_reason=reason)
        if self.holds_sends and self.reason:
            return replace(row, reason=f"{self.reason}; {reason}")
        return replace(row, state=QueueState.DISABLED if self.holds_sends else state, reason=reason)

    def enabled(self) -> Control:
        """Return what the row says when every endpoint of the queue receives."""
        row = self.with_counters({HALTED_BY: None, POISON_HALTED_BY: None})
        return replace(row, state=QueueState.ENABLED, reason="", poison_state=QueueState.ENABLED, poison_reason="")


def _outage_names(reads: SubQueue) -> tuple[str, str, str]:
    return f"{_OUTAGE}{reads.value}:since_us", f"{_OUTAGE}{reads.value}:next_probe_us", f"{_OUTAGE}{reads.value}:fingerprint"


def _micros(instant: datetime) -> int:
    return (instant - EPOCH) // timedelta(microseconds=1)


def _instant(micros: int) -> datetime:
    return EPOCH + timedelta(microseconds=micros)
