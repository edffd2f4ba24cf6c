"""The final commit of a pass: what was staged comes in, what was claimed goes out, all or nothing, once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_poison.core.errors import ClaimLostError, TableChangedError
from airflow_poison.core.fault_points import reach
from airflow_poison.core.schema import EVENT, TRANSMISSION_QUEUE
from airflow_poison.core.store.log import Commit
from airflow_poison.core.store.table import files, history, moving, rows, stage
from airflow_poison.core.store.table.layout import CONTROL, STAGE, commit_prefix, new_path
from airflow_poison.core.store.table.links import link

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from airflow_poison.core.events import Event
    from airflow_poison.core.store.control import Control
    from airflow_poison.core.store.files import Claim, DataFile, Manifest
    from airflow_poison.core.store.table.base import Table, View


_IN_COMMIT_ORDER = frozenset({EVENT, TRANSMISSION_QUEUE})


def finish(
    table: Table,
    claim: Claim,
    manifest: Manifest,
    change: Callable[[Control], Control] | None,
    events: Sequence[Event],
) -> bool:
    """Commit the outcome of a claim; False when that was done before."""
    reach("store.finish.before_links")

    def plan(view: View) -> tuple[Commit | None, bool]:
        if view.state.number(f"run:{claim.key}") is not None:
            return None, False
        inputs = _inputs(table, view, claim)
        version = view.state.version + 1
        added = [_linked(table, claim, staged, file, version, part) for part, (staged, file) in enumerate(manifest.files)]
        record = history.write(table.root, version, events, part=len(manifest.files))
        control = control_change(table, view, change)
        commit = Commit(
            "finish",
            add=[*added, *record, *control.add],
            remove=[*inputs, view.claim_rows[claim.key], *control.remove],
            numbers={f"run:{claim.key}": version},
            details={"key": claim.key, "epoch": claim.epoch, "result": dict(manifest.result)},
            scratch=[*(file.path for file in (*added, *record) if file.sub_queue in _IN_COMMIT_ORDER), *control.scratch],
        )
        reach("store.finish.after_links")
        return commit, True

    done = table.change(plan)
    reach("store.finish.before_clearing")
    stage.clear(table.root, claim.key)
    reach("store.finish.after_clearing")
    return done


def control_change(table: Table, view: View, change: Callable[[Control], Control] | None) -> Commit:
    """Return the part of a commit that replaces the control row; empty when the row stays as it is.

    A queue that is not disabled any more gets what was sent to it meanwhile, so ``transmission`` is never full beside an enabled queue.
    """
    before = view.snapshot.control
    after = change(before) if change else before
    if after == before:
        return Commit("alter")
    row = files.write_new(table.root, CONTROL, 0, rows.control_to_row(after))
    reach("store.control.after_row")
    held = moving.held_files(table, view) if before.holds_sends and not after.holds_sends else []
    added = [row, *(new for _, new in held)]
    return Commit("alter", add=added, remove=[view.control_row, *(old for old, _ in held)], scratch=[file.path for file in added])


def _inputs(table: Table, view: View, claim: Claim) -> list[DataFile]:
    """Return what the claim consumes, after checking that it is all still ours to consume."""
    if not view.held(claim):
        raise ClaimLostError(stage.lost(claim))
    missing = [file.path for file in claim.files if file.path not in view.live]
    if missing:
        raise TableChangedError(files.gone(table.root, missing[0]) + _NOTHING_COMMITTED)
    return [view.live[file.path] for file in claim.files]


_NOTHING_COMMITTED = " Nothing was committed; the outcomes of the pass are kept in its stage folder."


def _linked(table: Table, claim: Claim, staged: str, file: DataFile, version: int, part: int) -> DataFile:  # noqa: PLR0917
    """Give an unharmed staged file its final name. In the names of events and of dialog messages is the version: their order."""
    source, listed = Path(table.root, STAGE, staged), file
    if file.sub_queue in _IN_COMMIT_ORDER:
        file = replace(file, path=new_path(file.sub_queue, file.move_count, commit_prefix(version, part)))
    try:
        link(source, Path(table.root, file.path))
    except FileNotFoundError as error:
        if not table.view().held(claim):  # a later holder has renamed the stage since we looked
            raise ClaimLostError(stage.lost(claim)) from error
        raise TableChangedError(files.gone(table.root, f"{STAGE}/{staged}") + _NOTHING_COMMITTED) from error
    _check_unharmed(table, file, f"{STAGE}/{staged}", listed)
    return file


def _check_unharmed(table: Table, file: DataFile, staged: str, listed: DataFile) -> None:
    """Read the footer once more: a file that was damaged since it was sealed must not take the place of the messages that are claimed."""
    import pyarrow as pa

    try:
        found = files.describe(table.root, file.path)
    except (pa.ArrowInvalid, OSError) as error:
        why: object = error
    else:
        if (found.rows, found.size) == (listed.rows, listed.size):
            return
        why = f"it has {found.rows} rows and {found.size} bytes instead of {listed.rows} and {listed.size}"
    if file.path not in table.view().live:
        table.discard([file.path])
    raise TableChangedError(files.damaged(table.root, staged, why) + _NOTHING_COMMITTED)
