"""Transactions of verbs from outside a pass: what they do to conversations and to messages of dialogs, all or nothing, once per key."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_poison.core.errors import ConservationError
from airflow_poison.core.fault_points import reach
from airflow_poison.core.schema import CONVERSATION, TRANSMISSION_QUEUE
from airflow_poison.core.store.log import Commit
from airflow_poison.core.store.table import files, history, replacing
from airflow_poison.core.store.table.layout import commit_prefix

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from datetime import datetime

    import pyarrow as pa

    from airflow_poison.core.store.files import DataFile, Transaction
    from airflow_poison.core.store.snapshot import Snapshot
    from airflow_poison.core.store.table.base import Table, View

_OF_DIALOGS = (CONVERSATION, TRANSMISSION_QUEUE)


def transact(table: Table, plan: Callable[[Snapshot], Transaction | None], key: str, now: datetime) -> bool:
    """Commit what ``plan`` makes of the newest version, asked again for each try; False when that was done before under this key."""
    done = f"transact:{key}"

    def attempt(view: View) -> tuple[Commit | None, bool]:
        if view.state.number(done) is not None:
            return None, False
        wanted = plan(view.snapshot)
        return (None, True) if wanted is None else (_commit(table, view, wanted, key, now), True)

    return table.change(attempt)


def _commit(table: Table, view: View, wanted: Transaction, key: str, now: datetime) -> Commit:
    """Write what comes, for this try alone. Raises TableChangedError, ConservationError; then nothing of it is left."""
    named = [*(replacement.file for replacement in wanted.replacements), *wanted.remove]
    _check(table, view, wanted, named)
    version = view.state.version + 1
    written: list[DataFile] = []
    reach("store.transact.before_files")
    try:
        if wanted.rows is not None:
            written += _written(table, wanted.rows, version, now)
        for replacement in wanted.replacements:
            written += replacing.written(table, replacement)
        written += history.write(table.root, version, wanted.events)
    except BaseException:
        table.discard([file.path for file in written])
        raise
    reach("store.transact.after_files")
    return Commit(
        "transact",
        add=written,
        remove=[view.live[file.path] for file in named],
        numbers={f"transact:{key}": version},
        details={"key": key, "removed": sum(replacement.removed for replacement in wanted.replacements)},
        scratch=[file.path for file in written],
    )


def _check(table: Table, view: View, wanted: Transaction, named: list[DataFile]) -> None:
    obstacle = replacing.obstacle(view, named, alone=wanted.alone)
    if obstacle is not None:
        raise replacing.refusal(table, obstacle)
    if len({file.path for file in named}) < len(named):
        raise ConservationError(f"A transaction in queue {table.name!r} names a file twice. Nothing was changed.")
    replaced = next((replacement.file.path for replacement in wanted.replacements if replacement.file.sub_queue in _OF_DIALOGS), None)
    if replaced is not None:
        raise ConservationError(f"{replaced} of queue {table.name!r} can only go whole: give it to the transaction's 'remove'. Nothing was changed.")
    places = {file.sub_queue for file in wanted.remove} | set(_places(wanted.rows))
    if not places <= set(_OF_DIALOGS):
        other = ", ".join(repr(place) for place in sorted(places - set(_OF_DIALOGS)))
        message = f"A transaction in queue {table.name!r} adds rows to {other}, or removes a file there; expected {' or '.join(_OF_DIALOGS)}."
        raise ConservationError(message + " Messages go by its replacements. Nothing was changed.")


def _places(rows: pa.Table | None) -> list[str]:
    return [] if rows is None else [str(place) for place in rows.column("sub_queue").unique().to_pylist()]


def _written(table: Table, rows: pa.Table, version: int, now: datetime) -> Iterator[DataFile]:
    """Write the rows of each partition to a file, in their order."""
    import pyarrow as pa
    import pyarrow.compute as pc

    at = rows.schema.get_field_index("enqueued_at")
    rows = rows.set_column(at, rows.schema.field(at), pc.fill_null(rows.column(at), pa.scalar(now, rows.schema.field(at).type)))
    for place in _places(rows):
        prefix = commit_prefix(version) if place == TRANSMISSION_QUEUE else ""
        yield files.write_new(table.root, place, 0, rows.filter(pc.equal(rows["sub_queue"], pa.scalar(place))), prefix)
