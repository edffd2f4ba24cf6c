"""Writes the tables of a format: of ``format-1`` with commit 6f7ad90 of this repository, of ``format-2`` with b09a0aa.

The tests' own modules of that commit are used, too:

git archive <commit> | tar x -C <checkout>
PYTHONPATH=<checkout> python tests/store/tables/make_tables.py <folder>
"""

from __future__ import annotations

import sys
import tempfile
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from airflow_poison.core.passes.alter import declare
from airflow_poison.core.passes.due import return_due
from airflow_poison.core.policies.msmq4 import Msmq4
from airflow_poison.core.store.delta.store import DeltaStore
from tests.unit.passes.given import DiedError, DyingEngine, a_queue

POLICY = Msmq4(receive_retry_count=1, max_retry_cycles=1, retry_cycle_delay=timedelta(minutes=30), receive_error_handling="Move")


def main(folder: Path, calls: Path) -> None:
    """Messages in each sub-queue, a pass that died after its deliveries, and letters that nobody has sent on."""
    store = DeltaStore(str(folder))
    orders = a_queue(store, calls, POLICY)
    orders.sent("ok 1", "bad 2", "ok 3", "later 4", "never 5", key="first").receive("one")
    orders.clock.advance(timedelta(minutes=31))
    return_due(orders.table, orders.clock)
    orders.receive("two")
    orders.sent("ok 6", "bad 7", key="second").receive("three")
    orders.sent("ok 8", "bad 9", "ok 10", key="third")
    with suppress(DiedError):
        orders.having(engine=DyingEngine).receive("died")
    orders.sent("ok 11", "ok 12", key="fourth")
    rejecting = replace(POLICY, receive_error_handling="Reject")
    letters = orders.having(table=declare(store, "letters", rejecting, orders.clock), policy=rejecting)
    letters.sent("never 1", "ok 2", "ok 3", key="first").receive("one", store=None)
    letters.sent("ok 4", key="second")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as calls:
        main(Path(sys.argv[1]), Path(calls))
