"""Declare: make a queue with its policy, or record the policy that a DAG declares now."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from airflow_poison.core.store.seam import Control

if TYPE_CHECKING:
    from airflow_poison.core.clock import Clock
    from airflow_poison.core.policies.seam import Policy
    from airflow_poison.core.store.seam import QueueStore, QueueTable


def declare(store: QueueStore, queue: str, policy: Policy, clock: Clock) -> QueueTable:
    """Return the queue, made when it is missing; its control row names this policy.

    The state (enabled, faulted …) is never touched: that is people's decision.
    Raises QueueNameError, StoreUnreachableError, NewerFormatError.
    """
    settings = policy.to_dict()
    table = store.create(queue, Control(policy=settings), clock.now())
    if dict(table.snapshot().control.policy) != settings:
        table.alter(lambda control: replace(control, policy=settings), lambda _before, _after: (), clock.now())
    return table
