"""Changes of whole files outside a pass: moves between sub-queues, splits, removal of what has been sent on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_poison.core.errors import ConservationError, TableChangedError
from airflow_poison.core.events import Event, EventType
from airflow_poison.core.fault_points import reach
from airflow_poison.core.schema import SubQueue
from airflow_poison.core.store.log import Commit
from airflow_poison.core.store.results import Returned
from airflow_poison.core.store.table import files, history
from airflow_poison.core.store.table.layout import new_path
from airflow_poison.core.store.table.links import link

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from datetime import datetime

    import pyarrow as pa

    from airflow_poison.core.store.files import DataFile
    from airflow_poison.core.store.snapshot import Snapshot
    from airflow_poison.core.store.table.base import Table, View

_UNCOUNTED = frozenset({SubQueue.POSTPONED.value, SubQueue.TRANSMISSION.value})
_EVENT = {SubQueue.MAIN: EventType.RETURNED, SubQueue.RETRY: EventType.MOVED_RETRY, SubQueue.POISON: EventType.MOVED_POISON}


def move_files(table: Table, pick: Callable[[Snapshot], Sequence[DataFile]], target: SubQueue, now: datetime, *, count_move: bool) -> Returned:
    """Move whole files by a second name for each: no row is written again, and every reader sees the new place and count.

    Files are told in the order in which they were picked.
    """

    def plan(view: View) -> tuple[Commit | None, Returned]:
        free = view.live.keys() - view.claimed
        wanted = {file.path: view.live[file.path] for file in pick(view.snapshot) if file.path in free and file.sub_queue != target}
        moved = [(file, _moved(file, target, count=file.move_count + count_move)) for file in wanted.values()]
        if not moved:
            return None, Returned(messages=0, files=0)
        for old, new in moved:
            _link(table, old, new)
        reach("store.move.after_links")
        record = history.write(table.root, view.state.version + 1, _events(moved, target, now))
        commit = Commit(
            "move",
            add=[new for _, new in moved] + record,
            remove=[old for old, _ in moved],
            details={"to": target.value, "files": len(moved)},
            scratch=[*(file.path for file in record), *(new.path for _, new in moved)],
        )
        return commit, Returned(messages=sum(new.rows for _, new in moved), files=len(moved))

    return table.change(plan)


def held_files(table: Table, view: View) -> list[tuple[DataFile, DataFile]]:
    """Give what waits in ``transmission`` a second name in ``main``; return each file with its new place. Nothing is counted."""
    held = [file for file in view.live.values() if file.sub_queue == SubQueue.TRANSMISSION and file.path not in view.claimed]
    moved = [(file, _moved(file, SubQueue.MAIN, count=file.move_count)) for file in held]
    for old, new in moved:
        _link(table, old, new)
    if moved:
        reach("store.held.after_links")
    return moved


def split_file(table: Table, file: DataFile, pieces: Iterable[pa.Table]) -> None:
    """Replace one unclaimed file by pieces. Raises ConservationError, and TableChangedError when the file is claimed or gone."""
    written = [files.write_new(table.root, file.sub_queue, file.move_count, piece) for piece in pieces if piece.num_rows]
    if sum(piece.rows for piece in written) != file.rows:
        table.discard([piece.path for piece in written])
        message = f"The pieces of {file.path} hold {sum(piece.rows for piece in written)} rows instead of {file.rows}; nothing was changed."
        raise ConservationError(message)
    reach("store.split.after_files")
    if not table.change(lambda view: _split_plan(table, view, file, written)):
        table.discard([piece.path for piece in written])
        message = f"{file.path} of queue {table.name!r} cannot be split: another pass has claimed or removed it. Look at the newest snapshot."
        raise TableChangedError(message)


def _split_plan(table: Table, view: View, file: DataFile, written: list[DataFile]) -> tuple[Commit | None, bool]:
    if file.path not in view.live or file.path in view.claimed:
        return None, False
    written[:] = [files.renamed(table.root, piece) for piece in written]
    return Commit("split", add=tuple(written), remove=[view.live[file.path]], data_change=False), True


def remove_outbox(table: Table, sent: Sequence[DataFile]) -> None:
    """Remove outbox files, those that are still there."""
    _remove(table, sent, operation="remove_outbox")


def remove_transmissions(table: Table, sent: Sequence[DataFile]) -> None:
    """Remove files of dialog messages, those that are still there."""
    _remove(table, sent, operation="remove_transmissions")


def _remove(table: Table, sent: Sequence[DataFile], *, operation: str) -> None:

    def plan(view: View) -> tuple[Commit | None, None]:
        present = [view.live[file.path] for file in sent if file.path in view.live]
        return (Commit(operation, remove=present) if present else None), None

    table.change(plan)


def _moved(file: DataFile, target: SubQueue, *, count: int) -> DataFile:
    """Return the file in its new place, under a name of its own for each try."""
    return replace(file, path=new_path(target, count), sub_queue=target.value, move_count=count)


def _link(table: Table, old: DataFile, new: DataFile) -> None:
    try:
        link(Path(table.root, old.path), Path(table.root, new.path))
    except FileNotFoundError as error:
        raise TableChangedError(files.gone(table.root, old.path)) from error


def _events(moved: Iterable[tuple[DataFile, DataFile]], target: SubQueue, now: datetime) -> list[Event]:
    """Return one event for each whole file: ``history`` makes one of each message of it. What is no move is not told."""
    return [_event(old, new, target, now) for old, new in moved if _UNCOUNTED.isdisjoint({old.sub_queue, target.value})]


def _event(old: DataFile, new: DataFile, target: SubQueue, now: datetime) -> Event:
    details = {"count": str(new.rows), "max_lookup_id": str(new.max_lookup_id), "path": new.path, "place": target.value}
    if old.sub_queue == SubQueue.POISON:
        details["origin"] = SubQueue.POISON.value
    return Event(type=_EVENT[target], at=now, lookup_id=new.min_lookup_id, move_count=new.move_count, details=details)
