"""Replacement of whole files by other rows, all in one commit: how people move, change and remove single messages."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_poison.core.errors import ConservationError, TableChangedError
from airflow_poison.core.fault_points import reach
from airflow_poison.core.schema import OUTBOX, SubQueue
from airflow_poison.core.store.log import Commit
from airflow_poison.core.store.table import files, finishing, history

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa

    from airflow_poison.core.events import Event
    from airflow_poison.core.store.control import Control
    from airflow_poison.core.store.files import DataFile, Replacement
    from airflow_poison.core.store.table.base import Table, View

_PLACES = frozenset({*(place.value for place in SubQueue), OUTBOX})


@dataclass(slots=True)
class _Replacing:
    """A commit that is being made: what goes, what comes, and what it means."""

    replaced: list[DataFile] = field(default_factory=list)
    written: list[DataFile] = field(default_factory=list)
    removed: int = 0
    events: Sequence[Event] = ()
    change: Callable[[Control], Control] | None = None
    alone: bool = False


def replace_files(
    table: Table,
    replacements: Iterable[Replacement],
    events: Sequence[Event],
    change: Callable[[Control], Control] | None = None,
    *,
    alone: bool = False,
) -> None:
    """Replace unclaimed files, whatever their number, in one commit; the new files are written once, one after the other.

    :param alone: refuse while anybody has a claim, on whichever files.
    Raises TableChangedError when one of them is claimed or gone, ConservationError for rows that are not its own; then nothing has changed.
    """
    replacing = _Replacing(events=events, change=change, alone=alone)
    try:
        for replacement in replacements:
            replacing.replaced.append(replacement.file)
            replacing.removed += replacement.removed
            replacing.written += written(table, replacement)
    except BaseException:
        table.discard([file.path for file in replacing.written])
        raise
    reach("store.replace.after_files")
    found = table.change(lambda view: _plan(table, view, replacing))  # files stay when this raises: the commit may have happened
    if found is not None:
        table.discard([file.path for file in replacing.written])
        raise refusal(table, found)


def obstacle(view: View, replaced: Sequence[DataFile], *, alone: bool) -> str | None:
    """Return the path of a file that is not free any more; with ``alone`` that of any file that is claimed."""
    claimed = view.claimed
    if alone and claimed:
        return min(claimed)
    return next((file.path for file in replaced if file.path not in view.live or file.path in claimed), None)


def refusal(table: Table, path: str) -> TableChangedError:
    """Return the error of a change that met an obstacle."""
    message = f"{path} of queue {table.name!r} cannot be changed: a pass has claimed, moved or removed it. Look at the newest snapshot."
    return TableChangedError(message)


def _plan(table: Table, view: View, replacing: _Replacing) -> tuple[Commit | None, str | None]:
    """Return the commit; or the path of a file that is not free any more."""
    found = obstacle(view, replacing.replaced, alone=replacing.alone)
    if found is not None:
        return None, found
    replacing.written = [files.renamed(table.root, file) for file in replacing.written]
    control = finishing.control_change(table, view, replacing.change)
    record = history.write(table.root, view.state.version + 1, replacing.events)
    added, removed = [*replacing.written, *record, *control.add], [*(view.live[file.path] for file in replacing.replaced), *control.remove]
    if not added and not removed:
        return None, None
    details = {"removed": replacing.removed}
    return Commit("replace", add=added, remove=removed, details=details, scratch=[*(file.path for file in record), *control.scratch]), None


def written(table: Table, replacement: Replacement) -> Iterator[DataFile]:
    """Write the rows to a file for each of their places. Raises ConservationError."""
    file, rows = replacement.file, replacement.rows
    distinct = len(rows.column("lookup_id").unique())
    if not file.rows - replacement.removed == rows.num_rows == distinct:
        message = (
            f"{file.path} of queue {table.name!r} holds {file.rows} messages; {replacement.removed} were to go, "
            f"and {rows.num_rows} rows of {distinct} messages were to stay. Nothing was changed."
        )
        raise ConservationError(message)
    for place in rows.group_by(["sub_queue", "move_count"]).aggregate([]).to_pylist():
        yield files.write_new(table.root, place["sub_queue"], place["move_count"], _rows_of(rows, place))


def _rows_of(rows: pa.Table, place: Mapping[str, Any]) -> pa.Table:
    import pyarrow.compute as pc

    if place["sub_queue"] not in _PLACES:
        message = f"Messages cannot be put into {place['sub_queue']!r}; expected one of {', '.join(sorted(_PLACES))}. Nothing was changed."
        raise ConservationError(message)
    return rows.filter(pc.and_(pc.equal(rows["sub_queue"], place["sub_queue"]), pc.equal(rows["move_count"], place["move_count"])))
