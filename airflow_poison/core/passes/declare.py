"""Declare: make a queue with its policy, or record the policy that a DAG declares now."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from airflow_poison.core.message import SubQueue
from airflow_poison.core.store.control import Control, QueueState

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_poison.core.clock import Clock
    from airflow_poison.core.policies.seam import Policy
    from airflow_poison.core.store.seam import QueueStore, QueueTable


def declare(store: QueueStore, queue: str, policy: Policy, clock: Clock) -> QueueTable:
    """Return the queue, made when it is missing; its control row names this policy.

    The state (enabled, faulted …) of a queue that exists is never touched: that is people's decision. A new one begins as its policy says
    (spec WMQ-27).
    Raises QueueNameError, StoreUnreachableError, NewerFormatError.
    """
    settings = policy.to_dict()
    table = store.create(queue, _new(policy, settings), clock.now())
    if dict(table.snapshot().control.policy) != settings:
        table.alter(lambda control: replace(control, policy=settings), lambda _before, _after: (), clock.now())
    return table


def opened(store: QueueStore, queue: str, policy: Policy | None, clock: Clock) -> QueueTable:
    """Return a queue that verbs work on.

    :param policy: makes the queue when it is missing and is recorded in it; a reader of a sub-queue does not rule the queue, so its policy is not.
    Raises QueueNotFoundError.
    """
    if policy is None or policy.reads is not SubQueue.MAIN:
        return store.open(queue)
    return declare(store, queue, policy, clock)


def _new(policy: Policy, settings: Mapping[str, object]) -> Control:
    halted = policy.starts_halted
    if halted is None:
        return Control(settings)
    return Control(settings, QueueState(halted), f"its policy says that it begins {halted.value}: enable it to start receiving")
