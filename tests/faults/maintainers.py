"""Maintainers, people who repair, and strangers: what happens to a table beside its messages."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from airflow_poison.fsck.check import check
from airflow_poison.fsck.files import Severity
from airflow_poison.passes.maintain import RepairResult, maintain, repair
from tests.faults.ledger import note
from tests.faults.world import RETENTION, RETENTION_IN_A_BUCKET, Strangers

if TYPE_CHECKING:
    import random
    from datetime import timedelta

    from airflow_poison.store import QueueStore
    from airflow_poison.store.queue_table import QueueTable
    from airflow_poison.values.clock import Clock


def retention_in(store: QueueStore) -> timedelta:
    return RETENTION if store.is_folder else RETENTION_IN_A_BUCKET


def maintain_one(table: QueueTable, store: QueueStore, clock: Clock) -> None:
    """Do everything that maintenance does; it keeps what a stopped process needs, and not more."""
    kept = retention_in(store)
    maintain(table, clock, store=store, retention=kept, safe_age=kept, min_files=2)


def repair_one(store: QueueStore, queue: str, clock: Clock, *, accept: bool = False) -> RepairResult:
    return repair(store, queue, clock, accept=accept, safe_age=retention_in(store))


def intrude(uri: str, strangers: Strangers, chance: random.Random) -> None:
    """Commit to a table what no verb of ours does: take all messages of a place out, or change a property."""
    with suppress(DeltaError):  # it lost a race, or there is nothing to take out
        table = DeltaTable(uri)
        if strangers is Strangers.TAKE_MESSAGES:
            table.delete(f"sub_queue = '{chance.choice(['main', 'main', 'retry', 'poison', '_claim'])}'")
        else:
            table.alter.set_table_properties({"delta.logRetentionDuration": f"interval {chance.randint(1, 90)} days"})


def look(table: QueueTable, store: QueueStore, clock: Clock) -> None:
    """Note what ``check`` says is wrong with a table."""
    for finding in check(table, clock, safe_age=retention_in(store)).findings:
        if finding.severity is Severity.ERROR:
            note("finding", queue=table.name, what=f"{finding.kind}: {finding.what} ({finding.where})")
