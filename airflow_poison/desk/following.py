"""Following: apply a plan again whenever passes let it go on, until it has ended."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from airflow_poison.desk.applying import apply, waits_at
from airflow_poison.desk.plans import find_plan
from airflow_poison.store.files import PlanState

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_poison.desk.plans import PlanView
    from airflow_poison.store import QueueStore
    from airflow_poison.store.queue_table import QueueTable
    from airflow_poison.values.clock import Clock

LOOK = 1.0
"""Seconds between two looks at the queue's version."""


def follow(
    table: QueueTable,
    plan_id: str,
    clock: Clock,
    *,
    store: QueueStore | None = None,
    progress: Callable[[PlanView], object] = lambda _view: None,
    stop: Callable[[], bool] = lambda: False,
    wait: Callable[[float], None] = time.sleep,
    patience: float | None = None,
    through_pauses: bool = False,
) -> PlanView:
    """Apply a plan until it has ended, and return it. While nothing can be done it only looks at the queue's version.

    :param patience: seconds for which passes are waited for, each time; None: without an end, 0: not at all.
    :param through_pauses: wait, too, while it is paused; else a pause ends it.
    The other parameters, and what is raised: as of ``apply``.
    """
    waiting = {PlanState.RUNNING, PlanState.CANARY} | ({PlanState.PAUSED} if through_pauses else set())
    while True:
        seen: int | None = table.snapshot().version
        view = apply(table, plan_id, clock, store=store, progress=progress, stop=stop, wait=wait)
        end = None if patience is None else time.monotonic() + patience
        while view.state in waiting and (seen := _nothing_to_do(table, plan_id, seen)) is not None:
            left = LOOK if end is None else min(LOOK, end - time.monotonic())
            if stop() or left <= 0:
                return view
            wait(left)
            view = find_plan(table, plan_id)
        view = find_plan(table, plan_id)  # it may have been cancelled just now
        if view.state not in waiting or stop():
            return view


def _nothing_to_do(table: QueueTable, plan_id: str, version: int | None) -> int | None:
    """Return the newest version if nothing can be done at it; None: there is something to do.

    :param version: at which everything that could be done was done.
    """
    return version if table.snapshot().version == version else waits_at(table, plan_id)
