"""Watches: note for the checker what this process commits and claims."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_poison.store import bucket_store, delta_store, stage
from airflow_poison.store import queue_table as tables
from tests.faults.ledger import note
from tests.faults.planted import replace

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from airflow_poison.store.files import Claim, Commit, LogState


def watch_commits() -> None:
    """Note each commit that this process makes, when it has been acknowledged: whatever happens then, the log has it."""
    _watch(delta_store, delta_store.DeltaLog, lambda log: log._root)


def watch_bucket_commits() -> None:
    """The same of commits to an object store."""
    _watch(bucket_store, bucket_store.BucketLog, lambda log: log._folder.root)


def _watch(module: ModuleType, log_class: type[Any], root_of: Callable[[Any], str]) -> None:
    commit, entry_of = log_class.commit, module.entry_of
    marks: dict[int, str] = {}

    def marked(made: Commit, mark: str) -> bytes:
        marks[id(made)] = mark
        content: bytes = entry_of(made, mark)
        return content

    def noted(log: Any, base: LogState, made: Commit) -> bool:
        done: bool = commit(log, base, made)
        if done:
            note("committed", queue=Path(root_of(log)).name, version=base.version + 1, mark=marks[id(made)])
        return done

    replace(module, "entry_of", marked)
    replace(log_class, "commit", noted)


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
