"""Alter: what people change of a queue at run time: whether it receives, and the settings of its messaging system."""

from __future__ import annotations

import dataclasses
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from airflow_poison.core.events import Event, EventType
from airflow_poison.core.message import SubQueue
from airflow_poison.core.passes.conversations.carrying import tick
from airflow_poison.core.policies import policy_from_dict
from airflow_poison.core.policies.opening import Opening
from airflow_poison.core.store.control import QueueState

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow_poison.core.clock import Clock
    from airflow_poison.core.policies.seam import Policy
    from airflow_poison.core.store.control import Control
    from airflow_poison.core.store.seam import QueueTable

ENDPOINTS = (SubQueue.MAIN, SubQueue.POISON)
"""The sub-queues that an endpoint can read."""
LONGEST_REASON = 500
_BY_HAND = "somebody switched it off"
_STARTED: Mapping[QueueState, EventType] = {
    QueueState.DISABLED: EventType.QUEUE_ENABLED,
    QueueState.STOPPED: EventType.STARTED,
    QueueState.FAULTED: EventType.STARTED,
}


@dataclass(frozen=True, slots=True)
class EnableResult:
    """What enabling did: the state before, which is ``enabled`` when there was nothing to do, and the reason that had halted the queue.

    When only the reader of the poison sub-queue had halted, they are that reader's.
    """

    queue: str
    before: str
    reason: str

    def to_dict(self) -> dict[str, object]:
        """Return plain values."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class DisableResult:
    """What disabling did.

    :param before: the state before, ``disabled`` when there was nothing to do.
    :param receiving: messages that passes have claimed, which they still finish.
    """

    queue: str
    before: str
    receiving: int

    def to_dict(self) -> dict[str, object]:
        """Return plain values."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class AlterResult:
    """What altering did.

    :param changed: the settings whose value is another now, as JSON values: before and after.
    """

    queue: str
    changed: Mapping[str, tuple[object, object]]

    def to_dict(self) -> dict[str, object]:
        """Return plain values."""
        return {"queue": self.queue, "changed": {name: list(values) for name, values in self.changed.items()}}


def enable(table: QueueTable, clock: Clock) -> EnableResult:
    """Let the queue's endpoints receive again: its own, and the reader of its poison sub-queue. What was sent to it meanwhile arrives.

    Where the system says so, the endpoint's counters begin anew, also when the queue was ON already (spec SB-7, section 11.1).
    A message that halted an endpoint keeps its counts (spec SB-24, WCF-21): remove it, or it may halt it again.
    """
    tick(table, clock)  # while it is still disabled: what the local broker has kept back comes before what partners send (spec section 11.1)
    seen: list[Control] = []

    def change(control: Control) -> Control:
        seen.append(control)
        after = control.enabled()
        counters = after.endpoint_counters
        return after.with_endpoint_counters(policy_from_dict(after.policy).counters_when_enabled(counters)) if counters else after

    table.alter(change, lambda before, after: started(before, after, clock), clock.now())
    endpoints = [seen[-1].endpoint(reads) for reads in ENDPOINTS]
    state, reason = next((endpoint for endpoint in endpoints if endpoint[0] is not QueueState.ENABLED), endpoints[0])
    return EnableResult(table.name, state.value, reason)


def disable(table: QueueTable, clock: Clock, reason: str = "") -> DisableResult:
    """Set the queue to OFF (spec SB-18, SB-19): no pass begins, and what is sent to it waits in ``transmission``. No event (spec section 11, item 3).

    A pass that runs finishes what it has claimed. The reader of the poison sub-queue goes on: it is an endpoint of its own.

    :param reason: why; people see its first 500 characters, as one line.
    """
    why_off = " ".join(reason.encode("utf-8", "replace").decode().split()) or _BY_HAND
    seen: list[Control] = []

    def change(control: Control) -> Control:
        seen.append(control)
        if control.state is QueueState.DISABLED:
            return control
        why = why_off
        if control.state is not QueueState.ENABLED:
            why = f"{why}; it was {control.state.value} before: {control.reason}"
        return replace(control, state=QueueState.DISABLED, reason=why[:LONGEST_REASON])

    table.alter(change, lambda _before, _after: (), clock.now())
    return DisableResult(table.name, seen[-1].state.value, sum(claim.messages for claim in table.snapshot().claims))


def alter(table: QueueTable, clock: Clock, *, settings: Mapping[str, object]) -> AlterResult:
    """Change some of the settings that are recorded in the queue, in one commit. They hold when an endpoint opens next (spec WMQ-23).

    A DAG that declares a policy for the queue records its own again at its next run.

    :param settings: values by name, in our words or the manual's, as JSON values: durations in seconds.
    Raises SettingError for a setting or a value that the system does not know; then nothing has changed.
    """
    _warn(policy_from_dict(table.snapshot().control.policy).altered(settings))
    seen: list[Control] = []

    def change(control: Control) -> Control:
        seen.append(control)
        policy = policy_from_dict(control.policy).altered(settings)
        return _under(replace(control, policy=policy.to_dict()), policy, table.name)

    now = table.alter(change, lambda _before, _after: (), clock.now()).policy
    before = seen[-1].policy
    return AlterResult(table.name, {name: (before.get(name), value) for name, value in now.items() if before.get(name) != value})


def started(before: Control, after: Control, clock: Clock) -> Sequence[Event]:
    """Return an event for each endpoint that receives again."""
    states = [(before.endpoint(reads)[0], after.endpoint(reads)[0]) for reads in ENDPOINTS]
    return tuple(Event(_STARTED[old], clock.now()) for old, new in states if new is QueueState.ENABLED and old is not new)


def _under(control: Control, policy: Policy, queue: str) -> Control:
    """Return the row with what an endpoint of these settings makes of the counters: one that counts nothing forgets them (spec SB-7)."""
    counters = control.endpoint_counters
    return control.with_endpoint_counters(policy.open(Opening(queue, counters)).counters()) if counters else control


def _warn(policy: Policy) -> None:
    """Construct the policy once more: a policy that is read from settings warns of nothing."""
    dataclasses.replace(cast("Any", policy))
