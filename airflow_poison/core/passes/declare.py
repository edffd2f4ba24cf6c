"""Declare: make a queue with its policy, or record the policy that a DAG declares now."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from airflow_poison.core.errors import QueueNotFoundError, SystemChangeError
from airflow_poison.core.message import SubQueue
from airflow_poison.core.passes.alter import policy_changed
from airflow_poison.core.passes.messages import signed
from airflow_poison.core.policies import SYSTEMS, checked_policy
from airflow_poison.core.store.control import Control, QueueState

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow_poison.core.clock import Clock
    from airflow_poison.core.events import Event
    from airflow_poison.core.policies.seam import Policy
    from airflow_poison.core.store import QueueStore
    from airflow_poison.core.store.queue_table import QueueTable


log = logging.getLogger(__name__)


def declare(store: QueueStore, queue: str, policy: Policy, clock: Clock, run: str | None = None) -> QueueTable:
    """Return the queue, made when it is missing; its control row names this policy.

    The state (enabled, faulted …) of a queue that exists is never touched: that is people's decision. A new one begins as its policy says
    (spec WMQ-27). Other settings than the recorded ones are recorded, with an event and a warning in the log.

    :param run: who declares, for the event.
    Raises SettingError for what is no policy, QueueNameError, StoreUnreachableError, NewerFormatError, and SystemChangeError for a policy of
    another messaging system.
    """
    checked_policy(policy)
    settings = policy.to_dict()
    table = store.create(queue, _new(policy, settings), clock.now())
    told: list[Event] = []

    def change(control: Control) -> Control:
        _refuse_other_system(queue, control, policy)
        return replace(control, policy=settings)

    def events(before: Control, after: Control) -> Sequence[Event]:
        told[:] = [signed(event, run) for event in policy_changed(before, after, clock)]
        return told

    if dict(table.snapshot().control.policy) != settings:
        table.alter(change, events, clock.now())
    for event in told:
        log.warning("Queue %r has other settings now, which this run declares: %s", queue, event.details["changed"])
    return table


def opened(store: QueueStore, queue: str, policy: Policy | None, clock: Clock, run: str | None = None) -> QueueTable:
    """Return a queue that verbs work on.

    :param policy: makes the queue when it is missing and is recorded in it; a reader of a sub-queue does not rule the queue, so its policy is not.
    :param run: who declares the policy, for the event of a change.
    Raises QueueNotFoundError, SettingError for what is no policy, and SystemChangeError for a policy of another messaging system.
    """
    policy = checked_policy(policy)
    if policy is None:
        return store.open(queue)
    if policy.reads is not SubQueue.MAIN:
        try:
            return store.open(queue)
        except QueueNotFoundError as error:
            raise QueueNotFoundError(f"{error} {policy.system} reads the sub-queue {policy.reads} of a queue that exists, and makes none.") from error
    return declare(store, queue, policy, clock, run)


def _refuse_other_system(queue: str, control: Control, policy: Policy) -> None:
    recorded = control.policy.get("system")
    if recorded in SYSTEMS and recorded != policy.system:  # what no system of ours has recorded has no rules to keep
        raise SystemChangeError(
            f"Queue {queue!r} has the rules of {recorded}, and the policy given here has those of {policy.system}: its messages are counted by the "
            "rules of the first. Nothing was changed, received or sent. Correct the policy or the queue's name; if the queue is to change its "
            f"system, alter it first: 'airflow poison alter {queue} --system {policy.system}', or QueueAlterOperator(queue_name={queue!r}, "
            f"action='alter', system={policy.system!r})."
        )


def _new(policy: Policy, settings: Mapping[str, object]) -> Control:
    halted = policy.starts_halted
    if halted is None:
        return Control(settings)
    return Control(settings, QueueState(halted), f"its policy says that it begins {halted.value}: enable it to start receiving")
