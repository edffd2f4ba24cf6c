"""Watches: note for the checker what this process commits and claims."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_poison.core.store import queue_table as tables
from airflow_poison.core.store.delta.log import DeltaLog
from airflow_poison.core.store.table import stage
from tests.faults.ledger import note
from tests.faults.planted import replace

if TYPE_CHECKING:
    from airflow_poison.core.store.files import Claim
    from airflow_poison.core.store.log import Commit, LogState


def watch_commits() -> None:
    """Note each commit that this process makes, when it has been acknowledged: whatever happens then, the log has it."""
    commit, write = DeltaLog.commit, DeltaLog._write
    marks: dict[str, str] = {}

    def marked(log: DeltaLog, base: Any, made: Commit, mark: str) -> None:
        marks[log._root] = mark
        write(log, base, made, mark)

    def noted(log: DeltaLog, base: LogState, made: Commit) -> bool:
        done = commit(log, base, made)
        if done:
            note("committed", queue=Path(log._root).name, version=base.version + 1, mark=marks[log._root])
        return done

    replace(DeltaLog, "_write", marked)
    replace(DeltaLog, "commit", noted)


def watch_claims() -> None:
    """Note which claims this process makes and holds: the controller sees whose claim has been taken over."""
    claim, take_over, made = tables.QueueTable.claim, tables.QueueTable.take_over, stage.HolderFolder.made

    def noted(held: Claim | None) -> Claim | None:
        if held is not None:
            note("held", key=held.key, epoch=held.epoch, attempt=held.attempt, earlier=held.earlier)
        return held

    def noted_made(attempt: stage.HolderFolder) -> str:
        name = made(attempt)
        note("made", key=attempt.key, attempt=name)
        return name

    replace(tables.QueueTable, "claim", lambda *given, **named: noted(claim(*given, **named)))
    replace(tables.QueueTable, "take_over", lambda *given, **named: noted(take_over(*given, **named)))
    replace(stage.HolderFolder, "made", noted_made)
