"""Watches: note for the checker what this process commits and claims."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_poison.core.store import queue_table as tables
from airflow_poison.core.store.bucket import log as bucket_log
from airflow_poison.core.store.delta.log import DeltaLog
from airflow_poison.core.store.table import stage
from tests.faults.ledger import note
from tests.faults.planted import replace

if TYPE_CHECKING:
    from collections.abc import Callable

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


def watch_bucket_commits() -> None:
    """The same of commits to an object store."""
    commit, entry_of = bucket_log.BucketLog.commit, bucket_log.entry_of
    marks: dict[int, str] = {}

    def marked(made: Commit) -> bytes:
        entry = entry_of(made)
        marks[id(made)] = json.loads(json.loads(entry.splitlines()[0])["commitInfo"]["userMetadata"])["mark"]
        return entry

    def noted(log: bucket_log.BucketLog, base: LogState, made: Commit) -> bool:
        done = commit(log, base, made)
        if done:
            note("committed", queue=Path(log._folder.root).name, version=base.version + 1, mark=marks[id(made)])
        return done

    replace(bucket_log, "entry_of", marked)
    replace(bucket_log.BucketLog, "commit", noted)


def watch_claims() -> None:
    """Note which claims this process makes and holds: the controller sees whose claim has been taken over.

    And note when every later holder finds what was delivered, on whichever node: the outcome is sealed, or was left to them as it was.
    """
    claim, take_over, made = tables.QueueTable.claim, tables.QueueTable.take_over, stage.HolderFolder.made

    def noted(held: Claim | None) -> Claim | None:
        if held is not None:
            note("held", key=held.key, epoch=held.epoch, attempt=held.attempt, earlier=held.earlier)
        return held

    def noted_made(attempt: stage.HolderFolder) -> str:
        name = made(attempt)
        note("made", key=attempt.key, attempt=name)
        return name

    def kept(act: Callable[..., Any]) -> Callable[..., Any]:
        def instead(*given: Any) -> Any:
            done = act(*given)
            note("kept")
            return done

        return instead

    replace(tables.QueueTable, "leave", kept(tables.QueueTable.leave))
    replace(tables.QueueTable, "seal", kept(tables.QueueTable.seal))
    replace(tables.QueueTable, "claim", lambda *given, **named: noted(claim(*given, **named)))
    replace(tables.QueueTable, "take_over", lambda *given, **named: noted(take_over(*given, **named)))
    replace(stage.HolderFolder, "made", noted_made)
